"""Worker processes of this machine that outlive the manager which started them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import ClassVar

import pytest
from distributed import Client, SpecCluster
from distributed.security import Security

from python_runs import gone
from scalable.manager.launcher import UnitState
from scalable.manager.pools import ManagerSite
from scalable.model import ComponentSpec, DeploymentSpec
from scalable.providers.local import LocalProvider
from scalable.providers.local.options import LocalOptions
from scalable.providers.local.processes import find_scratch, programs
from scalable.scheduler.pool_scheduler import PoolScheduler

PEM = ("tls_ca_file", "tls_worker_cert", "tls_worker_key")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A scheduler, and a state and a temporary directory of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    security = Security.temporary()
    options = {"host": "127.0.0.1", "port": 0, "dashboard": False, "protocol": "tls://"}
    scheduler = {"cls": PoolScheduler, "options": {**options, "security": security}}
    with SpecCluster(scheduler=scheduler, security=security) as made:
        yield made


@pytest.fixture
def client(cluster):
    with Client(cluster) as made:
        yield made


@pytest.fixture
def site_of(cluster, tmp_path):
    """Sites of managers; every process of theirs ends with the test."""
    directories = []

    def make(manager="m1", nonce="one", cluster_id=None):
        cluster_id = cluster_id or str(uuid.uuid4())
        parent = tmp_path / "state" / "scalable" / "clusters" / cluster_id
        directories.append(parent)
        return ManagerSite(
            cluster_id=cluster_id,
            manager=manager,
            incarnation=f"{manager}-{nonce}",
            scheduler=cluster.scheduler_address,
            security=cluster.security,
            directory=parent / "managers" / manager,
            log_dir=tmp_path / "logs",
            sys_path=tuple(sys.path),
            detached=True,
        )

    yield make
    for manager in Manager.made:
        manager.stop(list(manager.states()))
        asyncio.run(manager.launcher.close())
    Manager.made.clear()
    for directory in directories:
        assert not list(programs(directory))


def spec_of(tag="a", **options):
    return DeploymentSpec(
        "project",
        "local",
        "local",
        {tag: ComponentSpec(tag, env={"GREETING": "hello"}, memory="1G")},
        options=LocalOptions(processes=True, **options).model_dump(),
    )


class Manager:
    """What a manager's process has of the launcher, in this process."""

    made: ClassVar[list] = []

    def __init__(self, site, spec=None):
        self.made.append(self)
        (self.pool,) = LocalProvider().pools(spec or spec_of(), site)
        self.site = site
        self.launcher = self.pool.launcher

    def names(self, *numbers):
        return [f"{self.pool.tag}-{self.site.incarnation}-{number}" for number in numbers]

    def launch(self, *numbers):
        entry = {**self.pool.template, "pool": self.pool.tag}
        asyncio.run(self.launcher.launch(dict.fromkeys(self.names(*numbers), entry)))
        return self.names(*numbers)

    def adopt(self):
        return asyncio.run(self.launcher.adopt())

    def stop(self, names):
        asyncio.run(self.launcher.stop(names))

    def states(self):
        return {name: seen.state for name, seen in self.launcher.observe().items()}


PROGRAM = """
import json, signal, sys
from pathlib import Path
from distributed.security import Security
from scalable.manager.pools import ManagerSite
sys.path[:0] = {tests!r}
from test_local_detached import Manager
said = json.load(open({file!r}))
pem = said.pop("pem")
paths = {{name: Path(said.pop(name)) for name in ("directory", "log_dir")}}
manager = Manager(ManagerSite(**said, **paths, security=Security(require_encryption=True, **pem)))
print(*manager.launch(0, 1), flush=True)
signal.pause()
"""


@pytest.fixture
def manager_process(tmp_path):
    """Start a manager in a process of its own; the names of its two workers come with it."""
    started = []

    def start(site):
        said = {name: getattr(site, name) for name in site.__dataclass_fields__}
        said["pem"] = {name: getattr(site.security, name) for name in PEM}
        del said["security"]
        file = tmp_path / "site.json"
        file.write_text(json.dumps(said, default=str))
        program = PROGRAM.format(file=str(file), tests=[str(p) for p in Path(__file__).parents[:2]])
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process, process.stdout.readline().split()

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=30)


def kinds(cluster_id, tmp_path):
    """What is there of a cluster: processes and scratch directories."""
    directory = tmp_path / "state" / "scalable" / "clusters" / cluster_id
    return len(list(programs(directory))), len(find_scratch(cluster_id))


def start_child():
    child = subprocess.Popen(["sleep", "infinity"])
    return child.pid


def test_workers_survive_their_manager_and_are_taken_over(
    cluster, client, site_of, manager_process, tmp_path, eventually
):
    site = site_of()
    process, names = manager_process(site)
    client.wait_for_workers(2, timeout=60)
    before = client.run(os.getpid)
    process.kill()
    process.wait(timeout=30)
    second = Manager(site_of(nonce="two", cluster_id=site.cluster_id))
    assert second.adopt() == dict.fromkeys(names, "a")
    assert second.adopt() == {}
    assert second.states() == dict.fromkeys(names, UnitState.RUNNING)
    (more,) = second.launch(0)
    client.wait_for_workers(3, timeout=60)
    assert before.items() <= client.run(os.getpid).items()
    workers = cluster.scheduler.workers.values()
    assert {ws.name for ws in workers} == {*names, more}
    assert {ws.extra["scalable_manager"] for ws in workers} == {"m1"}
    assert set(client.run(os.getenv, "GREETING").values()) == {"hello"}
    assert set(client.run(os.getenv, "SCALABLE_SCRATCH").values()) == {None}
    assert kinds(site.cluster_id, tmp_path) == (3, 3)
    second.stop([*names, more])
    assert second.states() == {}
    assert kinds(site.cluster_id, tmp_path) == (0, 0)
    assert {log.name for log in (tmp_path / "logs").iterdir()} == {
        f"{name}.log" for name in (*names, more)
    }


def test_a_name_is_launched_once(client, site_of, tmp_path):
    manager = Manager(site_of())
    assert manager.launch(0) == manager.launch(0)
    client.wait_for_workers(1, timeout=60)
    again = Manager(manager.site)
    again.adopt()
    again.launch(0)
    assert kinds(manager.site.cluster_id, tmp_path) == (1, 1)
    again.stop(again.names(0))
    assert kinds(manager.site.cluster_id, tmp_path) == (0, 0)


@pytest.mark.parametrize("adopted", [False, True])
def test_a_worker_that_is_killed_leaves_no_child_and_no_scratch(
    client, site_of, tmp_path, eventually, adopted
):
    manager = Manager(site_of())
    (name,) = manager.launch(0)
    client.wait_for_workers(1, timeout=60)
    child = client.submit(start_child).result(timeout=60)
    if adopted:
        manager = Manager(manager.site)
        assert manager.adopt() == {name: "a"}
    (pid,) = client.run(os.getpid).values()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: manager.states() == {name: UnitState.ENDED})
    (seen,) = manager.launcher.observe().values()
    assert seen.reason == ("it ended" if adopted else "it was killed by SIGKILL")
    eventually(lambda: gone(child))  # the signal was sent; that it has worked takes a moment
    assert kinds(manager.site.cluster_id, tmp_path) == (0, 0)
    assert "distributed.worker" in asyncio.run(manager.launcher.logs(name))
    manager.stop([name])
    assert manager.states() == {}


@pytest.mark.parametrize("adopted", [False, True])
def test_a_worker_that_does_not_listen_is_killed(client, site_of, tmp_path, adopted, monkeypatch):
    for module in ("launcher", "processes"):
        monkeypatch.setattr(f"scalable.providers.local.{module}.TERMINATE_S", 0.3)
    manager = Manager(site_of())
    (name,) = manager.launch(0)
    client.wait_for_workers(1, timeout=60)
    (pid,) = client.run(os.getpid).values()
    if adopted:
        manager = Manager(manager.site)
        manager.adopt()
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    manager.stop([name])
    assert 0.2 < time.monotonic() - began < 30
    assert gone(pid)
    assert kinds(manager.site.cluster_id, tmp_path) == (0, 0)


def test_managers_of_one_cluster_and_clusters_of_one_user_do_not_mix(client, site_of):
    one = Manager(site_of("m1"))
    two = Manager(site_of("m2", cluster_id=one.site.cluster_id))
    other = Manager(site_of("m1", "other"))
    for manager in (one, two, other):
        manager.launch(0)
    again = Manager(one.site)
    assert set(again.adopt()) == set(one.names(0))
    for manager in (one, two, other):
        manager.stop(manager.names(0))


def test_no_secret_is_in_an_argument_or_the_environment(client, site_of, cluster):
    manager = Manager(site_of(), spec_of(interface="lo"))
    names = manager.launch(0)
    client.wait_for_workers(1, timeout=60)
    (address,) = cluster.scheduler.workers
    assert address.startswith("tls://127.0.0.1:")  # of the interface
    (program,) = programs(manager.site.directory)
    file = manager.site.directory / "components" / "a.json"
    assert program.arguments == (str(file), *names)
    needle = cluster.security.tls_worker_key.splitlines()[1]
    assert needle not in " ".join(program.process.cmdline())
    assert needle not in str(program.process.environ())
    assert needle in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0
    manager.stop(names)


def test_everything_of_a_cluster_is_found_and_ended_and_nothing_else(
    client, site_of, tmp_path, eventually, monkeypatch
):
    provider = LocalProvider()
    one, other = Manager(site_of()), Manager(site_of(nonce="other"))
    one.launch(0, 1)
    other.launch(0)
    client.wait_for_workers(3, timeout=60)
    child = client.submit(start_child, workers=one.names(0)).result(timeout=60)
    reader = subprocess.Popen(
        ["tail", "-f", f"{one.site.directory}/components/a.json"], stdout=subprocess.DEVNULL
    )
    try:
        with monkeypatch.context() as patch:  # another state directory is not looked into
            patch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
            assert (provider.discover(), provider.delete(one.site.cluster_id)) == ([], [])
        rows = {row["id"]: row for row in provider.discover()}
        assert set(rows) == {one.site.cluster_id, other.site.cluster_id}
        assert {row["provider"] for row in rows.values()} == {"local"}
        assert all(name in rows[one.site.cluster_id]["what"] for name in one.names(0, 1))
        ended = provider.delete(one.site.cluster_id)
        assert len(ended) == 2
        assert kinds(one.site.cluster_id, tmp_path) == (0, 0)
        assert kinds(other.site.cluster_id, tmp_path) == (1, 1)
        eventually(lambda: gone(child))
        assert reader.poll() is None
    finally:
        reader.kill()
        reader.wait(timeout=30)
    assert provider.delete(one.site.cluster_id) == []
    eventually(lambda: set(one.states().values()) == {UnitState.ENDED})
    other.stop(other.names(0))
    assert provider.discover() == []
