"""Measurements that a run writes down for the next plan, beside those that are read from its rows."""

import json
import stat
from collections import Counter

import pytest

from scalable.runs import history, reading
from scalable.runs.directory import RunDirectory, amend_status
from scalable.runs.history import CALLS_OF_A_TASK, read_history

FILE = "measurements.json"
WORKERS = [
    {"event": "requested", "worker": "w-0", "tag": "model", "timestamp": 0.0},
    {"event": "started", "worker": "w-0", "tag": "model", "timestamp": 2.0},
]


def rows_of(number, name, tag="model", **more):
    """Return the rows of a call that ends at its number and took a thousandth of it."""
    call = {"task_id": f"{name}-{number}", "task_name": name, "tag": tag}
    end = {"state": "succeeded", "timestamp": float(number), "duration_s": number / 1000}
    return [
        {**call, "state": "submitted", "timestamp": 0.0},
        {**call, "worker": "w-0", "peak_memory": number, "input_bytes": 64} | end | more,
    ]


@pytest.fixture
def run(run):
    run.extend("workers", WORKERS)
    return run


def read(run):
    (found,) = read_history(run.path.parent, "p")
    return found


def test_they_are_those_of_the_rows(run):
    bundle = {"count": 3, "failed": 1, "total_s": 6.0, "quantiles_s": {"0": 1.0, "1": 3.0}}
    run.extend("tasks", [r for n in range(1, 30) for r in rows_of(n, "fit" if n % 3 else "sum")])
    run.extend("tasks", rows_of(31, "many", tag="post", calls=bundle))
    run.extend("tasks", rows_of(32, "failed", state="failed"))
    # A task that ran again counts once.
    run.extend("tasks", [row for _ in range(2) for row in rows_of(28, "fit")])
    hit = {"task_name": "fit", "tag": "model", "kind": "found", "count": 7, "timestamp": 0.0}
    run.extend("remembered", [hit])
    run.close("completed")
    written = read(run)
    (run.path / FILE).unlink()
    assert written == read(run)
    assert written.counts == {("model", "fit"): 20 + 7, ("model", "sum"): 9, ("post", "many"): 2}
    assert written.span_s == 32.0


def test_only_the_owner_can_read_them(run):
    run.close("completed")
    assert stat.S_IMODE((run.path / FILE).stat().st_mode) == 0o600


def test_of_a_large_run_all_calls_count_and_a_sample_of_each_task_is_kept(run, monkeypatch):
    numbers = range(1, 3 * CALLS_OF_A_TASK)
    run.extend("tasks", [row for n in numbers for row in rows_of(n, "fit")])
    run.extend("tasks", rows_of(len(numbers) + 1, "sum"))
    run.close("completed")
    monkeypatch.setattr(history, "BYTES_OF_A_RUN", 10_000)
    found = read(run)
    assert found.whole
    assert found.counts == {("model", "fit"): len(numbers), ("model", "sum"): 1}
    assert found.spans["model", "fit"] == (1.0 - 0.001, float(len(numbers)))
    kept = [call.duration_s for call in found.calls if call.task == "fit"]
    assert len(kept) == len(set(kept)) == CALLS_OF_A_TASK
    assert set(kept) <= {number / 1000 for number in numbers}
    assert kept == sorted(kept)
    assert found.calls[-1].task == "sum"
    # Of each third of the calls, about a third of the sample comes.
    thirds = [sum(part <= 1000 * s / CALLS_OF_A_TASK < part + 1 for s in kept) for part in range(3)]
    assert all(250 < third < 420 for third in thirds)
    (run.path / FILE).unlink()
    assert not read(run).whole


def test_tasks_of_a_run_share_the_calls_that_are_kept(run, monkeypatch):
    monkeypatch.setattr(history, "CALLS_OF_A_RUN", 60)
    monkeypatch.setattr(history, "LEAST_CALLS_OF_A_TASK", 5)
    run.extend("tasks", [row for n in range(1, 300) for row in rows_of(n, f"task-{n % 6}")])
    run.extend("tasks", rows_of(300, "rare"))
    run.close("completed")
    found = read(run)
    kept = Counter(call.task for call in found.calls)
    assert kept == {**{f"task-{n}": 60 // 7 for n in range(6)}, "rare": 1}
    assert max(call.duration_s for call in found.calls[:-1]) > 0.2 > found.calls[0].duration_s
    assert sum(found.counts.values()) == 300
    monkeypatch.setattr(history, "CALLS", 0)
    assert read_history(run.path.parent, "p") == []


def test_rows_that_come_later_are_not_missed(run):
    run.extend("tasks", rows_of(1, "fit"))
    run.close("completed")
    for stream, row in (("tasks", rows_of(2, "fit")[1]), ("workers", {}), ("remembered", {})):
        with (run.path / f"{stream}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        assert history._written(run.path) is None, stream
        assert read(run).counts["model", "fit"] == 2
        amend_status(run.path, "failed")
        assert history._written(run.path) is not None, stream
        assert read(run).counts["model", "fit"] == 2


def test_damaged_ones_are_not_used(run):
    run.extend("tasks", [row for n in range(1, 9) for row in rows_of(n, "fit")])
    run.close("completed")
    path, whole = run.path / FILE, read(run)
    told = path.read_bytes()
    for place in range(0, len(told), 7):
        path.write_bytes(told[:place])
        assert history._written(run.path) is None
        path.write_bytes(told[:place] + b"7" + told[place + 1 :])
        assert (history._written(run.path) is None) == (told[place : place + 1] != b"7")
    assert read(run) == whole


def test_those_of_another_version_are_not_used(run, monkeypatch):
    run.extend("tasks", rows_of(1, "fit"))
    with monkeypatch.context() as patch:
        patch.setattr(history, "VERSION", 0)
        run.close("completed")
        assert history._written(run.path) is not None
    assert history._written(run.path) is None


def test_a_run_that_did_not_end_has_none_and_is_read(run):
    run.extend("tasks", rows_of(1, "fit"))
    run.release()
    assert not (run.path / FILE).exists()
    assert read(run).counts == {("model", "fit"): 1}
    assert not (run.path / FILE).exists()


def create(runs_dir):
    return RunDirectory.create(
        "q", "local", manifest_yaml="", manifest_lock="", plan={}, runs_dir=runs_dir
    )


@pytest.mark.parametrize("bytes_of_a_run", [history.BYTES_OF_A_RUN, 200])
def test_what_plans_find_out_about_a_killed_run_is_kept_by_the_next_run(
    run, monkeypatch, bytes_of_a_run
):
    monkeypatch.setattr(history, "BYTES_OF_A_RUN", bytes_of_a_run)
    run.extend("tasks", [row for n in range(1, 9) for row in rows_of(n, "fit")])
    run.release()
    monkeypatch.setattr(reading, "process_gone", lambda *_: True)
    found = read(run)
    assert found.calls
    assert not (run.path / FILE).exists()  # a plan writes nothing
    create(run.path.parent).release()
    monkeypatch.setattr(history, "measure", None)
    assert read(run) == found


def test_what_plans_find_out_about_a_run_that_goes_on_is_not_kept(run):
    run.extend("tasks", rows_of(1, "fit"))
    read(run)
    create(run.path.parent).release()
    assert not (run.path / FILE).exists()
