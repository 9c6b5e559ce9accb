"""Cost that a plan predicted, beside what a run cost."""

from scalable.runs.summary import BILLED, cost_of

ROWS = [{"event": BILLED, "tag": "model", "manager": "m", "worker": "w", "cost": 2.0}]


def planned(predicted):
    summary = cost_of(ROWS, {"predicted_cost": {"unit": "USD", **predicted}})
    assert summary is not None
    return summary.planned, summary.planned_interval


def test_the_predicted_bill_stands_beside_the_bill():
    of_plan = {
        "expected": 3.0,
        "interval": [2.0, 4.0],
        "billed": 5.0,
        "billed_interval": [4.5, 6.0],
    }
    assert planned(of_plan) == (5.0, (4.5, 6.0))
