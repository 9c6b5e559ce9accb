"""The policy that wants the known work to end within a time."""

import pytest

from scalable.scaling.policy import TargetDuration
from scalable.scaling.pool_policy import PoolView
from scalable.scaling.task_model import Expectation, Kind, TaskModel

KIND = Kind("a", "fit", None)
MODEL = TaskModel({KIND: Expectation(10.0, None)})


@pytest.mark.parametrize(("view", "workers"), [
    ({}, 0),
    ({"minimum": 2}, 2),
    ({"queued": {KIND: 12}}, 6),
    ({"queued": {KIND: 12}, "slots": 4}, 2),
    ({"queued": {KIND: 12}, "maximum": 3}, 3),
    ({"queued": {KIND: 1}}, 1),
    ({"queued": {KIND: 4}, "running": {KIND: [0.0] * 4}, "busy": 4}, 4),
    ({"running": {KIND: [0.0] * 7}, "busy": 7}, 7),
], ids=str)  # fmt: skip
def test_as_many_workers_as_end_the_work_in_time_and_no_idle_slots(view, workers):
    assert TargetDuration(20.0).decide(PoolView(now=0.0, **view), MODEL).workers == workers


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf")])
def test_a_time_that_is_not_positive_is_refused(seconds):
    with pytest.raises(ValueError, match="target_duration"):
        TargetDuration(seconds)
