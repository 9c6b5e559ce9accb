"""Jobs of a real Slurm that outlive the manager which submitted them, and are found again."""

import asyncio
import os
import sys
import time
import uuid

import pytest
from distributed import Client, SpecCluster
from distributed.security import Security

from scalable.errors import ProviderError
from scalable.manager.launcher import UnitState
from scalable.manager.pools import ManagerSite
from scalable.model import ComponentSpec, DeploymentSpec
from scalable.providers.slurm import SlurmProvider
from scalable.providers.slurm.options import SlurmOptions
from scalable.scheduler.pool_scheduler import PoolScheduler

OPTIONS = {"queue": "batch", "walltime": "00:30:00", "interface": "lo"}


@pytest.fixture(autouse=True)
def directories(tmp_path, monkeypatch):
    """A state directory of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cluster():
    """A scheduler without workers."""
    security = Security.temporary()
    options = {"host": "127.0.0.1", "port": 0, "dashboard": False, "protocol": "tls://"}
    scheduler = {"cls": PoolScheduler, "options": {**options, "security": security}}
    with SpecCluster(scheduler=scheduler, security=security) as made:
        yield made


def cluster_directory(tmp_path, cluster_id):
    return tmp_path / "state" / "scalable" / "clusters" / cluster_id


@pytest.fixture
def site_of(cluster, tmp_path):
    """Sites of managers."""

    def make(manager="hpc", nonce="one", cluster_id=None, directory=None):
        cluster_id = cluster_id or str(uuid.uuid4())
        parent = directory or cluster_directory(tmp_path, cluster_id)
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

    return make


def spec_of(*components, **options):
    model = SlurmOptions.model_validate_json("{}").model_copy(update=OPTIONS | options)
    return DeploymentSpec(
        "project", "hpc", "slurm", {c.name: c for c in components}, options=model.model_dump()
    )


class Manager:
    """What a manager's process has of the launcher, in this process."""

    def __init__(self, site, *components, **options):
        components = components or (ComponentSpec("a"),)
        self.pools = SlurmProvider().pools(spec_of(*components, **options), site)
        self.launcher = self.pools[0].launcher
        self.site = site

    def names(self, *numbers, tag="a"):
        return [f"{tag}-{self.site.incarnation}-{number}" for number in numbers]

    async def launch(self, *numbers, tag="a"):
        entries = {name: {"options": {}, "pool": tag} for name in self.names(*numbers, tag=tag)}
        await self.launcher.launch(entries)
        return list(entries)


def test_jobs_are_taken_over_by_the_next_process_of_their_manager(on_slurm, cluster, site_of):
    wide = ComponentSpec("wide", cpus=64)

    async def first():
        manager = Manager(site_of(cluster_id=cluster_id), ComponentSpec("a"), wide)
        await manager.launch(0, 1)
        await manager.launch(*range(5), tag="wide")  # one more than there are nodes

    async def second():
        manager = Manager(site_of(nonce="two", cluster_id=cluster_id), ComponentSpec("a"), wide)
        adopted = await manager.launcher.adopt()
        assert await manager.launcher.adopt() == {}
        running = dict(manager.launcher.observe())
        started = await manager.launch(0)
        await manager.launcher.stop([*adopted, *started])
        assert manager.launcher.observe() == {}
        return adopted, running, started

    cluster_id = str(uuid.uuid4())
    asyncio.run(first())
    with Client(cluster) as client:
        client.wait_for_workers(3, timeout=120)
        workers = {str(ws.name): ws for ws in cluster.scheduler.workers.values()}
        assert {ws.extra["scalable_manager"] for ws in workers.values()} == {"hpc"}
        adopted, seen, started = asyncio.run(second())
    names = [*(f"a-hpc-one-{n}" for n in (0, 1)), *(f"wide-hpc-one-{n}" for n in range(5))]
    assert adopted == {name: name.split("-")[0] for name in names}
    assert workers.keys() <= adopted.keys()
    assert {seen[name].state for name in workers} == {UnitState.RUNNING}
    assert UnitState.PENDING in {observed.state for observed in seen.values()}
    assert started == ["a-hpc-two-0"]
    assert on_slurm.jobs() == []


def test_other_managers_other_clusters_and_other_tags_are_left_alone(on_slurm, site_of):
    a, ab = ComponentSpec("a"), ComponentSpec("b-a")  # manager "hpc-b" has tag "a"

    async def scenario():
        one = Manager(site_of("hpc"), a, ab)
        two = Manager(site_of("hpc-b", cluster_id=one.site.cluster_id), a)
        other = Manager(site_of("hpc"), a)
        names = await one.launch(0)
        for manager, tag in ((one, "b-a"), (two, "a"), (other, "a")):
            names += await manager.launch(0, tag=tag)
        again = Manager(one.site, a, ab)
        assert sorted(await again.launcher.adopt()) == sorted([names[0], names[1]])
        for manager in (one, two, other):
            await manager.launcher.stop(names)

    asyncio.run(scenario())


def test_the_output_is_found_under_the_worker_s_name(on_slurm, cluster, site_of, tmp_path):
    async def scenario():
        manager = Manager(site_of(), ComponentSpec("a"))
        (name,) = await manager.launch(0)
        return manager, name

    manager, name = asyncio.run(scenario())
    with Client(cluster) as client:
        client.wait_for_workers(1, timeout=120)
    asyncio.run(manager.launcher.stop([name]))
    link = tmp_path / "logs" / f"{name}.log"
    assert link.is_symlink()
    assert "Start worker at" in link.read_text()


def test_everything_of_a_cluster_is_found_and_ended_and_nothing_else(
    on_slurm, site_of, tmp_path, eventually
):
    provider = SlurmProvider()

    async def scenario():
        one, other = Manager(site_of()), Manager(site_of(nonce="other"))
        foreign = Manager(site_of("guest", directory=tmp_path / "elsewhere"))
        await one.launch(0, 1)
        await other.launch(0)
        await foreign.launch(0)
        return one.site.cluster_id, other.site.cluster_id, foreign.site.cluster_id

    one, other, foreign = asyncio.run(scenario())
    rows = {row["id"]: row for row in provider.discover()}
    # A manager that provisions for a cluster of another machine is no orphan of this one.
    assert set(rows) == {one, other}
    assert rows[one] == {
        "id": one,
        "provider": "slurm",
        "what": f"2 jobs scalable-{one}.hpc@a",
    }
    (ended,) = provider.delete(one)
    assert f"(scalable-{one}.hpc@a)" in ended
    assert provider.delete(one) == []
    assert len(on_slurm.jobs()) == 2
    assert [row["id"] for row in provider.discover()] == [other]
    for cluster_id in (other, foreign):
        provider.delete(cluster_id)
    assert provider.discover() == []


def test_a_detached_cluster_s_directory_is_kept_when_its_scheduler_is_gone(
    on_slurm, cluster, site_of, eventually
):
    site = site_of()
    asyncio.run(Manager(site).launch(0))
    with Client(cluster) as client:
        client.wait_for_workers(1, timeout=120)
    cluster.close()
    eventually(lambda: not on_slurm.jobs(), timeout=120)
    assert (site.directory / "components" / "a.json").exists()


# The programs of a cluster -------------------------------------------------------------------------

PROGRAM = "import os, time; print(os.getpid(), os.environ.get('SCALABLE_CLUSTER')); time.sleep(600)"


def test_scheduler_and_managers_may_be_jobs(on_slurm, tmp_path, monkeypatch, eventually):
    monkeypatch.setenv("SCALABLE_CLUSTER", "an outer one")
    provider = SlurmProvider()
    cluster_id = str(uuid.uuid4())
    directory = cluster_directory(tmp_path, cluster_id)
    directory.mkdir(parents=True)
    log = tmp_path / "100% log"
    services = provider.services(spec_of())
    program = [sys.executable, "-uc", PROGRAM]
    services.start(directory, "scheduler", program, log)
    services.start(directory, "it's me", program, tmp_path / "manager.log")
    both = {"scheduler": "running", "it's me": "running"}
    asked = provider.services(None)
    eventually(lambda: asked.state(cluster_id) == both)
    assert asked.state(str(uuid.uuid4())) == {}
    assert {row["id"] for row in provider.discover()} == {cluster_id}
    eventually(lambda: log.exists() and log.read_text().endswith(" None\n"))
    assert {job.split()[1] for job in on_slurm.jobs()} != set()
    assert len(provider.delete(cluster_id)) == 2
    assert asked.state(cluster_id) == {}


def test_a_scheduler_s_job_does_not_cancel_itself(on_slurm, tmp_path, monkeypatch, eventually):
    """It clears away after itself: what it deletes is everything else."""
    provider = SlurmProvider()
    cluster_id = str(uuid.uuid4())
    directory = cluster_directory(tmp_path, cluster_id)
    directory.mkdir(parents=True)
    services = provider.services(spec_of())
    program = [
        sys.executable,
        "-uc",
        "import os, time; print(os.environ['SLURM_JOB_ID']); time.sleep(600)",
    ]
    for service in ("scheduler", "hpc"):
        services.start(directory, service, program, tmp_path / f"{service}.log")
    log = tmp_path / "scheduler.log"
    job = eventually(lambda: log.exists() and log.read_text().strip())
    with monkeypatch.context() as patch:
        patch.setenv("SLURM_JOB_ID", job)
        assert len(provider.delete(cluster_id)) == 1
    assert services.state(cluster_id) == {"scheduler": "running"}
    assert len(provider.delete(cluster_id)) == 1


def test_a_refused_service_job_is_an_error_with_slurms_message(on_slurm, tmp_path):
    directory = cluster_directory(tmp_path, str(uuid.uuid4()))
    services = SlurmProvider().services(spec_of(queue="nowhere"))
    with pytest.raises(ProviderError, match="invalid partition"):
        services.start(directory, "scheduler", ["true"], tmp_path / "log")


# Without a Slurm -----------------------------------------------------------------------------------


def test_discovery_without_slurm_finds_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert SlurmProvider().discover() == []
    with pytest.raises(ProviderError, match="squeue is not on PATH"):
        SlurmProvider().delete(str(uuid.uuid4()))


def test_a_slurm_that_hangs_is_named_in_time(monkeypatch, tmp_path):
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nexec sleep 600\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    began = time.monotonic()
    with pytest.raises(ProviderError, match="squeue did not answer"):
        SlurmProvider().discover()
    assert time.monotonic() - began < 30
