"""Workers that connect although their units are being stopped: no call reaches them."""

import asyncio

from distributed import Client, SchedulerPlugin, Worker
from distributed.core import Status

from scalable.scheduler.controller import Controller
from scalable.scheduler.pool_scheduler import PoolScheduler


class Assigned(SchedulerPlugin):
    """Note the workers that tasks are assigned to."""

    name = "assigned"

    def __init__(self, scheduler):
        self.scheduler, self.workers = scheduler, set()

    def transition(self, key, start, finish, *_, **__):
        if finish == "processing":
            self.workers.add(self.scheduler.tasks[key].processing_on.name)


async def drained(scheduler, controller):
    """Connect a withheld worker while a call waits for one; return who was given the call."""
    assigned = Assigned(scheduler)
    scheduler.add_plugin(assigned)
    options = {"nthreads": 1, "dashboard": False, "resources": {"a": 1}}
    async with Client(scheduler.address, asynchronous=True) as client:
        future = client.submit(abs, -1, resources={"a": 1})
        while not scheduler.unrunnable:
            await asyncio.sleep(0.01)
        assert controller.removals.records.withhold_work([["a-1"]]) == []
        worker = Worker(scheduler.address, name="a-1", **options)
        await worker.start()
        while worker.status is Status.running:
            await asyncio.sleep(0.01)
        await worker.close(nanny=False)
        async with Worker(scheduler.address, name="a-2", **options):
            assert await future == 1
        return assigned.workers


def test_a_worker_that_is_withheld_is_assigned_nothing_when_it_says_that_it_is_running():
    async def run():
        async with PoolScheduler(port=0, dashboard=False, host="127.0.0.1") as scheduler:
            controller = Controller(scheduler)
            scheduler.add_plugin(controller)
            return await drained(scheduler, controller)

    assert asyncio.run(asyncio.wait_for(run(), 60)) == {"a-2"}
