"""A reconciler between a scheduler and two places that the test plays."""

import asyncio
import time
from collections import Counter
from dataclasses import asdict

import pytest

from scalable.manager import reconciler
from scalable.manager.launcher import Observation, UnitState
from scalable.manager.pools import Pool
from scalable.manager.reconciler import Reconciler
from scalable.manager.units import WorkerView
from unit.played import decorator_of

ANSWER = {"longest_s": 0.0, "orders": {}, "end": False, "counts_costs": False}


class FakeLink:
    """A scheduler that sees the workers which the test connected."""

    def __init__(self):
        self.workers = {}
        self.lost_at_work = {}
        self.withheld = set()
        self.before_withholding = lambda: None
        self.calls = Counter()
        self.silent = set()
        self.told = []
        self.drain_reasons = {}

    def __getattr__(self, name):
        if not name.startswith("scalable_"):
            raise AttributeError(name)
        return getattr(self, name.removeprefix("scalable_"))

    async def heartbeat(self, **report):
        self.calls["heartbeat"] += 1
        lost = {name: {"lost_at_work": address} for name, address in self.lost_at_work.items()}
        here = {name: asdict(view) | lost.get(name, {}) for name, view in self.workers.items()}
        return ANSWER | {"workers": lost | here}

    async def withhold_work(self, units):
        act, self.before_withholding = self.before_withholding, lambda: None
        act()
        for unit in units:
            if not self.workers.keys() & set(unit):
                self.withheld |= set(unit)
        return [worker for unit in units for worker in unit if worker in self.workers]

    async def _note(self, request, workers):
        if request in self.silent:
            self.silent.discard(request)
            raise OSError("the scheduler does not answer")
        self.told.append((request, list(workers)))

    async def drain(self, workers, walltimes=None):
        """Idle workers leave at once; the others are left to the test."""
        await self._note("drain", workers)
        self.drain_reasons |= workers
        for name in workers:
            if name in self.workers and not self.workers[name].processing:
                del self.workers[name]

    async def allow_work(self, workers):
        await self._note("allow_work", workers)
        self.withheld -= set(workers)

    async def resume(self, workers):
        await self._note("resume", workers)
        return [name for name in workers if name in self.workers]

    async def excuse_losses(self, workers):
        await self._note("excuse_losses", workers)

    async def ended_for_memory(self, workers):
        await self._note("ended_for_memory", workers)


class FakePlace:
    """A launcher whose answers wait for events of the test."""

    def __init__(self, link):
        self.link = link
        self.answers = asyncio.Event()
        self.answers.set()
        self.reads = asyncio.Event()
        self.reads.set()
        self.error = None
        self.launched, self.stopped, self.read, self.batches = [], [], [], 0
        #: Workers that were connected when their unit was stopped.
        self.killed = []
        self.group = ("",)
        self.observed = {}

    async def launch(self, entries):
        self.batches += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        for name in entries:
            self.launched.append(name)
            self.observed[name] = Observation(UnitState.RUNNING)

    async def adopt(self):
        return {}

    async def stop(self, names):
        for name in names:
            self.stopped.append(name)
            self.observed.pop(name, None)
            for worker in self.workers_of(name):
                if self.link.workers.pop(worker, None) is not None:
                    self.killed.append(worker)

    def observe(self):
        return dict(self.observed)

    def look_soon(self):
        pass

    async def logs(self, name):
        self.read.append(name)
        await self.reads.wait()
        return f"the output of {name}"

    def workers_of(self, name):
        return [f"{name}{suffix}" for suffix in self.group]

    def connect(self, *names, processing=0):
        for name in names or self.observed:
            for worker in self.workers_of(name):
                self.link.workers[worker] = WorkerView(f"tcp://{worker}", processing)

    def kill(self, name):
        self.observed[name] = Observation(UnitState.ENDED, "it was killed")
        self.link.workers.pop(name, None)


class House:
    """A reconciler with a pool in a slow place and one in a quick place."""

    def __init__(self, **options):
        self.link = FakeLink()
        self.slow, self.quick = FakePlace(self.link), FakePlace(self.link)
        self.events = []
        self.reconciler = Reconciler("c1", on_event=self.events.append, **options)
        self.inventory = self.reconciler.inventory
        self.inventory.add_pool(Pool("slow", self.slow, {}))
        self.inventory.add_pool(Pool("quick", self.quick, {}))
        self.reconciler.start(self.link, "m", "c1")

    async def until(self, condition):
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, "it did not happen within 30 s"
            await asyncio.sleep(0.01)

    async def passes(self, count=3):
        """Let the reconciler look a few times."""
        target = self.link.calls["heartbeat"] + count
        while self.link.calls["heartbeat"] < target:
            self.reconciler.wake()
            await asyncio.sleep(0.01)


def _play(scenario, **options):
    async def run():
        house = House(**options)
        try:
            await scenario(house)
        finally:
            for place in (house.slow, house.quick):
                place.answers.set()
                place.reads.set()
            await house.reconciler.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reconciler, "INTERVAL_S", 0.05)
        asyncio.run(asyncio.wait_for(run(), 90))


in_house = decorator_of(_play, 1)
