"""``scalable report``."""

import json

import pytest

from scalable.runs.directory import RunDirectory
from scalable.runs.reading import read_run
from scalable.runs.report.run_report import report_on


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = []
    for project in ("first", "second"):
        run = RunDirectory.create(
            project, "local", manifest_yaml="", manifest_lock="0" * 64, plan={}, provider="local"
        )
        row = {"event": "started", "worker": "a-0", "tag": "a", "timestamp": 0.0}
        run.append("workers", row)
        run.close("completed")
        made.append(run)
    return made


def test_the_latest_run_is_the_default(runs, invoke):
    result = invoke("report")
    report = report_on(read_run(runs[1].path))
    assert (result.code, result.out, result.err) == (0, str(report), "")
    assert result.out.startswith(f"Run {runs[1].run_id}\nStatus:   completed\n")
    assert "Workers:\n  pool  started  final\n  a           1      1\n" in result.out
    assert invoke("report", "--latest") == result
    value = json.loads(invoke("report", "--format", "json").out)
    assert value["version"] == 1
    assert value["report"]["run_id"] == runs[1].run_id


def test_a_run_by_its_name_or_its_beginning(runs, invoke):
    first = runs[0].run_id
    result = invoke("report", first)
    assert result.out.startswith(f"Run {first}\n")
    assert invoke("report", first[:-2]) == invoke("report", "--run-id", first) == result
    assert invoke("report", "latest") == invoke("report")


def test_runs_elsewhere(runs, invoke, tmp_path, monkeypatch):
    moved = tmp_path / "moved"
    (tmp_path / ".scalable" / "runs").rename(moved)
    assert invoke("report").code == 6
    assert runs[1].run_id in invoke("report", "--runs-dir", moved).out
    monkeypatch.setenv("SCALABLE_RUNS_DIR", str(moved))
    assert runs[1].run_id in invoke("report").out


def test_a_report_in_a_file(runs, invoke, tmp_path):
    assert invoke("report", "--output", "r.txt").err == "wrote r.txt\n"
    assert (tmp_path / "r.txt").read_text() == invoke("report").out
    assert invoke("report", "--output", "r.json", "--format", "quiet").err == ""
    assert json.loads((tmp_path / "r.json").read_text())["report"]["project"] == "second"


def test_no_run_is_an_error_that_says_how_to_record_one(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke("report")
    assert (result.code, result.out) == (6, "")
    assert "contains no recorded run" in result.err
    assert "hint: record one with `scalable run`" in result.err
    assert json.loads(invoke("report", "--format", "json").out)["error"]["code"] == "E_RUN"


def test_a_damaged_run_is_an_error_that_names_the_file_and_the_fault(invoke, tmp_path, monkeypatch):
    monkeypatch.setenv("SCALABLE_RUNS_DIR", str(tmp_path))
    (tmp_path / "run-20260101T000000Z-a-1").mkdir()
    assert (
        "run-20260101T000000Z-a-1 is not a recorded run: its run.json is missing"
        in invoke("report").err
    )
    file = tmp_path / "run-20260102T000000Z-a-2" / "run.json"
    file.parent.mkdir()
    for content, fault in {
        '{"project": "a",\n "status" "completed"}': ":2:11 is damaged: Expecting ':' delimiter",
        "[1]": " is not a JSON object",
    }.items():
        file.write_text(content)
        for arguments in ((), ("run-20260102",)):
            result = invoke("report", *arguments)
            assert result.code == 6
            assert f"{file.parent} is not a recorded run: its run.json{fault}" in result.err


def test_two_runs_cannot_be_meant(runs, invoke):
    assert invoke("report", "--latest", "--run-id", runs[0].run_id).code == 2
    assert invoke("report", "--latest", runs[0].run_id).code == 2


def test_a_page_by_its_format_or_by_the_suffix_of_its_file(runs, invoke, tmp_path):
    page = invoke("report", "--format", "html").out
    assert page.startswith("<!doctype html>")
    assert runs[1].run_id in page
    assert invoke("report", "-o", "r.html").err == "wrote r.html\n"
    assert (tmp_path / "r.html").read_text() == page
    assert invoke("report", "-o", "r.txt", "--format", "html").code == 0
    assert (tmp_path / "r.txt").read_text() == page


def test_two_runs_are_compared(runs, invoke):
    first, second = (run.run_id for run in runs)
    result = invoke("report", "--compare", first, second)
    assert result.code == 0
    assert result.out.startswith(f"First:  {first}\nSecond: {second}\n\n")
    rows = [line.split() for line in result.out.splitlines()[4:]]
    assert ["tasks", "0", "0", "-"] in rows
    value = json.loads(invoke("report", "--compare", first, second, "--format", "json").out)
    compared = value["comparison"]
    assert compared["run"] == {"first": first, "second": second}
    assert compared["tasks"] == {"first": 0, "second": 0}
    assert "version of scalable" not in compared
    assert invoke("report", "--compare", first, second, "--latest").code == 2
    assert invoke("report", "--compare", first, "run-x").code == 6
