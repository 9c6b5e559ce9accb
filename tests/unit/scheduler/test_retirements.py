"""Workers that are drained at the same time retire together."""

import asyncio

from scalable.scheduler import worker_removals as module
from scalable.scheduler.worker_removals import AT_ONCE, Retirements


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


async def test_a_thousand_workers_retire_in_a_few_calls():
    scheduler = Scheduler()
    scheduler.goes_on.set()
    retirements = Retirements(scheduler)
    names = [f"w{number}" for number in range(999)] + ["stays"]
    answers = await asyncio.gather(*map(retirements.retire, names))
    assert [name for batch in scheduler.batches for name in batch] == names
    assert {len(batch) for batch in scheduler.batches} == {AT_ONCE}
    assert answers == [True] * 999 + [False]


async def test_workers_that_cannot_retire_soon_do_not_hold_up_the_next_ones(monkeypatch):
    monkeypatch.setattr(module, "LONGEST_S", 0.05)
    scheduler = Scheduler()
    retirements = Retirements(scheduler)
    tasks = [asyncio.create_task(retirements.retire(f"w{n}")) for n in range(AT_ONCE + 1)]
    while len(scheduler.batches) < 2:
        await asyncio.sleep(0.01)
    scheduler.goes_on.set()
    assert all(await asyncio.gather(*tasks))


async def test_a_worker_that_dask_fails_to_retire_has_not_retired():
    assert await Retirements(Scheduler()).retire("fails") is False
