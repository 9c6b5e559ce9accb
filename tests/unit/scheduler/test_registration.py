"""Workers that are lost while they register with the scheduler."""

import asyncio

from distributed import SchedulerPlugin, Worker

from scalable.scheduler.pool_scheduler import PoolScheduler


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
