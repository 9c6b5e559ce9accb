"""Plans of runs that resume another: calls that are answered do not run."""

from scalable.planning import Knowledge, make_plan
from scalable.planning.work import expected_calls
from scalable.spec import ComponentSpec, DeploymentSpec, TaskSpec


def spec(count):
    tasks = {"a": TaskSpec("a", "model", count=count, duration_s=10.0)}
    return DeploymentSpec("p", "t", "local", {"model": ComponentSpec("model")}, tasks=tasks)


def test_answered_calls_are_subtracted_and_no_more_than_there_are():
    for answered, running in ((0, 5), (3, 2), (5, 0), (9, 0)):
        (calls,) = expected_calls(spec(5), Knowledge(answered={"a": answered}), {})
        assert (calls.count, calls.answered) == (running, 5 - running)


def test_the_predicted_time_is_that_of_the_calls_that_run():
    whole = make_plan(spec(10), "0" * 64)
    rest = make_plan(spec(10), "0" * 64, Knowledge(answered={"a": 8}))
    assert rest.predicted_time_s < whole.predicted_time_s / 3
    assert rest.tasks["a"].answered == 8
    assert make_plan(spec(10), "0" * 64, Knowledge(answered={"a": 10})).tasks["a"].calls == 0
