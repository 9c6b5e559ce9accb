"""Clusters that outlive their creator, as their users meet them: real processes, real signals."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest
from distributed import Scheduler, Worker

import scalable
from detached import nothing_is_left, processes_of
from scalable import PoolCluster, ScalableClient, ScalableSession
from scalable.clusters.control import scale
from scalable.errors import ClusterError
from scalable.records import find
from scalable.scheduler.limits import Lifetime
from verbs import listed, program, status, up


def say(words):
    from distributed import get_worker

    print(words, flush=True)
    return str(get_worker().name)


def test_the_verbs_from_up_to_down(place, tmp_path, eventually):
    shown = program("up", "--target", "local", "--name", "one")
    assert shown.returncode == 0, shown.stderr
    assert "without work" in shown.stderr  # the idle timeout is part of what is shown first
    # It returned with the first worker of each pool.
    running = {"a": 2, "b": 1}
    eventually(
        lambda: {t: p["running"] for t, p in listed()["one"]["pools"].items()} == running,
        timeout=60,
    )
    row = listed()["one"]
    assert (row["state"], row["provider"], row["embedded"]) == ("running", "local", False)
    assert [(m["id"], m["state"]) for m in row["managers"]] == [("local", "attached")]

    again = up("--name", "one")
    assert "nothing to change" in again.stderr
    assert len(processes_of(tmp_path, "scalable.worker.program")) == 3

    assert program("scale", "one", "a=1", "b=2").stdout == "a: 2 -> 1\nb: 1 -> 2\n"
    assert {t: p["wanted"] for t, p in status("one")["pools"].items()} == {"a": 1, "b": 2}
    eventually(lambda: len(processes_of(tmp_path, "scalable.worker.program")) == 3)
    for count in (2, 3, 1):
        scale("one", {"a": count})
        assert find("one").status()["pools"]["a"]["wanted"] == count
    refused = program("scale", "one", "c=1")
    assert refused.returncode == 5
    assert "cluster 'one' has no pool 'c'" in refused.stderr
    assert "known pools: 'a', 'b'" in refused.stderr

    with scalable.connect("one") as client:
        assert client.submit(os.getpid, tag="a").result(timeout=60) != os.getpid()
        worker = client.submit(say, "hello from afar", tag="b").result(timeout=60)
    assert "hello from afar" in program("logs", "one", "--pool", "b").stdout
    program("scale", "one", "b=0")
    eventually(lambda: status("one")["pools"]["b"]["running"] == 0)
    assert "hello from afar" in program("logs", "one", "--worker", worker).stdout

    asked = program("down", "one", stdin=subprocess.DEVNULL)
    assert asked.returncode == 2
    assert "--yes" in asked.stderr
    assert program("down", "one", "--yes").returncode == 0
    kept = {path.name for path in tmp_path.rglob("runs/*/logs/*.log")}
    assert {"scheduler.log", "manager-local.log"} < kept
    nothing_is_left(tmp_path)
    assert program("down", "one", "--yes").returncode == 0
    assert program("status", "one").returncode == 5


def test_two_ups_of_one_name_at_once_make_one_cluster(place, tmp_path):
    command = [sys.executable, "-m", "scalable", "up", "--target", "local", "--name", "one"]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert list(listed()) == ["one"]
    program("down", "one", "--yes")
    nothing_is_left(tmp_path)


def test_idle_clusters_end_by_themselves(place, tmp_path, eventually):
    up("--name", "one", "--no-wait", "--idle-timeout", "1s")
    eventually(lambda: processes_of(tmp_path) == [], "the idle cluster to end", timeout=90)
    nothing_is_left(tmp_path)


OVER = threading.Event()


def wait_until_over():
    return OVER.wait(60)


class Clock:
    """The module `time`, with a clock that the test turns on."""

    time = staticmethod(time.time)

    def __init__(self):
        self.now = time.monotonic()

    def monotonic(self):
        return self.now


def test_work_and_clients_keep_a_cluster_until_its_time_to_live_is_over(monkeypatch, eventually):
    clock = Clock()
    monkeypatch.setattr("scalable.scheduler.limits.time", clock)
    OVER.clear()
    options = {"protocol": "inproc://", "dashboard_address": ":0"}
    scheduler = {"cls": Scheduler, "options": options}
    with PoolCluster(scheduler=scheduler, worker={"cls": Worker, "options": {}}) as cluster:
        life = Lifetime(idle_timeout_s=10)
        mortal = Lifetime(time_to_live_s=100)
        in_job = Lifetime(time_to_live_s=9999, walltime_s=700)
        assert in_job.ends_at()[0] == pytest.approx(Clock.time() + 640, abs=1)

        def after(seconds, ordered_at=0.0):
            clock.now += seconds
            return life.look(cluster.scheduler, ordered_at)

        assert [after(0), after(9)] == [None] * 2
        assert after(2) == "it had no work for 10.0 s"
        assert after(0, ordered_at=clock.now) is None  # the wanted counts change
        with ScalableClient(cluster) as client:
            assert after(9) is None  # a client connects
            assert after(11) == "it had no work for 10.0 s"  # and does nothing
            call = client.submit(wait_until_over)
            eventually(lambda: cluster.scheduler.tasks)
            assert [after(11) for _ in range(3)] == [None] * 3  # it waits for a worker
            cluster.scale(1)
            eventually(lambda: any(ws.processing for ws in cluster.scheduler.workers.values()))
            assert [after(11) for _ in range(3)] == [None] * 3  # it runs
            assert mortal.look(cluster.scheduler, 0.0) is None
            clock.now += 100
            assert mortal.look(cluster.scheduler, 0.0) == "its time to live of 1 m 40 s has passed"
            assert in_job.look(cluster.scheduler, 0.0) is None
            clock.now += 640
            assert in_job.look(cluster.scheduler, 0.0).startswith(
                "the walltime of its scheduler's job (11 m 40 s)"
            )
            assert after(0) is None
            OVER.set()
            assert call.result(timeout=60)
        assert after(9) is None
        assert after(11) == "it had no work for 10.0 s"


def test_sessions_and_workflows_use_a_cluster_that_only_delete_ends(place, tmp_path):
    session = ScalableSession.from_yaml("scalable.yaml", "local")
    client = session.start(detach=True, name="one", timeout_s="5 min")
    assert client.submit(abs, -2, tag="a").result(timeout=60) == 2
    session.close()
    workflow = (
        "import scalable\n"
        "with scalable.ScalableSession.from_yaml() as client:\n"
        "    print(client.submit(abs, -7, tag='a').result())\n"
    )
    (tmp_path / "workflow.py").write_text(workflow)
    done = program("run", "--cluster", "one")
    assert done.returncode == 0, done.stderr
    assert "7\n" in done.stdout
    assert "Status:   completed" in done.stdout
    assert "Tasks:    1 done\n" in done.stdout
    assert "\nTasks:     2 done; see `scalable top one`\n" in program("status", "one").stdout
    # The next workflow's report has its own calls, and not those before; a worker that is there.
    failing = workflow.replace("print", "list(client.pool('b').map(abs, range(5))); print")
    (tmp_path / "workflow.py").write_text(failing.replace("-7", "''"))
    done = program("run", "--cluster", "one", "--format", "json")
    (report,) = json.loads(done.stdout)["reports"]
    assert (done.returncode, report["status"], report["exit_code"]) == (1, "failed", 1)
    assert report["tasks"] == {"succeeded": 5, "failed": 1}
    assert report["failures"]["count"] == 1
    assert {tag: pool["final"] for tag, pool in report["workers"].items()} == {"a": 2, "b": 1}
    with ScalableSession.attach("one") as client:
        assert client.submit(abs, -3, tag="a").result(timeout=60) == 3
    attached = ScalableSession.attach("one")
    attached.scale("a", 1)
    assert status("one")["pools"]["a"]["wanted"] == 1
    cluster = scalable.PoolCluster.from_name("one")
    assert cluster.pools["a"].wanted == 1
    cluster.close()
    assert [row.name for row in scalable.list_clusters()] == ["one"]
    attached.delete()
    nothing_is_left(tmp_path)
    with pytest.raises(ClusterError, match="there is no cluster 'one'"):
        ScalableSession.attach("one")


def test_run_detach_makes_its_cluster_itself(place, tmp_path):
    (tmp_path / "workflow.py").touch()
    for option in ("--cluster=one", "--synchronous"):
        done = program("run", "--detach", option, here=True)
        assert (done.returncode, "leave out --cluster" in done.stderr) == (2, True)


def test_an_embedded_cluster_is_listed_while_its_process_lives(place, tmp_path, eventually):
    with ScalableSession.from_yaml("scalable.yaml", "threads") as client:

        def runs(row):
            counts = {tag: pool["running"] for tag, pool in row["pools"].items()}
            return row["embedded"] and (row["state"], counts) == ("running", {"a": 2, "b": 1})

        # The status is written in the background.
        eventually(lambda: any(map(runs, listed().values())))
        (row,) = listed().values()
        assert client.cluster.name == row["name"]
        assert program("scale", row["name"], "a=1").returncode == 0
        done = program("down", row["name"], "--yes")
        assert done.returncode == 5
        assert "runs in process" in done.stderr
    assert listed() == {}
