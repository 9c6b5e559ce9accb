"""Measures of an event loop: its turns, how long they hold it, and what ran in them.

A *turn* is one callback of the event loop: for so long, nothing else runs. Its CPU time does not
count what other programs of the machine take from it; its wall time does.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Any

import psutil

#: Names of the handlers with which a measured scheduler answers: the measures since the last time;
#: what its process has used; the number of its workers.
TAKE, USED, COUNT = "bench_take", "bench_used", "bench_count"
#: Number of the longest turns that are named.
NAMED_TURNS = 12
#: Seconds up to which the wall time of a turn is taken for its CPU time.
SHORT_S = 0.001
#: Label -> class and names of methods that it stands for.
Labels = Mapping[str, tuple[type, tuple[str, ...]]]


def used() -> dict[str, float]:
    """Return the CPU seconds of this process, and its memory in bytes, now and at most."""
    return {
        "cpu_s": time.process_time(),
        "rss": psutil.Process().memory_info().rss,
        "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


@dataclass
class Measure:
    """Number and times of turns or calls, in seconds; ``cpu_s`` is without garbage collection."""

    count: int = 0
    cpu_s: float = 0.0
    longest_cpu_s: float = 0.0
    longest_wall_s: float = 0.0
    longest_gc_s: float = 0.0

    def add(self, cpu_s: float, wall_s: float, gc_s: float = 0.0) -> None:
        """Add one turn or call."""
        self.count += 1
        self.cpu_s += cpu_s - gc_s
        self.longest_cpu_s = max(self.longest_cpu_s, cpu_s - gc_s)
        self.longest_wall_s = max(self.longest_wall_s, wall_s)
        self.longest_gc_s = max(self.longest_gc_s, gc_s)


class LoopMeter:
    """Measures the turns of this thread's event loop, and labelled methods in them."""

    def __init__(self) -> None:
        self.turns: dict[str, Measure] = {}
        self.parts: dict[str, Measure] = {}
        self.shares: dict[str, Measure] = {}
        self.longest: list[tuple[float, float, float, str, dict[str, float]]] = []
        self._inside: dict[str, float] = {}
        self._whole: str | None = None
        self._gc_s = self._gc_began = 0.0

    def install(self, whole: Labels, parts: Labels, followed: Labels) -> None:
        """Begin to measure; to be called before any scheduler exists."""
        for label, (owner, names) in whole.items():
            for name in names:
                self._wrap(owner, name, label, whole=True)
        for label, (owner, names) in parts.items():
            for name in names:
                self._wrap(owner, name, label)
        for label, (owner, names) in followed.items():
            for name in names:
                self._follow(owner, name, label)
        gc.callbacks.append(self._collects)
        run = asyncio.Handle._run

        def measured(handle: asyncio.Handle) -> None:
            name = handle._callback
            self._inside, self._whole = {}, None
            collected, wall, cpu = self._gc_s, time.perf_counter(), time.thread_time()
            try:
                run(handle)
            finally:
                wall = time.perf_counter() - wall
                # Asking for the CPU time takes long; a short turn counts with its wall time.
                cpu = time.thread_time() - cpu if wall > SHORT_S else wall
                self._turned(name, cpu, wall, self._gc_s - collected)

        asyncio.Handle._run = measured  # type: ignore[method-assign]

    def _turned(self, callback: Any, cpu: float, wall: float, collected: float) -> None:
        whole = self._whole
        if whole is not None:
            self.turns.setdefault(whole, Measure()).add(cpu, wall, collected)
        self.turns.setdefault("all turns", Measure()).add(cpu, wall, collected)
        for label, seconds in self._inside.items():
            self.shares.setdefault(label, Measure()).add(seconds, wall)
        if cpu > 0.005:
            self.longest.append((cpu, wall, collected, _name_of(callback), self._inside))
            self.longest.sort(key=lambda turn: -turn[0])
            del self.longest[NAMED_TURNS:]

    def _collects(self, phase: str, info: Mapping[str, int]) -> None:  # noqa: ARG002
        now = time.thread_time()
        if phase == "start":
            self._gc_began = now
        else:
            self._gc_s += now - self._gc_began

    def _wrap(self, owner: type, name: str, label: str, *, whole: bool = False) -> None:
        function = getattr(owner, name)

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if whole and self._whole is None:
                self._whole = label
            collected, wall, cpu = self._gc_s, time.perf_counter(), time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
                collected = self._gc_s - collected
                self.parts.setdefault(label, Measure()).add(cpu, wall, collected)
                self._inside[label] = self._inside.get(label, 0.0) + cpu - collected

        setattr(owner, name, timed)

    def _follow(self, owner: type, name: str, label: str) -> None:
        """Count all turns of a coroutine function for a label."""
        function = getattr(owner, name)

        @wraps(function)
        async def followed(*args: Any, **kwargs: Any) -> Any:
            return await _Steps(function(*args, **kwargs), begin)

        def begin() -> None:
            self._whole = self._whole or label

        setattr(owner, name, followed)

    def measures(self) -> dict[str, Any]:
        """Return what was measured since it was last taken, as plain values."""
        return {
            "turns": {label: asdict(measure) for label, measure in self.turns.items()},
            "parts": {label: asdict(measure) for label, measure in self.parts.items()},
            "shares": {label: asdict(measure) for label, measure in self.shares.items()},
            "longest": [list(turn) for turn in self.longest],
        }

    def take(self) -> dict[str, Any]:
        """Return what was measured since the last time, as plain values."""
        found = self.measures()
        self.turns, self.parts, self.shares, self.longest = {}, {}, {}, []
        return found


def offer_measures(scheduler: Any, meter: LoopMeter | None) -> None:
    """Let a scheduler answer to ``TAKE``, ``USED`` and ``COUNT``."""
    scheduler.handlers |= {
        TAKE: lambda: {} if meter is None else meter.take(),
        USED: lambda: used() | {"tasks": len(scheduler.tasks)},
        COUNT: lambda: len(scheduler.workers),
    }


class _Steps:
    """A coroutine with a function that is called at the beginning of each of its turns."""

    def __init__(self, coroutine: Any, begin: Callable[[], None]) -> None:
        self._coroutine, self._begin = coroutine, begin

    def __await__(self) -> Iterator[Any]:
        step, value = self._coroutine.send, None
        while True:
            self._begin()
            try:
                waits = step(value)
            except StopIteration as end:
                return end.value
            try:
                value = yield waits
                step = self._coroutine.send
            except BaseException as error:  # noqa: BLE001 - passed on
                value, step = error, self._coroutine.throw


def _task_of(callback: Any) -> asyncio.Task[Any] | None:
    owner = getattr(callback, "__self__", None)
    return owner if isinstance(owner, asyncio.Task) else None


def _name_of(callback: Any) -> str:
    task = _task_of(callback)
    if task is not None:
        return getattr(task.get_coro(), "__qualname__", repr(task.get_coro()))
    return getattr(callback, "__qualname__", repr(callback))
