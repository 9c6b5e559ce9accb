"""Machines that their cloud takes back: results move, calls end or run again, nobody is to blame."""

import time

import pytest
from taken_back import MachineLauncher

from scalable import PoolCluster, ScalableClient
from scalable.manager.pools import Pool

#: Seconds of notice: long enough for a worker to start meanwhile, also beside other tests.
NOTICE_S = 20.0
#: Length of a notice in which the call that runs does not end.
SHORT_S = 3.0
CUT_S = 4.5


@pytest.fixture(scope="module", params=["ec2", "gce"])
def place(request, tmp_path_factory):
    """One pool of two workers on machines that can be taken back."""
    launcher = MachineLauncher(request.param, tmp_path_factory.mktemp("machines"), NOTICE_S)
    with PoolCluster() as cluster:
        launcher.scheduler = cluster.scheduler_address
        launcher.security = cluster.security
        launcher.tag, launcher.manager = "a", "embedded"
        cluster.add_pools([Pool("a", launcher, {"cls": "machine", "options": {}})])
        cluster.scale("a", 2)
        with ScalableClient(cluster) as client:
            yield launcher, cluster, client


@pytest.fixture(autouse=True)
def _two_workers(place, eventually):
    _, cluster, client = place
    eventually(lambda: cluster.pools["a"].running == 2, "two workers")
    client.wait_for_workers(2, timeout=60)


def write_and_sleep(path, word, seconds):
    with open(path, "a") as file:
        file.write(f"{word}\n")
    time.sleep(seconds)
    return word


def make(path, word, size):
    with open(path, "a") as file:
        file.write(f"{word}\n")
    return word * size


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


def worker_of(client, key=None):
    """Return the name of the worker that has a task to run, or has any."""
    (address,) = [a for a, keys in client.processing().items() if (key in keys if key else keys)]
    return client.scheduler_info(n_workers=-1)["workers"][address]["name"]


def test_results_move_and_running_calls_end_and_the_successor_is_asked_for_at_the_notice(
    place, tmp_path, eventually
):
    launcher, cluster, client = place
    events = []
    cluster.manager.listeners.append(events.append)
    ran = tmp_path / "ran"
    results = [client.submit(make, str(ran), f"r{n}", 1000, tag="a", pure=False) for n in range(8)]
    client.gather(results)
    long = client.submit(write_and_sleep, str(ran), "long", 3, tag="a", pure=False)
    eventually(lambda: "long" in lines(ran), "the call that runs")
    leaving = worker_of(client, long.key)
    before = len(launcher.requested)
    launcher.take_back(leaving)
    eventually(lambda: len(launcher.requested) > before, "the successor")
    assert leaving not in launcher.ended_at  # the successor is not asked for at the end
    # Nothing new begins there, however much waits.
    later = [
        client.submit(write_and_sleep, str(ran), f"later{n}", 0.1, tag="a", pure=False)
        for n in range(20)
    ]
    assert client.gather(later) == [f"later{n}" for n in range(20)]
    assert long.result(timeout=60) == "long"
    eventually(lambda: leaving in launcher.ended_at, "the end of the machine")
    assert client.gather(results) == [f"r{n}" * 1000 for n in range(8)]
    assert len(lines(ran)) == len(set(lines(ran))) == 29  # each call ran once
    reason = cluster.pools["a"].last_loss
    assert reason.startswith(f"{leaving}: its machine is preempted by the cloud")
    rows = [e for e in events if e.get("event") == "removed"]
    assert "preempted by the cloud" in next(e["reason"] for e in rows if e["worker"] == leaving)
    assert cluster.pools["a"].reason is None


@pytest.mark.parametrize("place", ["ec2"], indirect=True)
@pytest.mark.parametrize("way", ["submit", "executor"])
def test_a_call_that_is_cut_runs_again_and_is_not_to_blame(place, tmp_path, eventually, way):
    launcher, _, client = place
    ran, executor = tmp_path / "ran", client.executor(tag="a")
    if way == "submit":
        call = client.submit(write_and_sleep, str(ran), "cut", CUT_S, tag="a", pure=False)
    else:
        call = executor.submit(write_and_sleep, str(ran), "cut", CUT_S)
    eventually(lambda: lines(ran), "its start")
    launcher.take_back(worker_of(client), notice_s=SHORT_S)
    assert call.result(timeout=120) == "cut"
    assert lines(ran) == ["cut"] * 2
    if way == "submit":
        assert client.run_on_scheduler(suspicious, call.key) == 0
    else:
        assert executor._single.suspects([call]) == []


def suspicious(key, dask_scheduler):
    return dask_scheduler.tasks[key].suspicious
