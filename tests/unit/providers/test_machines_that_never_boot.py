"""Machines of a cloud whose workers never connect: they end, and their pool says why."""

import asyncio

import pytest

from memory_cloud import MemoryCloud
from scalable.manager import units
from scalable.manager.pools import Pool
from scalable.manager.reconciler import Reconciler
from scalable.model import ComponentSpec
from scalable.providers.remote import machine_launcher
from scalable.providers.remote.cloud import MachineState
from scalable.providers.remote.machine_launcher import MachineLauncher
from scalable.providers.remote.machines import MachineFrame
from unit.manager.house import FakeLink


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(units, "MAX_BACKOFF_S", 0.1)
    monkeypatch.setattr(machine_launcher, "BUSY_POLL_S", 0.01)
    monkeypatch.setattr(machine_launcher, "REST_POLL_S", 0.02)


async def test_a_machine_that_never_boots_is_ended_and_replaced_until_its_pool_is_degraded():
    cloud = MemoryCloud()
    frame = MachineFrame("c1", "ann", {"image": "img", "start_timeout": 0.2})
    launcher = MachineLauncher(cloud, frame, "m", {"crops": ComponentSpec("crops", cpus=2)})
    reconciler = Reconciler("c1")
    reconciler.inventory.add_pool(Pool("crops", launcher, {}))
    reconciler.start(FakeLink(), "m", "c1")
    reconciler.inventory.want("crops", 1)
    try:
        async with asyncio.timeout(60):
            while (pool := reconciler.inventory.status()["crops"]).reason is None:
                for name, machine in list(cloud.things.items()):
                    if machine.state is MachineState.PENDING:
                        cloud.become(MachineState.RUNNING, name)
                reconciler.wake()
                await asyncio.sleep(0.01)
            while any(m.state is MachineState.RUNNING for m in cloud.things.values()):
                reconciler.wake()
                await asyncio.sleep(0.01)
    finally:
        await reconciler.close()
        await launcher.close()
    assert "connect" in pool.reason
    assert len(cloud.things) > 1  # others were tried before the pool was given up
