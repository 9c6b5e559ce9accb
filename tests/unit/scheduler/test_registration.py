"""Workers that are lost while they register; workers and clients with other messages."""

import asyncio
import logging

import pytest
from distributed import SchedulerPlugin, Worker

from scalable import ClusterError, ScalableClient
from scalable.protocol.operations import WIRE, WIRE_VERSION, other_wire
from scalable.scheduler.pool_scheduler import PoolScheduler
from scalable.worker.pool_worker import PoolWorker


class Slow(SchedulerPlugin):
    """Keep the registration of workers waiting."""

    name = "slow"

    def __init__(self):
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()

    async def add_worker(self, **_):
        self.begun.set()
        await self.goes_on.wait()


async def lost_while_registering():
    async with PoolScheduler(port=0, dashboard=False, host="127.0.0.1") as scheduler:
        slow = Slow()
        scheduler.add_plugin(slow)
        worker = Worker(scheduler.address, nthreads=1, dashboard=False)
        starting = asyncio.ensure_future(worker.start())
        await slow.begun.wait()
        names = [ws.name for ws in scheduler.workers.values()]
        for comm in list(scheduler._comms):
            comm.abort()
        slow.goes_on.set()
        while scheduler.workers:
            await asyncio.sleep(0.01)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await worker.close(timeout=1, nanny=False)
        return names, scheduler


def test_a_worker_that_is_lost_while_it_registers_is_removed():
    names, scheduler = asyncio.run(asyncio.wait_for(lost_while_registering(), 60))
    assert len(names) == 1
    assert not scheduler.aliases


# Versions of the messages -------------------------------------------------------------------------


async def error_of(make, monkeypatch, module):
    """Return what a peer raises whose partner in ``module`` has the next version."""
    monkeypatch.setattr(f"scalable.{module}.WIRE_VERSION", WIRE_VERSION + 1)
    async with PoolScheduler(port=0, dashboard=False, host="127.0.0.1") as scheduler:
        with pytest.raises((ClusterError, RuntimeError)) as caught:
            await make(scheduler.address)
        return f"{caught.value} {caught.value.__cause__}", scheduler


def test_a_client_with_other_messages_gets_an_error_at_once(monkeypatch):
    def client(address):
        return ScalableClient(address, asynchronous=True, set_as_default=False)

    error, scheduler = asyncio.run(error_of(client, monkeypatch, "scheduler.pool_scheduler"))
    assert f"has version {WIRE_VERSION + 1} of scalable's messages" in error
    assert f"this client has version {WIRE_VERSION}" in error
    assert "install one release of scalable" in error
    assert set(scheduler.clients) == {"fire-and-forget"}


def test_a_worker_with_other_messages_gets_an_error_at_once(monkeypatch, caplog):
    def worker(address):
        return PoolWorker(address, name="w", nthreads=1, dashboard=False)

    with caplog.at_level(logging.WARNING):
        error, scheduler = asyncio.run(error_of(worker, monkeypatch, "worker.pool_worker"))
    assert f"worker w has version {WIRE_VERSION + 1} of scalable's messages" in error
    assert f"the scheduler has version {WIRE_VERSION}" in error
    assert "install one release of scalable" in error
    assert {"distributed.worker", "scalable.scheduler"} <= {r.name for r in caplog.records}
    assert not scheduler.workers


def test_a_peer_of_dask_has_no_version_of_the_messages():
    assert other_wire({}, "there", "here") is None
    assert other_wire({WIRE: WIRE_VERSION}, "there", "here") is None
