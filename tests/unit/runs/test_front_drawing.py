"""The front of a plan as text."""

from scalable.model import FrontPoint, Plan, PredictedCost, ScalePlan
from scalable.runs.report.plans import draw_front, front_rows, plan_html


def plan(*points, chosen=1):
    front = tuple(FrontPoint(time_s, cost, {"model": n}) for time_s, cost, n in points)
    return Plan("t", "local", "0" * 64, ScalePlan({"model": chosen}), objective="balance",
                policy="safe", front=front,
                predicted_cost=PredictedCost(1.0, (1.0, 1.0), 1.0, 1.0, (1.0, 1.0)))  # fmt: skip


def test_time_goes_right_cost_goes_up_and_the_choice_is_marked():
    lines = draw_front(plan((30, 10, 1), (20, 20, 2), (10, 30, 3), chosen=2)).splitlines()
    assert "@ is this plan" in lines[0]
    picture = [line.partition("|")[2] for line in lines[1:13]]
    assert picture[0] == "*"
    assert picture[-1] == " " * 59 + "*"
    (row,) = [i for i, line in enumerate(picture) if "@" in line]
    assert (row, picture[row].index("@")) in ((5, 30), (6, 30), (5, 29), (6, 29))
    assert lines[1].startswith("  30 |")
    assert any(line.split()[:3] == ["@", "model", "2"] for line in lines)


def test_one_point_and_a_wide_range_can_be_drawn():
    assert "@" in draw_front(plan((5, 5, 1)))
    drawn = draw_front(plan(*((10.0**4 / n, 100 + n, n) for n in (1, 10, 100, 1000))))
    row = [line for line in drawn.splitlines() if "|" in line and "*" in line]
    assert len(row) >= 2
    assert drawn.count("*") == 3


def test_each_choice_tells_what_it_costs_to_be_wrong():
    front = (FrontPoint(30.0, 10.0, {"a": 1}, 40.0, 12.0), FrontPoint(20.0, 11.0, {"a": 2}))
    made = Plan("t", "local", "0" * 64, ScalePlan({"a": 1}), objective="balance", front=front)
    assert front_rows(made) == [
        ("@", "a 1", "30.0 s", "40.0 s", "10", "12"),
        (" ", "a 2", "20.0 s", "-", "11", "-"),
    ]
    assert "  @  a 1      30.0 s  40.0 s              10    12" in draw_front(made).splitlines()
    page = plan_html(made)
    assert page.index("80 % of cost") < page.index("40.0 s", page.index("80 % of cost"))
