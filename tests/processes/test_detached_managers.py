"""Managers of detached clusters that come, go and are lost."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import scalable
from detached import kill, nothing_is_left, processes_of
from verbs import program, status, up


def attach(*arguments):
    command = [sys.executable, "-m", "scalable", "manager", "attach", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def wait_for(path):
    """Run until a file is there."""
    while not os.path.exists(path):
        time.sleep(0.02)


def states():
    return {m["id"]: m["state"] for m in status("one")["managers"]}


def test_managers_come_and_go(place, tmp_path, eventually):
    up("--name", "one", "--no-workers")
    first = attach("one", "--target", "local", "--id", "first", "--max", "a=1")
    access = tmp_path / "access"
    program("connect", "one", "--export", str(access))
    assert access.stat().st_mode & 0o777 == 0o600
    other = attach(str(access), "--target", "second", "--id", "other")
    try:
        eventually(lambda: {m["id"] for m in status("one")["managers"]} == {"first", "other"})
        with scalable.connect("one") as client:
            eventually(lambda: program("scale", "one", "a=3", "b=0").returncode == 0)
            eventually(lambda: status("one")["pools"]["a"]["running"] == 3)
            shares = {m["id"]: m["pools"]["a"]["running"] for m in status("one")["managers"]}
            assert shares == {"first": 1, "other": 2}

            second = attach("one", "--target", "local", "--id", "first")
            assert "another process" in second.communicate(timeout=60)[1]
            assert second.returncode == 5
            assert status("one")["pools"]["a"]["running"] == 3

            before = {w["name"] for w in client.scheduler_info(n_workers=-1)["workers"].values()}
            over = tmp_path / "over"
            busy = client.map(wait_for, [str(over)] * 3, tag="a", pure=False)
            eventually(lambda: sum(map(len, client.processing().values())) == 3)
            first.send_signal(signal.SIGTERM)
            eventually(lambda: states() == {"first": "leaving", "other": "attached"})
            assert first.poll() is None
            over.touch()
            client.gather(busy)
            assert first.wait(timeout=60) == 0
            eventually(lambda: [m["id"] for m in status("one")["managers"]] == ["other"])
            eventually(lambda: status("one")["pools"]["a"]["running"] == 3)
            after = {w["name"] for w in client.scheduler_info(n_workers=-1)["workers"].values()}
            assert {n for n in before if "other" in n} <= after
    finally:
        for process in (first, other):
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
        program("down", "one", "--yes")


def test_a_manager_without_the_clusters_directory(place, tmp_path, eventually):
    """As on another machine: all that it has is the access file."""
    up("--name", "one", "--no-workers")
    access, elsewhere = tmp_path / "access", tmp_path / "elsewhere"
    program("connect", "one", "--export", str(access))
    environment = {**os.environ, "XDG_STATE_HOME": str(elsewhere)}
    command = [sys.executable, "-m", "scalable", "manager", "attach", str(access)]
    manager = subprocess.Popen(
        [*command, "--target", "second", "--id", "guest"], env=environment, stderr=subprocess.PIPE
    )
    try:
        eventually(lambda: [m["id"] for m in status("one")["managers"]] == ["guest"])
        program("scale", "one", "a=1")
        with scalable.connect("one") as client:
            assert client.submit(abs, -9, tag="a").result(timeout=60) == 9
    finally:
        manager.send_signal(signal.SIGTERM)
        manager.communicate(timeout=60)
    assert manager.returncode == 0
    assert list(elsewhere.rglob("*.json")) == []  # no credential is left behind
    program("down", "one", "--yes")
    nothing_is_left(tmp_path)


@pytest.mark.slow
def test_adding_a_manager_disturbs_nothing(place, tmp_path, eventually):
    def note(directory, number):
        with (Path(directory) / "starts").open("a") as starts:
            starts.write(f"{number}\n")
        wait_for(f"{directory}/over")

    up("--name", "one")
    with scalable.connect("one") as client:
        before = {p.pid for p in processes_of(tmp_path, "scalable.worker.program")}
        futures = client.map(note, [str(tmp_path)] * 12, range(12), tag="a")
        eventually((tmp_path / "starts").exists)
        more = attach("one", "--target", "second", "--id", "more", "--priority", "1")
        eventually(lambda: len(status("one")["managers"]) == 2)
        program("scale", "one", "a=3", "b=1")
        (tmp_path / "over").touch()
        client.gather(futures)
        starts = (tmp_path / "starts").read_text()
        assert sorted(map(int, starts.split())) == list(range(12))
        assert before <= {p.pid for p in processes_of(tmp_path, "scalable.worker.program")}
        more.send_signal(signal.SIGTERM)
        more.communicate(timeout=60)
    program("down", "one", "--yes")


def test_idle_workers_of_a_manager_that_stays_away_retire(place, tmp_path, eventually):
    place("manager_grace: 1s")
    up("--name", "one")
    with scalable.connect("one") as client:
        busy = client.submit(wait_for, str(tmp_path / "over"), tag="a")
        eventually(client.processing)
        kill("managers/local/manager.json", "one")
        eventually(lambda: len(processes_of(tmp_path, "scalable.worker.program")) == 1, timeout=60)
        (tmp_path / "over").touch()
        assert busy.result(timeout=60) is None  # whose only copy is there
        busy.release()
        eventually(lambda: processes_of(tmp_path, "scalable.worker.program") == [], timeout=60)
    program("down", "one", "--yes")
    nothing_is_left(tmp_path)
