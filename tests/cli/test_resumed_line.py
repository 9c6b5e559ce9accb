"""The last line of ``scalable run --resume``: what became of the tasks of the new run."""

from scalable.cache.resume import DESPITE_CODE, NOT_ASKED, NOT_KEPT
from scalable.cli.resuming import Resumed, unkept


def row(task, kind, count=1, **others):
    return {"task_name": task, "tag": "model", "kind": kind, "count": count, **others}


def test_cached_tasks_are_told_apart_from_those_of_the_resumed_run(tmp_path):
    rows = [
        row("grow", "found", 3),
        row("grow", "missed", 2),
        row("total", "found", saved_s=2.0, resumed="run-1"),
        row("total", "found", saved_s=1.0, resumed="run-1", reason=DESPITE_CODE),
        row("total", "missed", resumed="run-1", changed=["argument:x"]),
        row("total", "missed", resumed="run-1", changed=["argument:x", "code:m.total"]),
        row("total", "missed", resumed="run-1", changed=["package:numpy"]),
        row("total", "missed", resumed="run-1", reason=NOT_KEPT + "x is a lock"),
        row("total", "missed", resumed="run-1", reason=NOT_KEPT + NOT_ASKED),
        {"task_name": ["damaged"]},
    ]
    told = Resumed.of(tmp_path / "run-1", rows)
    assert (told.answered, told.despite_code, told.remembered) == (2, 1, 3)
    assert (told.ran, told.saved_s) == (7, 3.0)
    assert str(told) == (
        "2 tasks reused from run-1 (1 despite changed code), 3 cache hits, 7 ran (2 not cached, "
        "1 without a kept result, 1 changed code, 1 changed environment, 1 without a key, "
        "1 with cache=False)\n"
    )
    assert unkept(rows) == ["results of total are not kept: x is a lock (1 task)"]


def test_a_run_without_results_of_the_resumed_one_does_not_know_how_many_tasks_ran(tmp_path):
    told = Resumed.of(tmp_path / "run-1", [row("grow", "found", 3)])
    assert str(told) == "0 tasks reused from run-1, 3 cache hits\n"
    assert told.ran is None


def test_the_line_of_a_killed_run_says_that_tasks_are_missing(tmp_path):
    rows = [row("grow", "found", 3, resumed="run-1")]
    assert str(Resumed.of(tmp_path / "run-1", rows, is_complete=False)) == (
        "3 tasks reused from run-1, 0 ran; the run was killed: its last tasks are not counted\n"
    )
