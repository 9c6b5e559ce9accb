"""Logs of a cluster: which there are, their ends, and what is added."""

import json
import os
import threading
from pathlib import Path

import pytest

from scalable.clusters import logs
from scalable.clusters.logs import follow_lines, log_files, read_log
from scalable.records import ClusterDirectory
from unit.made_records import made_record

TAGS = ("a", "a-b", "c/d")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A cluster on record that keeps a run."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(logs, "POLL_S", 0.01)
    monkeypatch.setattr(logs, "LIST_S", 0.02)

    def make(log_dir=None, run=True):
        directory = ClusterDirectory.create(made_record(tags=TAGS, log_dir=log_dir))
        kept = tmp_path / "run"
        directory.workers = Path(log_dir or kept / "logs")
        directory.workers.mkdir(parents=True)
        said = {"log_dir": str(directory.workers), "run": str(kept) if run else None}
        directory.write_scheduler(said)
        directory.logs_dir.mkdir()
        (directory.logs_dir / "scheduler.log").write_text("listens\n")
        (directory.logs_dir / "manager-hpc.log").write_text("attached\n")
        return directory

    return make


def write(directory, worker, tag=None, text="hello\n", age=0.0):
    if tag is not None:
        row = {"event": "requested", "worker": worker, "tag": tag, "timestamp": 1.0}
        with (Path(directory.scheduler()["run"]) / "workers.jsonl").open("a") as rows:
            rows.write(json.dumps(row) + "\n")
    path = directory.workers / f"{worker.replace('/', '_')}.log"
    path.write_text(text)
    os.utime(path, (1e9 - age, 1e9 - age))
    return path


def shown(*args, **kwargs):
    return [(file.worker, file.tag) for file in log_files(*args, **kwargs)]


# Which there are ----------------------------------------------------------------------------------


def test_the_run_says_whose_a_log_is(cluster):
    directory = cluster()
    write(directory, "a-b-1f-0", "a", age=3)  # of manager b
    write(directory, "a-b-b-1f-0", "a-b", age=2)
    write(directory, "c/d-b-1f-0", "c/d", age=1)
    write(directory, "a-never-came-0")  # its start was not recorded
    (directory.workers / "of-somebody.log").write_text("else")
    (directory.workers / "a-b.txt").write_text("no log")
    workers = [("a-b-1f-0", "a"), ("a-b-b-1f-0", "a-b"), ("c/d-b-1f-0", "c/d")]
    assert shown(directory) == [*workers, ("a-never-came-0", "a")]
    assert shown(directory, pool="a-b") == [workers[1]]
    assert shown(directory, worker="c/d-b-1f-0") == [workers[2]]
    assert shown(directory, pool="c/d", worker="a-b-1f-0") == []


def test_without_a_run_names_say_it(cluster):
    directory = cluster(run=False)
    write(directory, "a-b-1f-0")
    write(directory, "a-x-1f-0")
    assert sorted(shown(directory)) == [("a-b-1f-0", "a-b"), ("a-x-1f-0", "a")]


def test_in_a_directory_of_many_clusters_only_recorded_workers_are_ours(cluster, tmp_path):
    directory = cluster(log_dir=str(tmp_path / "shared"))
    (tmp_path / "run").mkdir()
    write(directory, "a-ours-0", "a")
    write(directory, "a-theirs-0")
    assert shown(directory) == [("a-ours-0", "a")]


def test_a_jobs_log_is_shown_once_under_the_name_of_its_worker(cluster):
    directory = cluster()
    job = directory.workers / "a-4711_0.log"
    job.write_text("from a job\n")
    (directory.workers / "a-hpc-1f-0.log").symlink_to(job.name)
    (found,) = log_files(directory)
    assert (found.worker, read_log(found.path)) == ("a-hpc-1f-0", "from a job\n")


# Their ends ---------------------------------------------------------------------------------------


def test_of_a_long_log_the_last_whole_lines_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "LONGEST_BYTES", 10)
    log = tmp_path / "log"
    log.write_text("one\ntwo\nthree\nend")
    assert read_log(log) == "three\nend"
    log.write_text("x" * 50)
    assert read_log(log) == "x" * 10
    log.write_bytes(b"\xff\n")
    assert read_log(log) == "\ufffd\n"
    assert read_log(tmp_path / "missing") == ""


# What is added ------------------------------------------------------------------------------------


def following(directory, **options):
    """Lines as they come, and the thread that gathers them."""
    lines = []

    def follow():
        for line in follow_lines(directory, **options):
            lines.append(line)  # noqa: PERF402 - they are looked at as they come

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    return lines, thread


def test_added_lines_are_shown_until_the_cluster_is_gone(cluster, eventually):
    directory = cluster()
    log = write(directory, "a-1-0", "a", "begun\nto")
    lines, thread = following(directory)
    eventually(lambda: lines == [("a-1-0", "begun")])
    with log.open("a") as file:
        file.write(" be\nlast word")
    eventually(lambda: len(lines) == 2)
    write(directory, "a-1-1", "a", "later\n")
    eventually(lambda: len(lines) == 3)
    directory.remove()
    thread.join(timeout=60)
    assert lines[1:] == [("a-1-0", "to be"), ("a-1-1", "later"), ("a-1-0", "last word")]


def test_the_last_line_of_a_removed_log_is_shown(cluster, eventually):
    directory = cluster()
    log = write(directory, "a-1-0", "a", "begun\nlast word")
    other = write(directory, "a-1-1", "a", "other\n")
    lines, thread = following(directory)
    eventually(lambda: len(lines) == 2)
    log.unlink()
    write(directory, "a-1-2", "a", "later\n")
    eventually(lambda: len(lines) == 3)
    assert other.exists()
    directory.remove()
    thread.join(timeout=60)
    assert lines[3:] == [("a-1-0", "last word")]


def test_a_log_that_is_begun_anew_is_read_from_its_start(cluster, eventually):
    directory = cluster()
    log = write(directory, "a-1-0", "a", "a long first line\n")
    lines, thread = following(directory)
    eventually(lambda: lines)
    log.write_text("anew\n")
    eventually(lambda: len(lines) == 2)
    log.unlink()
    directory.remove()
    thread.join(timeout=60)
    assert lines[1] == ("a-1-0", "anew")


def test_long_lines_come_in_parts_and_old_ones_not_at_all(cluster, eventually, monkeypatch):
    monkeypatch.setattr(logs, "LONGEST_BYTES", 10)
    directory = cluster()
    log = write(directory, "a-1-0", "a", "0123456789\nshort\n")
    lines, thread = following(directory)
    eventually(lambda: lines)
    with log.open("a") as file:
        file.write("x" * 25 + "\n")
    eventually(lambda: len(lines) == 4)
    directory.remove()
    thread.join(timeout=60)
    assert [line for _, line in lines] == ["short", "x" * 10, "x" * 10, "x" * 5]
