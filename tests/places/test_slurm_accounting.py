"""Accounts, limits and preemption of a real Slurm, and its accounting beside the record of a run."""

import json

import pytest

from scalable import ProviderError, ScalableClient, ScalableSession, SlurmCluster
from scalable.runs.reading import read_run

CPUS = 8


@pytest.fixture
def site(on_accounting, monkeypatch, tmp_path):
    """A Slurm with accounting, on one node of eight cores; the account has no limits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    limit(on_accounting, MaxSubmitJobs=-1, MaxJobs=-1)
    return on_accounting


def limit(testbed, **limits):
    changes = [f"{name}={value}" for name, value in limits.items()]
    testbed.manage("modify", "account", "testbed", "set", *changes)


@pytest.fixture
def cluster(site):
    """Make a cluster in a partition."""
    made = []

    def make(queue="batch", **options):
        made.append(SlurmCluster(queue=queue, walltime="00:30:00", interface="lo", **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def inc(x):
    return x + 1


def test_an_unknown_account_is_refused_at_once(cluster):
    refused = cluster(account="nobodys")
    refused.add_container(tag="a")
    with pytest.raises(ProviderError, match="Invalid account"):
        refused.add_workers(n=2, tag="a")


def test_of_too_many_jobs_those_run_that_the_account_may_submit(cluster, site, eventually):
    limit(site, MaxSubmitJobs=2)
    limited = cluster(account="testbed")
    limited.add_container(tag="a")
    limited.add_workers(n=4, tag="a")
    eventually(lambda: limited.pools["a"].running == 2)
    eventually(lambda: "AssocMaxSubmitJobLimit" in (limited.pools["a"].waiting or ""))
    with ScalableClient(limited) as client:
        assert client.submit(inc, 1, tag="a").result(timeout=60) == 2
    limit(site, MaxSubmitJobs=-1)
    eventually(lambda: limited.pools["a"].running == 4)
    # The queue was read before the last worker connected.
    eventually(lambda: limited.pools["a"].waiting is None)
    assert limited.pools["a"].reason is None


@pytest.mark.slow
def test_jobs_that_the_account_may_not_run_yet_wait_and_say_so(cluster, site, eventually):
    limit(site, MaxJobs=1)
    limited = cluster(account="testbed")
    limited.add_container(tag="a")
    limited.add_workers(n=2, tag="a")
    eventually(lambda: limited.pools["a"].running == 1)
    eventually(lambda: "AssocMaxJobsLimit: your account" in (limited.pools["a"].waiting or ""))


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["scavenge", "requeue"])
def test_a_preempted_worker_is_replaced_by_a_new_job(
    cluster, site, eventually, partition, tmp_path
):
    yielding = cluster(partition)
    yielding.add_container(tag="a", cpus=CPUS)
    yielding.add_workers(n=1, tag="a")
    eventually(lambda: yielding.pools["a"].running == 1)
    (worker,) = yielding.manager.inventory.names("a")
    first = yielding.job_of(worker)
    urgent = site.command(
        "sbatch", "--parsable", "--partition=urgent", f"--cpus-per-task={CPUS}",
        "--output", str(tmp_path / "urgent"), "--wrap", "sleep 600",
    ).strip()  # fmt: skip
    eventually(lambda: site.job_states(urgent) == {urgent: "RUNNING"})
    eventually(lambda: worker not in yielding.manager.inventory.existing())
    assert site.job_states(first)[first] == "PREEMPTED"  # and not in the queue again
    site.command("scancel", urgent)
    eventually(lambda: yielding.pools["a"].running == 1)
    assert yielding.job_of(yielding.manager.inventory.names("a")[0]) != first
    assert yielding.pools["a"].reason is None


MANIFEST = """
version: 1
project: {name: accounted}
targets:
  hpc: {provider: slurm, queue: batch, walltime: "00:20:00", interface: lo, account: testbed}
components:
  model: {cpus: 2, memory: 2G, workers: 2}
"""


@pytest.mark.slow
def test_the_accounting_has_the_workers_of_the_record(site, tmp_path, eventually):
    (tmp_path / "scalable.yaml").write_text(MANIFEST)
    session = ScalableSession.from_yaml(target="hpc")
    with session as client:
        client.wait_for_workers(2, timeout=60)
        assert client.gather(client.map(inc, range(4), tag="model")) == [1, 2, 3, 4]
        jobs = (
            f"{session.cluster.name}.scalable-{session.cluster.manager.incarnation}.embedded@model"
        )
    requested = {
        row["worker"] for row in read_run(session.run_path).workers if row["event"] == "requested"
    }

    def accounted():
        fields = "State,Account,AllocCPUS,Comment%1024"
        lines = site.command("sacct", "-X", "-n", "-P", "--name", jobs, "-o", fields).splitlines()
        rows = [line.split("|", 3) for line in lines]
        return rows if rows and all(row[0].startswith("CANCELLED") for row in rows) else None

    rows = eventually(accounted)
    assert [row[1:3] for row in rows] == [["testbed", "2"]] * 2
    prefixes = {json.loads(row[3])["prefix"] for row in rows}
    assert requested == {f"{prefix}{number}" for prefix in prefixes for number in range(2)}
