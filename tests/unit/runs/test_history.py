"""What the latest runs of a project tell the next plan."""

import json
import logging

import pytest

from scalable.runs import history
from scalable.runs.calls import RecordedTasks
from scalable.runs.history import CallRecord, NameSpan, read_history


def row(task_id, state, timestamp, name="sim", tag="model", **more):
    return {"task_id": task_id, "task_name": name, "tag": tag, "state": state,
            "timestamp": timestamp, **more}  # fmt: skip


def call(task_id, begin, duration, **more):
    return [
        row(task_id, "submitted", begin),
        row(task_id, "succeeded", begin + duration, duration_s=duration, **more),
    ]


@pytest.fixture
def record(tmp_path):
    """Write a run; ``day`` orders runs."""

    def write(day, rows=(), workers=(), plan=None, **run):
        path = tmp_path / f"run-202601{day:02}T000000Z-p-0000000{day % 10}"
        path.mkdir()
        given = {"project": "p", "target": "t", "status": "completed"} | run
        (path / "run.json").write_text(json.dumps(given))
        (path / "plan.json").write_text(json.dumps(plan or {}))
        for name, lines in (("tasks", rows), ("workers", workers)):
            (path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
        return path

    return write


def test_calls_that_succeeded_are_read_with_what_was_measured(record, tmp_path):
    rows = [
        *call("a", 100.0, 5.0, peak_memory=7, input_bytes=64),
        *call("b", 101.0, 6.0, peak_memory=None),
        row("c", "submitted", 101.0),
        row("c", "failed", 120.0, duration_s=19.0),
        row("d", "succeeded", 110.0, duration_s=None),
        row("e", "succeeded", 110.0, duration_s=1.0, tag=None),
        row("f", "succeeded", 110.0, duration_s=1e299),
    ]
    record(1, rows)
    (run,) = read_history(tmp_path, "p")
    assert run.calls == (CallRecord("model", "sim", 5.0, 7, 64), CallRecord("model", "sim", 6.0))
    assert run.counts == {("model", "sim"): 2}
    assert (run.status, run.target, run.whole) == ("completed", "t", True)
    assert run.span_s == 20.0


def test_the_latest_runs_of_the_project_come_first(record, tmp_path, monkeypatch):
    for day in range(1, 8):
        record(day, call("a", 0.0, float(day)), project="p" if day != 6 else "other")
    found = [run.calls[0].duration_s for run in read_history(tmp_path, "p")]
    assert found == [7, 5, 4, 3, 2, 1]
    monkeypatch.setattr(history, "RUNS", 2)
    assert len(read_history(tmp_path, "p")) == 2
    monkeypatch.setattr(history, "LOOKED_AT", 2)
    assert len(read_history(tmp_path, "p")) == 1
    assert read_history(tmp_path / "nowhere", "p") == []


def test_of_large_runs_only_the_end_is_read(record, tmp_path, monkeypatch):
    rows = [r for i in range(100) for r in call(str(i), float(i), float(i))]
    record(1, rows)
    record(2, rows)
    monkeypatch.setattr(history, "BYTES_OF_A_RUN", 2000)
    first, _second = read_history(tmp_path, "p")
    assert 5 < len(first.calls) < 20
    assert first.calls[-1].duration_s == 99
    assert (first.whole, first.span_s) == (False, None)
    monkeypatch.setattr(history, "BYTES", 2000)
    monkeypatch.setattr(history, "_found", {})
    assert len(read_history(tmp_path, "p")) == 1


def test_a_broken_run_is_passed_over_without_a_warning(record, tmp_path, caplog):
    record(1, call("a", 0.0, 1.0))
    (record(2) / "run.json").write_text("{")
    torn = record(3, call("a", 0.0, 3.0))
    with (torn / "tasks.jsonl").open("a") as file:
        file.write('no json\n[1]\n{"state": "succeeded"')
    unreadable = record(4, call("a", 0.0, 4.0))
    (unreadable / "tasks.jsonl").unlink()
    (unreadable / "tasks.jsonl").mkdir()
    with caplog.at_level(logging.DEBUG):
        found = [run.calls[0].duration_s for run in read_history(tmp_path, "p")]
    assert found == [3, 1]
    # Each later run reads it: `scalable runs` names it, and others stay silent.
    assert [record.levelname for record in caplog.records] == ["DEBUG", "DEBUG"]
    assert "20260102" in caplog.text
    assert "20260104" in caplog.text


def test_starts_of_workers_and_predictions_are_read(record, tmp_path):
    workers = [
        {"event": "requested", "worker": "w", "tag": "model", "timestamp": 1.0},
        {"event": "started", "worker": "w", "tag": "model", "timestamp": 31.0},
        {"event": "started", "worker": "unasked", "tag": "model", "timestamp": 32.0},
    ]
    plan = {"predicted_time_s": 50.0, "overhead": 1.5}
    record(1, call("a", 40.0, 10.0), workers, plan)
    record(2, call("a", 40.0, 10.0), (), {"predicted_time_s": "soon"})
    bare, told = read_history(tmp_path, "p")
    assert told.startups_s == (("model", 30.0),)
    assert (told.predicted_s, told.overhead, told.span_s) == (50.0, 1.5, 40.0)
    assert (bare.predicted_s, bare.overhead, bare.span_s) == (None, 1.0, 10.0)


@pytest.mark.parametrize(("task", "predicted_s"), [
    ({"counted": "manifest", "source": "history"}, 50.0),
    ({"counted": "guess", "source": "history"}, None),
    ({"counted": "manifest", "source": "guess"}, None),
])  # fmt: skip
def test_a_guess_is_no_prediction(record, tmp_path, task, predicted_s):
    plan = {"predicted_time_s": 50.0, "tasks": {"sim": task}}
    record(1, call("a", 40.0, 10.0), (), plan)
    (told,) = read_history(tmp_path, "p")
    assert told.predicted_s == predicted_s


def test_found_results_teach_no_times_and_count_as_calls(record, tmp_path):
    plan = {"predicted_time_s": 3600.0, "tasks": {"sim": {"counted": "manifest"}}}
    rows = [*call("a", 100.0, 5.0), row("b", "submitted", 100.0)]
    rows.append(row("b", "found", 100.1, duration_s=0.01))
    path = record(1, rows, plan=plan)
    (run,) = read_history(tmp_path, "p")
    assert run.predicted_s == 3600.0
    told = [{"task_name": "sim", "tag": "model", "kind": kind, "count": count, "timestamp": 0.0}
            for kind, count in (("found", 8), ("missed", 1))]  # fmt: skip
    (path / "remembered.jsonl").write_text("".join(json.dumps(r) + "\n" for r in told))
    (run,) = read_history(tmp_path, "p")
    assert [each.duration_s for each in run.calls] == [5.0]
    assert run.counts == {("model", "sim"): 9}
    assert run.predicted_s is None  # it expected nine calls to run, and one did


def test_the_start_of_workers_counts_once_and_idle_time_before_the_calls_does_not():
    rows = call("a", 100.0, 10.0)

    def span(requested, started):
        workers = [{"event": "requested", "timestamp": requested}]
        workers.append({"event": "started", "timestamp": started})
        return sum(RecordedTasks(rows).work_parts(workers))

    assert span(50.0, 55.0) == 5 + 10
    assert span(95.0, 105.0) == 5 + 10  # the calls waited for the rest of it
    assert span(100.0, 105.0) == 10
    assert RecordedTasks(rows).work_parts([]) == (0, 10)
    assert RecordedTasks([]).work_parts([]) is None


def test_the_span_of_a_task_is_from_its_first_begin_to_its_last_end(record, tmp_path):
    rows = [
        *call("a", 10.0, 5.0),
        *call("b", 12.0, 9.0),
        *call("c", 20.0, 1.0, name="sum", tag="post"),
        *call("d", 1.0, 1.0, name="many", calls={"count": 3, "failed": 0, "total_s": 1.0,
                                                 "quantiles_s": {"0": 0.3, "1": 0.4}}),
    ]  # fmt: skip
    record(1, rows)
    (run,) = read_history(tmp_path, "p")
    first, second = run.spans["model", "sim"], run.spans["post", "sum"]
    assert (first, second) == ((10.0, 21.0), (20.0, 21.0))
    assert second.overlaps(first)
    assert not NameSpan(21.0, 30.0).overlaps(first)
    # Calls in bundles have no times of their own.
    assert set(run.spans) == {("model", "sim"), ("post", "sum")}
