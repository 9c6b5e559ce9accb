"""A cluster of pools rests on Dask's SpecCluster, and says at its start where that has changed."""

import asyncio

import pytest

from scalable.dask_compat import cluster as cluster_compat
from scalable.dask_compat.cluster import (
    ManagedSpecCluster,
    memory_per_worker,
    threads_per_worker,
)


class Noted(ManagedSpecCluster):
    """Notes what is asked of it; nothing is started."""

    status = None

    def __init__(self, status):
        self.status, self.scheduler_info = status, {"workers": {}}
        self._correct_state_waiting = None
        self.calls = []

    async def _bring_in_line(self):
        self.calls.append("bring in line")

    def _workers_changed(self):
        self.calls.append("workers changed")

    @property
    def _can_grow(self):
        return True

    def _existing_units(self):
        return {"a": 1}


@pytest.fixture
def running():
    cluster = Noted(cluster_compat.Status.running)
    yield cluster
    cluster.status = cluster_compat.Status.closed  # Dask warns of clusters that are left open


def test_one_pass_brings_the_units_in_line_for_all_that_ask_at_once(running):
    async def main():
        await asyncio.gather(running._corrected(), running._corrected())

    asyncio.run(main())
    assert running.calls == ["bring in line"]


def test_a_later_request_makes_a_pass_of_its_own(running):
    async def main():
        await running._corrected()
        await running._corrected()
        await running._correct_now()

    asyncio.run(main())
    assert running.calls == ["bring in line"] * 3


def test_nothing_is_brought_in_line_while_the_cluster_does_not_run():
    cluster = Noted(cluster_compat.Status.closed)
    asyncio.run(cluster._correct_now())
    assert cluster.calls == []


def test_arrivals_and_departures_are_reported_and_no_worker_is_closed(running):
    running._update_worker_status("add", {"workers": {"tcp://1": {"name": "a"}}})
    assert running.scheduler_info["workers"] == {"tcp://1": {"name": "a"}}
    running._update_worker_status("remove", "tcp://1")
    assert running.scheduler_info["workers"] == {}
    running._update_worker_status("remove", "tcp://2")  # it came and went before anybody read of it
    assert running.calls == ["workers changed"] * 3
    assert running.workers == {"a": 1}


def test_size_of_a_worker_comes_from_its_template(running):
    running.new_spec = {"options": {"memory_limit": "2 GiB", "nthreads": 3}}
    assert memory_per_worker(running) == 2 * 2**30
    assert threads_per_worker(running) == 3
