"""Ports of schedulers that start at the same time, or find their port taken."""

import asyncio
import socket

import pytest

from scalable import SlurmCluster
from scalable.scheduler.pool_scheduler import PoolScheduler


@pytest.fixture
def taken():
    """A port that somebody listens on."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def started(port, count, **options):
    """Start schedulers at the same time; return their ports."""

    async def main():
        schedulers = [
            PoolScheduler(host="127.0.0.1", port=port, dashboard=False, **options)
            for _ in range(count)
        ]
        try:
            await asyncio.gather(*schedulers)
            return sorted(scheduler.port for scheduler in schedulers)
        finally:
            await asyncio.gather(*(scheduler.close() for scheduler in schedulers))

    return asyncio.run(main())


def test_schedulers_that_start_together_get_different_ports(taken):
    ports = started(taken, 4, ports_tried=50)
    assert len(set(ports)) == 4
    assert all(taken < port < taken + 50 for port in ports)


def test_a_port_that_is_taken_after_the_look_is_passed_over(taken, monkeypatch):
    monkeypatch.setattr("scalable.providers.slurm.cluster.free_port", lambda host, first: taken)
    with SlurmCluster(interface="lo") as cluster:
        assert taken < cluster.scheduler.port < taken + 200
