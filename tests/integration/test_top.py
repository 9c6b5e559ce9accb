"""`scalable top` of a detached cluster: the numbers of its scheduler, as text and as JSON."""

import json
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import scalable
from scalable.clusters.control import ask, drain
from scalable.clusters.discovery import look, workers_of
from scalable.errors import ClusterError
from scalable.protocol.handlers import Handler
from scalable.records import find
from verbs import program, up


def fit(x):
    time.sleep(0.01)
    return x


def fail(x):
    raise ValueError("[bold]no\x1b[31m value")


def wait(x):
    threading.Event().wait(x)


def shown(*arguments):
    """Return what a verb prints for programs, in this process."""
    done = program(*arguments, "--format", "json", here=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def cluster(place):
    up("--name", "watched")
    with scalable.connect("watched") as client:
        yield client


def test_a_cluster_is_shown_with_the_numbers_of_its_scheduler(cluster, eventually):
    done = [cluster.submit(fit, n, tag="a", pure=False) for n in range(20)]
    failed = [cluster.submit(fail, n, tag="a", pure=False) for n in range(2)]
    waits = [cluster.submit(wait, 300, tag="b", pure=False) for _ in range(3)]
    cluster.gather(done)
    assert [future.status for future in failed if future.exception()] == ["error"] * 2
    counts = {
        "running": 1, "queued": 2, "blocked": 0, "done": 20, "failed": 2,
        "cancelled": 0, "cached": 0,
    }  # fmt: skip
    eventually(lambda: vars(look("watched")[0].counts) == counts)
    told = shown("top", "watched", "--once")
    overview, events = look("watched")
    assert told["counts"] == counts
    assert {k: v["counts"] for k, v in ((t["name"], t) for t in told["tasks"])} == {
        name: vars(counts) for name, counts in ((t.name, t.counts) for t in overview.tasks)
    }
    assert told["pools"]["a"]["status"] == shown("status", "watched")["pools"]["a"]
    assert told["workers"] == len(workers_of("watched")) == 3
    assert told["clients"] == 1
    assert len(told["decisions"]) == len(events.decisions) == 2
    assert sum(row["count"] for row in told["failures"]) == 2
    text = program("top", "watched", "--once", here=True).stdout
    assert "1 running, 2 queued, 20 done, 2 failed; 3 workers, 1 client" in text
    assert "[bold]no\ufffd[31m value" in text
    assert "\x1b" not in text
    [row] = json.loads(program("top", "--once", "--format", "json", here=True).stdout)["clusters"]
    assert (row["name"], row["embedded"], row["state"]) == ("watched", False, "running")
    # The name of its run, also as tables cut it.
    for run in (row["run"], f"{row['run'][:12]}…{row['run'][-6:]}"):
        assert look(run)[0].cluster["name"] == "watched"
    assert overview.cluster["run"].endswith(row["run"])
    assert "watched  detached" in program("top", "--once", here=True).stdout
    del waits


SESSION = """\
import sys, threading, time
from scalable import ScalableSession

def fit(x):
    time.sleep(0.01)
    return x

def wait(x):
    threading.Event().wait(x)

if __name__ == "__main__":
    session = ScalableSession.from_yaml("scalable.yaml", "threads")
    with session.start() as client:
        client.gather([client.submit(fit, n, tag="a", pure=False) for n in range(5)])
        waits = [client.submit(wait, 300, tag="b", pure=False) for n in range(3)]
        print("started", flush=True)
        sys.stdin.readline()
        client.cancel(waits)
"""


@pytest.fixture
def session(place):
    (place() / "work.py").write_text(SESSION)
    process = subprocess.Popen(
        [sys.executable, "work.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "started\n"
    yield process
    process.kill()
    process.communicate()


def test_a_session_is_seen_and_scaled_from_another_shell_until_its_process_dies(
    session, eventually
):
    eventually(lambda: shown("top", "--once")["clusters"][0]["state"] == "running")
    [row] = shown("top", "--once")["clusters"]
    assert row["embedded"]
    record = find(row["name"]).path
    socket = Path(json.loads((record / "scheduler.json").read_text())["socket"])
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    counts = {
        "running": 1, "queued": 2, "blocked": 0, "done": 5, "failed": 0,
        "cancelled": 0, "cached": 0,
    }  # fmt: skip
    eventually(lambda: vars(look(row["run"])[0].counts) == counts)
    for name in (row["run"], row["name"]):
        assert shown("top", name, "--once")["counts"] == counts
    assert shown("status", row["name"])["tasks"] == counts
    explained = program("explain", row["run"], "b", here=True).stdout
    assert "slot" in explained
    assert f"add workers: `scalable scale {row['name']} b=2`" in explained
    unknown = program("explain", row["name"], "wiat", here=True)
    assert (unknown.returncode, unknown.stdout) == (5, "")
    assert "did you mean 'wait'?" in unknown.stderr
    assert shown("explain")["cluster"] == row["name"]
    alone = program("explain", "b", here=True)  # no cluster has this name
    assert f"add workers: `scalable scale {row['name']} b=2`" in alone.stdout
    assert f"cluster {row['name']!r}:" in alone.stderr
    program("scale", row["name"], "b=2")
    eventually(lambda: look(row["run"])[0].counts.running == 2)
    drained = {worker.name for worker in workers_of(row["name"], "a")}
    drain(row["name"], drained)

    def names():
        return {worker.name for worker in workers_of(row["name"], "a")}

    eventually(lambda: len(names()) == len(drained) and not names() & drained, "their successors")
    with pytest.raises(ClusterError, match="is not served"):
        ask(find(row["name"]), Handler.END, reason="no")

    session.kill()
    session.wait()
    assert shown("top", "--once")["clusters"] == []
    gone = program("top", row["name"], "--once", here=True)
    assert gone.returncode != 0
    assert "no cluster" in gone.stderr


def test_the_socket_of_a_session_goes_with_it(place):
    with scalable.ScalableSession.from_yaml("scalable.yaml", "threads") as client:
        record = find(client.cluster.name).path
        socket = Path(json.loads((record / "scheduler.json").read_text())["socket"])
        assert socket.exists()
    assert not socket.parent.exists()


def test_no_terminal_and_no_textual_are_named(place, monkeypatch):
    done = program("top")
    assert done.returncode == 2
    assert "use scalable top --once" in done.stderr
    monkeypatch.setattr("scalable.cli.commands.top.find_spec", lambda name: None)
    done = program("top", here=True)
    assert "scalable top needs textual" in done.stderr
    assert "pip install textual" in done.stderr
