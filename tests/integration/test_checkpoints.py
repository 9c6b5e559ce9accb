"""Calls whose worker is killed go on where they were, on real worker processes."""

import os
import signal
import time
from pathlib import Path

import pytest

import scalable
from scalable import ScalableSession
from scalable.errors import ClusterError

MANIFEST = """
version: 1
project: {{name: counting, local_cache: {cache}}}
targets:
  local: {{provider: local, processes: {processes}}}
components:
  main: {{cpus: 1, workers: {workers}}}
tasks:
  count: {{component: main, cache: true}}
"""


def count(name, end, log, killed_at=None):
    """Count on from the last state; the first try is killed at a number."""
    state = scalable.checkpoint() / "state"
    begin = int(state.read_text()) if state.exists() else 0
    with Path(log).open("a") as file:
        file.write(f"{name} {begin}\n")
    for number in range(begin + 1, end + 1):
        whole = state.with_name("next")
        whole.write_text(str(number))
        whole.replace(state)
        if number == killed_at and begin == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return end


def failing(log):
    with Path(log).open("a") as file:
        file.write(f"{len(list(scalable.checkpoint().iterdir()))}\n")
    (scalable.checkpoint() / "state").write_text("1")
    raise OSError("no data")


async def awaited():
    scalable.checkpoint()


def waiting(name, started, go_on):
    """Begin, and wait for a sign; return the path and what happened to it."""
    path = scalable.checkpoint()
    (path / name).touch()
    Path(started).write_text(str(path))
    while not Path(go_on).exists():
        time.sleep(0.01)
    return sorted(each.name for each in path.iterdir())


@pytest.fixture
def open_session(tmp_path):
    def opened(workers=1, processes="true"):
        manifest = tmp_path / "scalable.yaml"
        cache = tmp_path / "results"
        manifest.write_text(MANIFEST.format(cache=cache, workers=workers, processes=processes))
        return ScalableSession.from_yaml(manifest, target="local")

    return opened


@pytest.fixture
def left(tmp_path):
    """Return a function that lists the files of all checkpoints that are there."""

    def names():
        root = tmp_path / "results" / "checkpoints"
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

    return names


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.touch()
    return path


def test_calls_of_killed_workers_go_on(open_session, left, tmp_path, monkeypatch):
    monkeypatch.setattr("scalable.manager.pools.backoff_s", lambda _: 0.0)
    with open_session() as client:
        for options in ({"tag": "main"}, {"task": "count"}):
            log = str(tmp_path / f"log of {options}")
            assert client.submit(count, "a", 9, log, 5, **options).result(timeout=60) == 9
            assert Path(log).read_text() == "a 0\na 5\n"
        log = tmp_path / "log of an executor"
        with client.pool(tag="main") as pool:
            calls = [pool.submit(count, "b", 3, str(log)), pool.submit(count, "a", 9, str(log), 5)]
            calls.append(pool.submit(count, "c", 4, str(log)))
            assert [call.result(timeout=60) for call in calls] == [3, 9, 4]
        assert left() == []
    assert [one for one in log.read_text().splitlines() if one[0] == "a"] == ["a 0", "a 5"]


def test_remembered_call_goes_on_in_a_later_run(open_session, left, log):
    with open_session() as client:
        future = client.submit(failing, str(log), cache=True, tag="main")
        with pytest.raises(OSError, match="no data"):
            future.result(timeout=60)
    assert len(left()) == 1
    with open_session() as client:
        future = client.submit(failing, str(log), cache=True, tag="main")
        with pytest.raises(OSError, match="no data"):
            future.result(timeout=60)
    assert log.read_text().split() == ["0", "1"]


def test_failed_call_keeps_its_checkpoint_until_the_session_ends(open_session, left, log, tmp_path):
    with open_session(processes="false") as client:
        for _ in range(2):
            future = client.submit(failing, str(log), key="same", tag="main")
            with pytest.raises(OSError, match="no data"):
                future.result(timeout=60)
        assert log.read_text().split() == ["0", "1"]
        assert len(left()) == 1
    assert left() == []
    assert [path.name for path in (tmp_path / "results" / "checkpoints").iterdir()] == [
        "remembered"
    ]


def test_calls_that_run_at_once_share_nothing(open_session, left, tmp_path):
    go_on = tmp_path / "go"
    started = [tmp_path / f"started-{number}" for number in range(2)]
    with open_session(2, processes="false") as client, client.pool(tag="main") as pool:
        calls = [
            client.submit(waiting, "file-0", str(started[0]), str(go_on), tag="main"),
            pool.submit(waiting, "file-1", str(started[1]), str(go_on)),
        ]
        deadline = time.monotonic() + 60
        while not all(path.exists() for path in started) and time.monotonic() < deadline:
            time.sleep(0.01)
        go_on.touch()
        assert [call.result(timeout=60) for call in calls] == [["file-0"], ["file-1"]]
    paths = [Path(path.read_text()) for path in started]
    assert paths[0].parent != paths[1].parent
    assert left() == []


def test_coroutines_and_clients_are_told_that_they_are_no_calls(open_session):
    with open_session(processes="false") as client:
        with pytest.raises(ClusterError, match="no task runs in this thread"):
            client.submit(awaited, tag="main").result(timeout=60)
        with pytest.raises(ClusterError, match="no task runs in this thread"):
            scalable.checkpoint()


def test_workers_without_the_file_system_are_told_what_is_needed(open_session):
    with open_session(processes="false") as session_client:
        session_client.cluster.scheduler.code.carries = True
        with pytest.raises(ClusterError, match="do not share the file system"):
            session_client.submit(count, "a", 1, "log", tag="main").result(timeout=60)
