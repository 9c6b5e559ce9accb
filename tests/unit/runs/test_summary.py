"""What rows add up to."""

from pathlib import Path

import pytest

from scalable.model.overview import TaskCounts
from scalable.runs.reading import RunRecord
from scalable.runs.summary import PoolSummary, summarize

RUN = {"run_id": "run-x", "started_at": "2026-01-01T00:00:00+00:00", "ended_at": None}
START = 1767225600.0
NONE = vars(TaskCounts())


def of(*, run=RUN, status="completed", **streams):
    return summarize(RunRecord(path=Path("run-x"), run=run, status=status, **streams))


def task(task_id, *states, name="sim", tag="demeter", **final):
    return [
        {"task_id": task_id, "task_name": name, "tag": tag, "state": s, "timestamp": START}
        | (final if s in {"succeeded", "failed", "cancelled"} else {})
        for s in states
    ]


def worker(name, *events, tag="demeter"):
    rows = []
    for text in events:
        event, _, reason = text.partition(":")
        row = {"event": event, "worker": name, "tag": tag, "timestamp": START}
        rows.append(row | {"reason": reason or None})
    return rows


def test_spreads_are_of_the_last_final_rows():
    rows = [
        *task("a", "running", "failed", duration_s=99.0, queued_s=9.0, peak_memory=9, cpu_s=9.0),
        *task("a", "running", "succeeded", duration_s=1.0, queued_s=0.5, peak_memory=100, cpu_s=2),
        *task("b", "running", "succeeded", duration_s=3.0, queued_s=1.5, peak_memory=300, cpu_s=4),
        *task("c", "running", "succeeded", duration_s=None, peak_memory=None),
        *task("d", "running", name="other", tag=None),
    ]
    names = of(tasks=rows).to_dict()["task_names"]
    assert names["sim"] == {
        "count": 3,
        "failed": 0,
        "counts": {**NONE, "done": 3},
        "tags": ["demeter"],
        "duration_s": {
            "q50": 2.0, "q80": pytest.approx(2.6), "q95": pytest.approx(2.9), "max": 3.0,
            "mean": 2.0, "total": 4.0,
        },
        "queued_s": {
            "q50": 1.0, "q80": pytest.approx(1.3), "q95": pytest.approx(1.45), "max": 1.5,
            "mean": 1.0, "total": 2.0,
        },
        "peak_memory": {
            "q50": 200.0, "q80": pytest.approx(260.0), "q95": pytest.approx(290.0), "max": 300,
            "mean": 200.0, "total": 400.0,
        },
        "cpu_s": 6,
        "found": 0,
    }  # fmt: skip
    assert names["other"] == {
        "count": 1, "failed": 0, "tags": [], "duration_s": None, "queued_s": None,
        "peak_memory": None, "cpu_s": None, "found": 0, "counts": {**NONE, "running": 1},
    }  # fmt: skip


def test_workers_that_were_there_at_the_end_are_not_removed():
    rows = [
        *worker("w0", "requested", "started", "removed:scale-down"),
        *worker("w1", "requested", "started", "removed:lost: exit code -9"),
        *worker("w2", "requested", "started", "removed"),
        *worker("w3", "requested", "started", "removed:closed"),
        *worker("w4", "requested", "started"),
        *worker("w5", "requested", "removed:scale-down"),
        *worker("p0", "started", "removed:closed", tag="post"),
    ]
    assert of(workers=rows).workers == {
        "demeter": PoolSummary(5, 3, 2, requested=6, lost=1, lost_reasons={"exit code -9": 1}),
        "post": PoolSummary(started=1, removed=0, final=1),
    }


def test_a_worker_that_is_restarted_under_its_name_counts_again():
    rows = worker("w0", "started", "removed:lost", "removed:lost", "started", "started")
    assert of(workers=rows).workers["demeter"] == PoolSummary(
        2, 1, 1, lost=1, lost_reasons={"reason not known": 1}
    )


def test_a_worker_without_tag_has_a_line_of_its_own():
    rows = [{"event": "started", "worker": "w0", "tag": None, "timestamp": START}]
    assert of(workers=rows).workers == {"(no tag)": PoolSummary(started=1, final=1)}


TRACEBACK = """Traceback (most recent call last):
  File "/env/lib/python3.11/concurrent/futures/thread.py", line 58, in run
    result = self.fn()
  File "workflow.py", line 12, in simulate
    solve(matrix)
  File "/env/lib/python3.11/site-packages/numpy/linalg/linalg.py", line 89, in _raise
    raise LinAlgError("singular")
"""


def test_failures_by_class_with_the_first_as_the_example():
    rows = [
        {"failure_class": "OSError", "message": "rare", "details": None},
        {
            "failure_class": "LinAlgError",
            "message": "first",
            "details": {"traceback": TRACEBACK, "task_id": "a"},
        },
        {"failure_class": "LinAlgError", "message": "second"},
        {"message": 17},
    ]
    failures = of(failures=rows).to_dict()["failures"]
    assert failures["count"] == 4
    assert list(failures["classes"]) == ["LinAlgError", "OSError", "unknown"]
    assert failures["classes"]["LinAlgError"] == {
        "count": 2, "message": "first", "frame": "workflow.py:12 in simulate", "task_id": "a",
        "arguments": None, "worker": None, "tries": 1,
    }  # fmt: skip
    assert failures["classes"]["OSError"]["frame"] is None


def test_the_end_of_the_script_is_no_failure_of_a_call():
    exit_ = {"failure_class": "SystemExit", "message": "3", "details": {"phase": "workflow"}}
    call = {"failure_class": "LinAlgError", "message": "first", "details": {"phase": "run"}}
    summary = of(run={**RUN, "error": "SystemExit: 3"}, failures=[call, exit_])
    assert [(cause.count, cause.failure_class) for cause in summary.failures] == [
        (1, "LinAlgError")
    ]
    assert summary.error == "SystemExit: 3"


def test_a_traceback_only_of_installed_packages_still_has_a_frame():
    packaged = TRACEBACK.replace("workflow.py", "/env/site-packages/a.py").replace(
        "python3.11/concurrent", "site-packages"
    )
    rows = [{"failure_class": "E", "message": "", "details": {"traceback": packaged}}]
    frame = of(failures=rows).failures[0].frame
    assert frame is not None
    assert frame.endswith("linalg.py:89 in _raise")


def test_duration_of_a_closed_run():
    run = {**RUN, "ended_at": "2026-01-01T01:00:00+01:30"}
    assert of(run={**RUN, "ended_at": "2026-01-01T00:01:40+00:00"}).duration_s == 100.0
    assert of(run=run).duration_s == 0.0, "an end before the start"


def test_duration_of_an_interrupted_run_is_up_to_its_last_row():
    streams = {
        "tasks": [{"timestamp": START + 10}],
        "resources": [{"timestamp": START + 30.5}, {"timestamp": None}],
    }
    assert of(status="interrupted", **streams).duration_s == 30.5
    assert of(status="interrupted").duration_s is None
