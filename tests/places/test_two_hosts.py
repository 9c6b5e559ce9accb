"""Clusters whose users work on several machines that share a directory."""

import json
import os
import signal
import socket
import ssl
import sys
import threading
import time
from datetime import timedelta

import dask
import psutil
import pytest
from hosts import two_hosts

import scalable
from scalable.clusters import control
from scalable.errors import ClusterError
from scalable.liveness import identify_process
from scalable.protocol import credentials
from scalable.protocol.handlers import Handler
from scalable.records import find

MANIFEST = """\
version: 1
project: {name: tests}
targets:
  local: {provider: local, processes: true, max_workers: 4, interface: eth0}
  closed: {provider: local, processes: true, max_workers: 4}
components:
  a: {cpus: 1, workers: 1}
"""
LONG_AGO_S = 1000


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SCALABLE_RUNS_DIR", str(tmp_path / "runs"))
    (tmp_path / "scalable.yaml").write_text(MANIFEST)
    return tmp_path


@pytest.fixture
def hosts(place):
    with two_hosts(place, network=True) as both:
        yield both


def make_old(name, age_s=LONG_AGO_S):
    """Let a cluster's last status be of that age in seconds."""
    directory = find(name)
    directory.write_status({**directory.status(), "written_at": time.time() - age_s})
    return directory


def rows(host):
    listed = json.loads(host.verb("list", "--format", "json").stdout)["clusters"]
    return {row["name"]: row["state"] for row in listed}


CALL = """
import os, socket, sys, scalable
with scalable.connect(sys.argv[1]) as client:
    print(client.submit(socket.gethostname, tag="a").result(timeout=60))
"""


def test_a_machine_with_a_cluster_fails_and_another_ends_it(place, hosts):
    one, other = hosts
    done = one.verb("up", "--target", "closed", "--name", "fields")
    assert done.returncode == 0, done.stderr
    assert rows(other) == {"fields": "running"}

    refused = other.verb("down", "fields", "--yes")
    assert refused.returncode == 5
    assert "could not stop the scheduler" in refused.stderr
    assert "run `scalable down fields` there" in refused.stderr
    assert rows(other) == {"fields": "running"}  # it is not marked as deleting

    one.crash()
    directory = make_old("fields")
    done = other.verb("down", "fields", "--yes")
    assert (done.returncode, directory.path.exists()) == (0, False), done.stderr
    assert "on login1, where its scheduler ran, does not answer" in done.stderr


@pytest.mark.slow
def test_up_on_another_machine_replaces_a_cluster_whose_machine_failed(place, hosts):
    one, other = hosts
    done = one.verb("up", "--target", "local", "--name", "fields")
    assert done.returncode == 0, done.stderr
    before = find("fields").id
    assert other.run(sys.executable, "-c", CALL, "fields").stdout == "login1\n"
    one.crash()
    make_old("fields")
    done = other.verb("up", "--target", "local", "--name", "fields")
    assert done.returncode == 0, done.stderr
    assert find("fields").id != before
    assert other.run(sys.executable, "-c", CALL, "fields").stdout == "login2\n"
    assert other.verb("down", "fields", "--yes").returncode == 0


def test_a_manager_on_another_machine_provides_workers_until_it_leaves(place, hosts, eventually):
    one, other = hosts
    done = one.verb("up", "--target", "local", "--name", "fields", "--no-workers")
    assert done.returncode == 0, done.stderr
    assert one.verb("connect", "fields", "--export", "access").returncode == 0
    away = {**os.environ, "XDG_STATE_HOME": str(place / "away")}  # a machine with files of its own
    attach = ["manager", "attach", "access", "--target", "local", "--id", "away"]
    manager = other.start(sys.executable, "-m", "scalable", *attach, env=away)
    try:
        eventually(lambda: one.verb("scale", "fields", "a=1").returncode == 0)
        assert one.run(sys.executable, "-c", CALL, "fields").stdout == "login2\n"
        assert one.run(sys.executable, "-c", CALL, "access").stdout == "login2\n"
    finally:
        last(manager, "attach").send_signal(signal.SIGTERM)
        assert manager.wait(timeout=60) == 0
    done = other.verb("down", "fields", "--yes")  # orderly, through the scheduler
    assert done.returncode == 0, done.stderr
    assert rows(one) == {}


def last(started, word):
    """Return the innermost process of a command whose command line has a word."""
    process = psutil.Process(started.pid)
    family = [process, *process.children(recursive=True)]
    return next(p for p in reversed(family) if word in p.cmdline())


ON_SLURM = """\
version: 1
project: {name: tests}
targets:
  hpc: {provider: slurm, scheduler: %s, walltime: "10:00", interface: lo}
components:
  a: {cpus: 1, memory: 200M, workers: 1}
"""


def kill_scheduler(on_slurm, eventually):
    """Kill the scheduler, and wait until Slurm knows that its job has ended."""
    jobs = len(on_slurm.jobs())
    os.kill(find("fields").scheduler()["pid"], signal.SIGKILL)
    eventually(lambda: len(on_slurm.jobs()) < jobs)


@pytest.mark.parametrize("again", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_scheduler_s_job_is_killed(on_slurm, place, eventually, again):
    """Its process is on a node, which is not the machine of its user."""
    (place / "scalable.yaml").write_text(ON_SLURM % "job")
    up = ["up", "--target", "hpc", "--name", "fields", "--yes"]
    with two_hosts(place) as (one, other):
        done = one.verb(*up)
        assert done.returncode == 0, done.stderr
        before = find("fields").id
        kill_scheduler(on_slurm, eventually)
        make_old("fields", 20)
        assert "failed   fields" in other.verb("prune", "--dry-run").stdout
        if again:
            done = other.verb(*up)
            assert done.returncode == 0, done.stderr
            assert "its scheduler's job is no longer in the queue" in done.stderr
            assert find("fields").id != before
        done = one.verb("down", "fields", "--yes")
        assert done.returncode == 0, done.stderr
        assert rows(other) == {}
        eventually(lambda: on_slurm.jobs() == [])


@pytest.mark.slow
def test_a_manager_is_resumed_and_a_cluster_ended_on_another_login_node(
    on_slurm, place, eventually
):
    (place / "scalable.yaml").write_text(ON_SLURM % "login")
    with two_hosts(place) as (one, other):
        done = one.verb("up", "--target", "hpc", "--name", "fields", "--yes")
        assert done.returncode == 0, done.stderr
        eventually(lambda: len(on_slurm.jobs()) == 1)
        before = on_slurm.jobs()[0].split()[0]
        assert other.verb("manager", "restart", "fields").stdout == "all managers are running\n"
        pid = json.loads((find("fields").path / "managers/hpc/manager.json").read_text())["pid"]
        assert one.run("kill", "-9", str(pid)).returncode == 0
        resumed = other.verb(
            "manager", "restart", "fields"
        )  # it waits until the scheduler has lost the other
        assert resumed.stdout == "started manager hpc\n", resumed.stderr
        eventually(lambda: rows(other) == {"fields": "running"})
        assert one.verb("manager", "restart", "fields").stdout == "all managers are running\n"
        assert one.verb("scale", "fields", "a=2").returncode == 0
        eventually(lambda: len(on_slurm.jobs()) == 2)
        assert before in {job.split()[0] for job in on_slurm.jobs()}
        one.crash()
        make_old("fields")
        done = other.verb("down", "fields", "--yes")
        assert done.returncode == 0, done.stderr
        assert rows(other) == {}
        eventually(lambda: on_slurm.jobs() == [])


# Clocks -------------------------------------------------------------------------------------------


def test_a_certificate_that_this_machines_clock_refuses_is_named(place, monkeypatch, recorded):
    monkeypatch.setattr(credentials, "BACKDATED", timedelta(hours=-1))
    directory = recorded()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory.path / "tls" / "cert.pem", directory.path / "tls" / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        directory.write_scheduler({**identify_process(), "address": f"tls://127.0.0.1:{port}"})
        threading.Thread(target=shake_hands, args=(server, context), daemon=True).start()
        with pytest.raises(ClusterError, match="certificate is refused: .*not yet valid.*clock"):
            control.ask(directory, Handler.STATUS, timeout_s=3.0)
        with (
            dask.config.set({"distributed.comm.timeouts.connect": "2s"}),
            pytest.raises(ClusterError, match="certificate is refused: .*not yet valid.*clock"),
        ):
            scalable.connect("one")


def shake_hands(server, context):
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        try:
            context.wrap_socket(connection, server_side=True).close()
        except OSError:
            connection.close()


@pytest.fixture
def recorded():
    """A cluster on record, with new credentials."""
    from scalable.model import ClusterRecord
    from scalable.records import ClusterDirectory

    def make():
        values = dict.fromkeys(("target", "project", "owner"), "x")
        values |= {"id": "one", "name": "one", "provider": "local", "created_at": ""}
        made = ClusterDirectory.create(ClusterRecord(**values))
        made.write_pem(*credentials.new_credentials())
        return made

    return make
