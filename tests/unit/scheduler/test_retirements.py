"""Workers that are drained at the same time retire together."""

import asyncio

import pytest

from scalable.scheduler.retirements import Retirements


class Scheduler:
    """Stands in for a scheduler; workers named "stays..." cannot be retired."""

    def __init__(self):
        self.batches, self.goes_on = [], asyncio.Event()

    async def retire_workers(self, workers):
        self.batches.append(workers)
        if workers == ["fails"]:
            raise OSError("a worker does not answer")
        await self.goes_on.wait()
        return {worker: {} for worker in workers if not worker.startswith("stays")}


def test_a_thousand_workers_retire_in_one_call():
    async def run():
        scheduler = Scheduler()
        scheduler.goes_on.set()
        retirements = Retirements(scheduler)
        names = [f"w{number}" for number in range(999)] + ["stays"]
        answers = await asyncio.gather(*map(retirements.retire, names))
        assert scheduler.batches == [names]
        assert answers == [True] * 999 + [False]

    asyncio.run(run())


def test_a_worker_that_has_left_waits_for_no_other():
    async def run():
        scheduler = Scheduler()
        retirements = Retirements(scheduler)
        quick, slow = (asyncio.create_task(retirements.retire(name)) for name in ("quick", "slow"))
        while not scheduler.batches:
            await asyncio.sleep(0.01)
        retirements.left("quick")
        assert await quick
        assert not slow.done()
        third = asyncio.create_task(retirements.retire("third"))  # it need not wait for them either
        while len(scheduler.batches) < 2:
            await asyncio.sleep(0.01)
        scheduler.goes_on.set()
        assert await slow
        assert await third

    asyncio.run(run())


def test_an_error_reaches_those_who_asked():
    async def run():
        with pytest.raises(OSError, match="does not answer"):
            await Retirements(Scheduler()).retire("fails")

    asyncio.run(run())
