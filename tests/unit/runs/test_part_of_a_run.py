"""The part of a run that was recorded after a moment."""

import pytest

from scalable.runs.reading import RunPart
from scalable.runs.summary import summarize


def moved(task_id, *states):
    return [
        {"task_id": task_id, "task_name": "fit", "tag": "a", "state": state} for state in states
    ]


def test_calls_of_others_do_not_count_and_their_workers_do(run):
    run.extend("tasks", moved("ended", "submitted", "succeeded"))
    run.extend("tasks", moved("other", "submitted", "running"))
    events = [("started", "w-0"), ("started", "w-1"), ("removed", "w-0")]
    row = {"tag": "a", "timestamp": 0.0}
    run.extend("workers", [{"event": event, "worker": worker} | row for event, worker in events])
    run.append("scaling", {"action": "scale-up"})
    part = RunPart(run.path)
    run.extend("tasks", moved("other", "failed"))
    run.append("failures", {"failure_class": "ValueError", "details": {"task_id": "other"}})
    run.extend("tasks", moved("mine", "submitted", "failed"))
    run.append("failures", {"failure_class": "TypeError", "details": {"task_id": "mine"}})
    run.extend("tasks", moved("ended", "submitted", "succeeded"))  # the same call once more
    record = part.read("failed", 1)
    summary = summarize(record)
    assert (summary.status, summary.exit_code) == ("failed", 1)
    assert summary.tasks == {"succeeded": 1, "failed": 1}
    assert [cause.failure_class for cause in summary.failures] == ["TypeError"]
    assert summary.workers["a"].started == 1
    assert summary.scaling_changes == ()
    assert summarize(record) == summary
    run.extend("tasks", moved("later", "submitted", "succeeded"))
    assert summarize(record) == summary
    assert summarize(part.read()).tasks == {"succeeded": 2, "failed": 1}


def test_it_has_ended_when_all_its_calls_have(run):
    run.extend("tasks", moved("other", "submitted"))
    part = RunPart(run.path)
    run.extend("tasks", moved("other", "running"))
    assert part.has_ended()
    run.extend("tasks", moved("one", "submitted", "running"))
    assert not part.has_ended()
    run.extend("tasks", [*moved("two", "submitted"), *moved("one", "succeeded")])
    assert not part.has_ended()
    run.extend("tasks", moved("two", "found"))
    assert part.has_ended()
    run.extend("tasks", moved("one", "rerun"))  # its result was lost
    assert not part.has_ended()
    run.extend("tasks", moved("one", "cancelled"))
    assert part.has_ended()


@pytest.mark.parametrize("written", [1, 20, -2, -1], ids=["begun", "half", "brace", "line feed"])
def test_a_row_that_is_partly_written_belongs_to_the_part(run, written):
    row = '{"task_id":"one","task_name":"fit","state":"submitted"}\n'
    with (run.path / "tasks.jsonl").open("a") as file:
        file.write(row[:written])
        file.flush()
        part = RunPart(run.path)
        file.write(row[written:])
    assert not part.has_ended()
    assert summarize(part.read()).tasks == {"submitted": 1}


def test_values_of_any_kind_are_passed_over(run):
    run.extend("tasks", [{"task_id": [], "state": {}}, {"state": "succeeded"}, *moved("a", "x")])
    part = RunPart(run.path)
    run.extend("tasks", [{"task_id": [], "state": {}}, {"task_id": {}, "state": "succeeded"}])
    run.append("failures", {"details": {"task_id": []}})
    assert part.has_ended()
    assert summarize(part.read()).tasks == {}
