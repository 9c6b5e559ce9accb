"""Writing a run: its files, its ends, and the disk that fails."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import scalable.runs.directory as directory_module
from scalable.errors import RunError
from scalable.runs.directory import RunDirectory, amend_status
from scalable.runs.reading import read_run
from scalable.runs.report.run_report import report_on

PLAN = {"scale_plan": {"workers_by_tag": {"demeter": 2}}}


@pytest.fixture
def create(tmp_path):
    opened = []

    def make(project="climate", runs_dir=tmp_path / "runs", **kwargs):
        run = RunDirectory.create(
            project,
            "local",
            manifest_yaml="version: 1\n",
            manifest_lock="ab" * 32,
            plan=PLAN,
            runs_dir=runs_dir,
            provider="local",
            **kwargs,
        )
        opened.append(run)
        return run

    yield make
    for run in opened:
        run.release()


def final_row(task_id, state="succeeded", **fields):
    return {"task_id": task_id, "task_name": "sim", "tag": "demeter", "state": state, **fields}


@pytest.mark.parametrize(
    ("project", "slug"),
    [("../../etc", "etc"), ("a b/c\n", "a-b-c"), ("ü", "project"), ("x" * 300, "x" * 40)],
)
def test_the_project_is_made_safe_for_a_file_name(create, tmp_path, project, slug):
    run = create(project)
    assert run.path.parent == tmp_path / "runs"
    assert run.run_id.split("-", 2)[2].rpartition("-")[0] == slug
    assert read_run(run.path).run["project"] == project


def test_git_ignores_records_in_their_usual_place(create, tmp_path):
    create()
    create(runs_dir=tmp_path / ".scalable" / "runs")
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob(".gitignore")] == [
        ".scalable/.gitignore"
    ]
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    shown = subprocess.run(
        ["git", "-C", tmp_path, "status", "--short"], check=True, capture_output=True, text=True
    )
    assert ".scalable" not in shown.stdout
    (tmp_path / ".scalable" / ".gitignore").write_text("mine")
    create(runs_dir=tmp_path / ".scalable" / "runs")
    assert (tmp_path / ".scalable" / ".gitignore").read_text() == "mine"


def test_a_name_that_is_taken_is_tried_again(create, monkeypatch):
    hashes = iter(["aaaaaaaa", "aaaaaaaa", "bbbbbbbb"])

    class Clock(directory_module.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 11, 20, 22, 45, tzinfo=tz)

    fake = SimpleNamespace(token_hex=lambda size: next(hashes))
    monkeypatch.setattr(directory_module, "secrets", fake)
    monkeypatch.setattr(directory_module, "datetime", Clock)
    assert create().run_id == "run-20261120T224500Z-climate-aaaaaaaa"
    assert create().run_id == "run-20261120T224500Z-climate-bbbbbbbb"


def test_a_place_that_cannot_be_written_to_says_the_way_out(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="SCALABLE_TELEMETRY=0"):
        RunDirectory.create(
            "p", "t", manifest_yaml="", manifest_lock="", plan={}, runs_dir=tmp_path / "file"
        )


def test_an_unknown_stream_is_an_error(create):
    with pytest.raises(ValueError, match="tasks, workers"):
        create().append("task", {})


def test_close_waits_for_a_write_that_is_under_way(create, monkeypatch):
    run = create()
    real = os.write
    closer = threading.Thread(target=run.close, args=("completed",))

    def slow_write(descriptor, data):
        closer.start()
        closer.join(0.1)
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", slow_write)
    run.append("tasks", final_row("a"))
    monkeypatch.undo()
    closer.join(10)
    record = read_run(run.path)
    assert record.status == "completed"
    assert [row["task_id"] for row in record.tasks] == ["a"]


WRITER = """
import sys
from scalable.runs.directory import RunDirectory
run = RunDirectory.open(sys.argv[1])
sys.stdin.read(1)
for number in range(300):
    row = {"task_id": f"{sys.argv[2]}-{number}", "filler": sys.argv[2] * 3000}
    run.extend("tasks", [row] * 5)
run.release()
"""


def test_two_processes_append_at_once_without_tearing_lines(create):
    run = create()
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, run.path, name], stdin=subprocess.PIPE)
        for name in "ab"
    ]
    for writer in writers:
        writer.stdin.write(b"g")
        writer.stdin.close()
    assert [writer.wait(60) for writer in writers] == [0, 0]
    record = read_run(run.path)
    assert record.malformed_lines == 0
    assert len(record.tasks) == 2 * 300 * 5
    names = [row["task_id"] for row in record.tasks]
    assert all(names[i : i + 5] == [names[i]] * 5 for i in range(0, len(names), 5))


def test_close_writes_status_and_summary_and_the_first_status_wins(create):
    run = create()
    run.extend("tasks", [final_row("a"), final_row("b", "failed")])
    run.close("failed", error="it broke", exit_code=3)
    first = (run.path / "run.json").read_text()
    run.close("completed")
    run.append("tasks", final_row("late"))
    assert (run.path / "run.json").read_text() == first
    about = json.loads(first)
    assert (about["status"], about["error"], about["exit_code"]) == ("failed", "it broke", 3)
    assert about["failed_tasks"] == 1
    assert about["ended_at"] >= about["started_at"]
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["tasks"] == {"succeeded": 1, "failed": 1}
    assert len(read_run(run.path).tasks) == 2


def test_the_first_status_wins_across_processes_too(create):
    run = create()
    other = RunDirectory.open(run.path)
    run.close("cancelled")
    other.close("completed")
    assert read_run(run.path).status == "cancelled"


def test_release_leaves_the_status_to_others(create):
    run = create()
    other = RunDirectory.open(run.path)
    other.append("tasks", final_row("a"))
    other.release()
    other.close("failed")
    assert read_run(run.path).status == "running"
    run.close("completed")
    assert read_run(run.path).status == "completed"


def test_amend_status_rewrites_run_and_summary(create):
    run = create()
    run.close("completed", error="kept")
    ended_at = read_run(run.path).run["ended_at"]
    amend_status(run.path, "failed", 3)
    about = read_run(run.path).run
    assert (about["status"], about["exit_code"], about["error"]) == ("failed", 3, "kept")
    assert about["ended_at"] == ended_at
    summary = json.loads((run.path / "summary.json").read_text())
    assert (summary["status"], summary["exit_code"]) == ("failed", 3)
    amend_status(run.path, "cancelled")
    assert read_run(run.path).run["exit_code"] == 3


def test_amend_status_of_no_run_is_an_error(tmp_path):
    with pytest.raises(RunError, match="missing"):
        amend_status(tmp_path / "run-none", "failed")


def test_joining_a_run_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(RunError, match="cannot write to the run"):
        RunDirectory.open(tmp_path / "run-none")


class TestDiskFailure:
    """The record is given up with one warning; the run goes on."""

    def test_removed_directory(self, create, caplog):
        run = create()
        shutil.rmtree(run.path)
        with caplog.at_level(logging.WARNING, "scalable.runs"):
            for _ in range(3):
                run.append("tasks", final_row("a"))
            run.append("workers", {})
            run.close("completed")
        assert [r.name for r in caplog.records] == ["scalable.runs"]
        assert "tasks.jsonl was removed" in caplog.text
        assert not run.path.exists()

    @pytest.mark.parametrize(
        ("file", "flags"), [("/dev/full", os.O_WRONLY), ("tasks.jsonl", os.O_RDONLY)]
    )
    def test_descriptor_that_cannot_be_written_to(self, create, caplog, file, flags):
        if not Path("/dev/full").exists():
            pytest.skip("no /dev/full")
        run = create()
        os.close(run._descriptors["tasks"])
        run._descriptors["tasks"] = os.open(run.path / file, flags)
        run.append("tasks", final_row("a"))
        run.append("tasks", final_row("b"))
        run.append("workers", {"event": "started"})
        assert len(caplog.records) == 1
        assert ("No space left" in caplog.text) is (file == "/dev/full")
        run.close("completed")
        record = read_run(run.path)
        assert (*record.tasks, *record.workers) == ()
        assert record.status == "completed"

    def test_write_in_parts_is_continued(self, create, monkeypatch):
        run = create()
        real = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data[:3])))
        run.append("tasks", final_row("a"))
        monkeypatch.undo()
        assert [row["task_id"] for row in read_run(run.path).tasks] == ["a"]

    def test_a_report_says_that_rows_are_missing(self, create, monkeypatch):
        run = create()
        run.append("tasks", final_row("a"))

        def no_space(descriptor, data):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", no_space)
        run.append("tasks", final_row("b"))
        monkeypatch.undo()
        run.append("tasks", final_row("c"))
        run.close("completed")
        shown = str(report_on(read_run(run.path)))
        assert re.search(r"Error: +tasks since ..:..:.. UTC are missing: .*No space left", shown)

    def test_run_json_is_never_seen_in_part(self, create, monkeypatch, caplog):
        run = create()
        before = (run.path / "run.json").read_text()

        def no_space(self, target):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(directory_module.Path, "replace", no_space)
        run.close("completed")
        monkeypatch.undo()
        assert (run.path / "run.json").read_text() == before
        assert not list(run.path.glob(".*"))
        assert len(caplog.records) == 1


# Directories of others ----------------------------------------------------------------------------


def record_in(runs_dir):
    return RunDirectory.create(
        "p", "t", manifest_yaml="", manifest_lock="0" * 64, plan={}, runs_dir=runs_dir
    )


@pytest.mark.parametrize("planted", [".scalable", ".scalable/runs"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes directories of other users")
def test_no_run_is_recorded_where_another_user_waits_for_it(tmp_path, planted):
    runs = tmp_path / ".scalable" / "runs"
    runs.mkdir(parents=True)
    os.chown(tmp_path / planted, 65534, 65534)
    record_in(runs).close("completed")  # shared with its owner, but not with everybody
    (tmp_path / planted).chmod(0o1777)
    with pytest.raises(RunError, match="belongs to another user") as caught:
        record_in(runs)
    assert "SCALABLE_RUNS_DIR" in str(caught.value.hint)
    assert len(list(runs.iterdir())) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes links of other users")
def test_no_run_is_recorded_through_the_link_of_another_user(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".scalable").symlink_to(tmp_path / "elsewhere")
    os.chown(tmp_path / ".scalable", 65534, 65534, follow_symlinks=False)
    with pytest.raises(RunError, match="belongs to another user"):
        record_in(tmp_path / ".scalable" / "runs")


def test_no_run_is_recorded_where_every_user_could_replace_it(tmp_path):
    runs = tmp_path / "runs"
    runs.mkdir()
    runs.chmod(0o777)
    with pytest.raises(RunError, match=r"every user can replace files in .* \(mode 777\)"):
        record_in(runs)
    runs.chmod(0o1777)
    record_in(runs).close("completed")
