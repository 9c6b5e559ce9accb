"""The last line of ``scalable run --resume``: what became of the tasks of the new run."""

from scalable.cache.run_calls import CallLog, Ended, RunCall
from scalable.cache.run_results import RESULTS
from scalable.cli.resuming import Resumed, cached_calls
from scalable.model import ComponentSpec, DeploymentSpec, TaskSpec

KEY = "a" * 64


def spec():
    tasks = {name: TaskSpec(name, "model", cache=name == "grow") for name in ("grow", "total")}
    return DeploymentSpec("p", "t", "local", {"model": ComponentSpec("model")}, tasks=tasks)


def row(task, kind, count=1):
    return {"task_name": task, "tag": "model", "kind": kind, "count": count}


def noted(path, *calls):
    for call in calls:
        CallLog(path / RESULTS / "calls").add(call)
    return path


def test_remembered_calls_are_told_apart_from_those_of_the_resumed_run(tmp_path):
    earlier = noted(tmp_path / "run-1", RunCall("m.total", Ended.KEPT, KEY))
    later = noted(
        tmp_path / "run-2",
        RunCall("m.total", Ended.ANSWERED, KEY, cost_s=2.0, code="c"),
        RunCall("m.total", Ended.KEPT, "b" * 64),
    )
    # Rows about tasks that are not remembered are those of calls that the resumed run answered.
    rows = [row("grow", "found", 3), row("grow", "waited"), row("grow", "missed", 2)]
    rows += [row("total", "found"), row("total", "missed"), {"task_name": ["damaged"]}]
    totals = cached_calls(rows, spec())
    told = Resumed.of(earlier, [later], totals, keeps=True)
    assert (told.answered, told.remembered, told.ran, told.saved_s) == (1, 4, 3, 2.0)
    assert str(told) == ("1 task reused from run-1, 4 cache hits, 3 ran (2 not cached, 1 new)\n")
    assert told.causes == {"not cached": 2, "new": 1}
    none = Resumed.of(earlier, [later], cached_calls((), spec()), keeps=True)
    assert str(none) == "1 task reused from run-1, 1 ran (1 new)\n"


def test_a_run_that_keeps_nothing_does_not_know_how_many_calls_ran(tmp_path):
    totals = cached_calls([row("grow", "found", 3)], spec())
    told = Resumed.of(tmp_path / "run-1", [tmp_path / "run-2"], totals, keeps=False)
    assert str(told) == "0 tasks reused from run-1, 3 cache hits\n"
    assert told.ran is None
