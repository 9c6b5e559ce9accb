"""What the arrival of a graph costs the scheduler: CPU time of our plug-ins next to Dask's own.

    python benchmarks/arrival.py [--tasks 10000] [--rounds 5]

A scheduler without workers, with the task log and all its readers, receives graphs of a client in
this process. Shown is the CPU time in which a graph's tasks enter the scheduler's state: the whole,
and the shares of the task log and of each of its listeners, without the time of measuring.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import dask

from scalable.client.client import ScalableClient
from scalable.scheduler.controller import Controller
from scalable.scheduler.pool_scheduler import PoolScheduler
from scalable.scheduler.recorder import Recorder
from scalable.scheduler.task_log import EVENTS, TaskLog

#: What the plug-ins may take for 10,000 tasks, in milliseconds of an idle machine.
BAR_MS = 40.0


class NoRun:
    """Takes the recorder's rows and writes nothing."""

    def extend(self, stream: str, rows: Any) -> None:
        pass


def step(number: int) -> int:
    return number


class Meter:
    """Adds up the CPU seconds of functions by label, without those of inner functions."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        self._inner: list[float] = []
        #: What measuring adds to a call: to its own label, and to that of the caller.
        self._inside = self._outside = 0.0

    def calibrate(self, calls: int = 20_000) -> None:
        """Measure again what measuring costs, which depends on the machine's load."""
        self._inside = self._outside = 0.0

        def nothing(*args: Any, **kwargs: Any) -> None:
            pass

        def each(function: Callable[..., Any]) -> float:
            began = time.thread_time()
            for _ in range(calls):
                function("key", "released", "waiting", stimulus_id="graph")
            return (time.thread_time() - began) / calls

        bare, whole = each(nothing), each(self.of("nothing", nothing))
        inside = self.spent.pop("nothing") / calls - bare
        self._inside, self._outside = inside, whole - bare - inside

    def of(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.thread_time() - began
                inner = self._inner.pop()
                self.spent[label] += took - inner - self._inside
                if self._inner:
                    self._inner[-1] += took + self._outside

        return measured


async def measure(tasks: int, rounds: int, parts: bool) -> list[dict[str, float]]:
    found, meter = [], Meter()
    async with PoolScheduler(port=0, dashboard=False, host="127.0.0.1") as scheduler:
        scheduler.add_plugin(Controller(scheduler))
        recorder = Recorder(scheduler, NoRun(), ["a"])
        log = TaskLog.of(scheduler)
        if parts:
            for listener in log._listeners:
                for event in EVENTS:
                    label = f"{type(listener).__name__}"
                    setattr(listener, event, meter.of(label, getattr(listener, event)))
            log._subscribe = lambda: None  # type: ignore[method-assign]
            for event, told in log._told.items():
                names = {type(each.__self__).__name__ for each in told}
                log._told[event] = [
                    getattr(each, event) for each in log._listeners if type(each).__name__ in names
                ]
        for name in ("update_graph", "transition"):
            setattr(log, name, meter.of("task log", getattr(log, name)))
        scheduler._create_taskstate_from_graph = meter.of(  # type: ignore[method-assign]
            "dask", scheduler._create_taskstate_from_graph
        )
        async with ScalableClient(scheduler.address, asynchronous=True) as client:
            for number in range(rounds):
                meter.calibrate()
                meter.spent.clear()
                with dask.annotate(resources={"a": 1}):
                    futures = client.map(step, range(tasks), key=f"step-{number}")
                while len(scheduler.tasks) < tasks:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                found.append(dict(meter.spent))
                recorder.flush()
                futures.clear()
                while scheduler.tasks:  # noqa: ASYNC110 - tasks have no event for that
                    await asyncio.sleep(0.05)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    for parts in (False, True):
        found = asyncio.run(measure(asked.tasks, asked.rounds, parts))
        print("\nour plug-ins as a whole" if not parts else "\nour plug-ins, each")
        for label in sorted({label for each in found for label in each}):
            values = [each.get(label, 0.0) * 1e3 for each in found]
            print(f"{label:24}{median(values):9.1f} ms, at least {min(values):.1f}")
    print(f"\nbar: {BAR_MS:g} ms for 10,000 tasks")


if __name__ == "__main__":
    main()
