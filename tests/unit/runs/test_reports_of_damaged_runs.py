"""Run directories in any state: a report is made of what can be read, or the fault is named."""

import json
import os

import pytest

from scalable.errors import RunError
from scalable.runs.history import read_history
from scalable.runs.overview import run_overviews
from scalable.runs.reading import read_run
from scalable.runs.report.run_report import report_on

ROW = {"task_id": "t-0", "task_name": "größe", "tag": "a", "worker": "a-0", "state": "succeeded"}
ROW |= {"timestamp": 1767225601.0, "duration_s": 1.0, "queued_s": 0.0}


@pytest.fixture
def run(run, monkeypatch):
    monkeypatch.setenv("SCALABLE_RUNS_DIR", str(run.path.parent))
    run.append("workers", {"event": "started", "worker": "a-0", "tag": "a", "timestamp": 1.7e9})
    lines = json.dumps(ROW, ensure_ascii=False) + "\n"
    (run.path / "tasks.jsonl").write_text(lines * 3, encoding="utf-8")
    run.release()
    return run.path


def page_of(path):
    page = report_on(read_run(path)).to_html()
    assert page.endswith("</html>\n")
    return page


def test_a_record_that_is_torn_anywhere_has_a_report(run):
    data = (run / "tasks.jsonl").read_bytes()
    place = data.rindex("ö".encode()) + 1  # in the middle of a character
    for end in (place, place - 3, place - 11, len(data) - 1, len(data) - 2, len(data) - 11):
        (run / "tasks.jsonl").write_bytes(data[:end])
        assert "1 done" in page_of(run)
    (run / "tasks.jsonl").write_bytes(data[:place] + b"\n" + data)
    assert "1 lines of the record cannot be read" in page_of(run)


def test_a_run_of_an_older_version_says_what_it_did_not_record(run):
    value = json.loads((run / "run.json").read_text())
    for key in ("versions", "machine", "workers_by_tag", "boot_id", "pid_namespace"):
        value.pop(key)
    (run / "run.json").write_text(json.dumps(value))
    for name in ("plan.json", "manifest.lock", "scaling.jsonl", "resources.jsonl"):
        (run / name).unlink()
    page = page_of(run)
    assert "not recorded" in page
    assert value["version"] in page


@pytest.mark.parametrize("value", [None, True, -1, 1e308, "x", [], {}, 10**400])
def test_values_of_any_kind_do_not_keep_a_page_from_being_made(run, value):
    keys = ("timestamp", "duration_s", "queued_s", "peak_memory", "calls", "worker", "task_name")
    rows = [{**ROW, key: value} for key in (*keys, "tag", "state", "task_id", "after")]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (run / "tasks.jsonl").write_text(lines)
    row = {"timestamp": value, "tag": value, "worker": value, "event": "started", "from": value}
    for name in ("workers", "scaling", "failures", "resources", "artifacts"):
        (run / f"{name}.jsonl").write_text(
            json.dumps({**row, "details": value, "count": value, "limit": value}) + "\n"
        )
    plan = {"scale_plan": value, "tasks": value, "confidence": value, "predicted_cost": value}
    (run / "plan.json").write_text(json.dumps({**plan, "objective": value, "cost_estimate": value}))
    page_of(run)


@pytest.mark.parametrize(
    "name",
    ["run.json", "summary.json", "plan.json", "manifest.yaml", "tasks.jsonl", "workers.jsonl"],
)
def test_a_pipe_in_the_place_of_a_file_blocks_nothing(run, name):
    """Another user can put one into a shared directory."""
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    listed, _ = run_overviews(run.parent)
    assert [row.run_id for row in listed] == ([] if name == "run.json" else [run.name])
    read_history(run.parent, "p")
    if name == "run.json":
        with pytest.raises(RunError):
            read_run(run)
    else:
        page_of(run)
