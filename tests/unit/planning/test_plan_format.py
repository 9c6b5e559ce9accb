"""Plans from their JSON form."""

import json
from dataclasses import replace

import pytest
from plans import request, task

from scalable.model import Price, Rate
from scalable.model.plan import PlanFormatError, decode_plan
from scalable.planning import Knowledge, PlanRequest, Prices, make_plan

PRICED = Prices(
    {"model": 1.0, "post": 2.0},
    as_of="2026-01-01",
    rates={"model": Rate(Price("m6i", "eu", 1.0, (0.2, 0.4)), 2, 0.5, (0.5,))},
    notes=("a note",),
)
WORK = [task("simulate", "model", 20, 60.0), task("reduce", "post", 2, 30.0, ["simulate"])]


def made(prices=PRICED, objective="balance"):
    spec = request(*WORK, options={"max_workers": 8})
    asked = PlanRequest.parse(objective, None, "2h" if objective else None)
    return make_plan(spec, "ab" * 32, Knowledge(prices=prices), asked)


@pytest.mark.parametrize("asked", [(), (None,), (None, None)])
def test_a_plan_survives_its_json_form(asked):
    plan = made(*asked)
    data = json.loads(json.dumps(plan.to_dict()))
    assert decode_plan(data) == plan
    assert decode_plan({"version": 1, "plan": data}) == plan
    assert decode_plan(data | {"of a later release": 1}) == plan


def test_plans_of_releases_without_some_keys_are_read():
    data = made().to_dict()
    for point in data["front"]:
        del point["time_q80_s"], point["cost_q80"]
    assert all(point.time_q80_s is None for point in decode_plan(data).front)
    plan = made(None, None)
    less = {k: v for k, v in plan.to_dict().items() if k not in ("front", "overhead", "tasks")}
    assert decode_plan(less) == replace(plan, tasks={})


@pytest.mark.parametrize(("change", "words"), [
    ({"manifest_lock": None}, r"plan.manifest_lock is not a string: None"),
    ({"scale_plan": {"workers_by_tag": {"model": 1.5}}}, "model is not a whole number: 1.5"),
    ({"scale_plan": {"workers_by_tag": {"model": True}}}, "is not a whole number: True"),
    ({"scale_plan": {"workers_by_tag": {"model": -1}}}, "model is -1, but must be 0 or more"),
    ({"scale_plan": []}, "plan.scale_plan is not an object"),
    ({"reasons": "because"}, "plan.reasons is not a list"),
    ({"predicted_interval_s": [1.0]}, "has 1 values instead of 2"),
    ({"confidence": float("nan")}, "plan.confidence is not a number"),
    ({"predicted_time_s": 10**400}, "plan.predicted_time_s is not a number: 10"),
    ({"confidence": 5}, "plan.confidence is 5, but must be 0 to 1"),
    ({"budget": -5.0}, "plan.budget is -5.0, but must be more than 0"),
    ({"deadline_s": 0}, "plan.deadline_s is 0, but must be more than 0"),
])  # fmt: skip
def test_faults_are_named_with_their_key(change, words):
    with pytest.raises(PlanFormatError, match=words):
        decode_plan(made().to_dict() | change)


@pytest.mark.parametrize("data", [None, [], 3, "plan", {}, {"plan": {}}, {"version": 2, "plan": 1}])
def test_other_values_are_no_plans(data):
    with pytest.raises(PlanFormatError):
        decode_plan(data)
