"""A scheduler in a process of its own, with all our plug-ins, whose event loop is measured.

    python benchmarks/measured_scheduler.py DIRECTORY

DIRECTORY is that of a cluster on record (:func:`record_cluster`). The program is that of detached
clusters, with handlers for benchmarks beside it (:class:`Handlers`).

A *turn* is one callback of the event loop: for so long, nothing else runs. Its CPU time does not
count what other programs of the machine take from it; its wall time does.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from distributed import Scheduler
from distributed.stealing import WorkStealing

from scalable.dashboard import routes
from scalable.lifecycle.ending import clear_away
from scalable.liveness import identify_process
from scalable.programs.scheduler import serve
from scalable.protocol.code import in_image
from scalable.protocol.credentials import new_credentials
from scalable.protocol.importing import Importer
from scalable.records import ClusterDirectory
from scalable.scheduler.attendance import Attendance
from scalable.scheduler.controller import Controller
from scalable.scheduler.explaining import Explainer
from scalable.scheduler.ledger import EVENTS, Ledger, Listener
from scalable.scheduler.overview.call_counts import NameCounts, NameRow
from scalable.scheduler.overview.overviews import Overviews
from scalable.scheduler.overview.timeline import Timeline
from scalable.scheduler.recorder import Recorder
from scalable.scheduler.status import Status
from scalable.scheduler.workload import Workload
from scalable.spec import ClusterRecord

#: Names of the handlers for benchmarks.
TAKE, SIZES, KNOWN = "bench_take", "bench_sizes", "bench_known"
SWITCH, USED = "bench_switch", "bench_used"
#: Number of the longest turns that are named.
NAMED_TURNS = 12

#: Label -> class and methods that it stands for. The whole turn in which they run counts for it.
REQUESTS: Mapping[str, tuple[type, tuple[str, ...]]] = {
    "overview request": (Overviews, ("answer",)),
    "page request": (routes.Overview, ("get",)),
    "status request": (Controller, ("status",)),
    "controller pass": (Controller, ("_tick",)),
    "manager's heartbeat": (Attendance, ("heartbeat",)),
    "order to scale": (Controller, ("scale",)),
    "worker arrives": (Controller, ("add_worker",)),
    "worker leaves": (Controller, ("remove_worker",)),
    "worker's heartbeat": (Scheduler, ("heartbeat_worker",)),
    "graph of a client": (Ledger, ("update_graph",)),
    "recorder's rows": (Recorder, ("_tick",)),
    "Dask's stealing": (WorkStealing, ("balance",)),
}
#: Label -> class and methods whose own time counts for it.
PARTS: Mapping[str, tuple[type, tuple[str, ...]]] = {
    "model: a sample": (Overviews, ("sample",)),
    "model: an overview made": (Overviews, ("_made",)),
    "status: snapshot": (Status, ("snapshot",)),
    "ledger: graph": (Ledger, ("update_graph",)),
}
LISTENERS: Mapping[str, type[Listener]] = {
    "model: counts": NameCounts,
    "model: timeline": Timeline,
    "recorder": Recorder,
    "workload": Workload,
}


def record_cluster(name: str, manifest_yaml: str, target: str, **more: Any) -> ClusterDirectory:
    """Put a cluster on record, with its credentials; nothing is started."""
    record = ClusterRecord(
        id=str(uuid.uuid4()), name=name, provider="local", target=target, project="bench",
        owner="me", created_at="2026-01-01T00:00:00+00:00", stage="made",
        creator=identify_process(), **more,
    )  # fmt: skip
    directory = ClusterDirectory.create(record, manifest_yaml=manifest_yaml)
    directory.write_pem(*new_credentials())
    return directory


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
    """Measures the turns of the event loop of this thread, and calls of labelled methods in them.

    ``inside`` maps the labels of one turn to their CPU seconds in it.
    """

    def __init__(self) -> None:
        self.turns: dict[str, Measure] = {}
        self.parts: dict[str, Measure] = {}
        self.shares: dict[str, Measure] = {}
        self.longest: list[tuple[float, float, float, str, dict[str, float]]] = []
        self._inside: dict[str, float] = {}
        self._whole: str | None = None
        self._gc_s = self._gc_began = 0.0

    def install(self) -> None:
        """Begin to measure; to be called before any scheduler exists."""
        for label, (owner, names) in REQUESTS.items():
            for name in names:
                self._wrap(owner, name, label, whole=True)
        for label, (owner, names) in PARTS.items():
            for name in names:
                self._wrap(owner, name, label)
        for label, listener in LISTENERS.items():
            for name in EVENTS:
                if name in vars(listener):
                    self._wrap(listener, name, label)
        self._follow(Explainer, "explain", "explain request")
        gc.callbacks.append(self._collects)
        run = asyncio.Handle._run

        def measured(handle: asyncio.Handle) -> None:
            name = handle._callback
            self._inside, self._whole = {}, None
            collected, wall, cpu = self._gc_s, time.perf_counter(), time.thread_time()
            try:
                run(handle)
            finally:
                cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
                self._turned(name, cpu, wall, self._gc_s - collected)

        asyncio.Handle._run = measured  # type: ignore[method-assign]

    def _turned(self, callback: Any, cpu: float, wall: float, collected: float) -> None:
        whole = self._whole
        if whole is not None:
            self.turns.setdefault(whole, Measure()).add(cpu, wall, collected)
        self.turns.setdefault("all turns", Measure()).add(cpu, wall, collected)
        for label, seconds in self._inside.items():
            self.shares.setdefault(label, Measure()).add(seconds, wall)
        if cpu > 0.01:
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

    def take(self) -> dict[str, Any]:
        """Return what was measured since the last time, as plain values."""
        found = {
            "turns": {label: asdict(measure) for label, measure in self.turns.items()},
            "parts": {label: asdict(measure) for label, measure in self.parts.items()},
            "shares": {label: asdict(measure) for label, measure in self.shares.items()},
            "longest": [list(turn) for turn in self.longest],
        }
        self.turns, self.parts, self.shares, self.longest = {}, {}, {}, []
        return found


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


# The model: its size, and switching it off --------------------------------------------------------


def model_bytes(controller: Controller) -> int:
    """Return the bytes that the model holds, without the keys that belong to the scheduler."""
    overviews = controller.overviews
    seen = {id(key) for key in controller.scheduler.tasks} | {id(controller.scheduler)}
    roots = (overviews._names, overviews._timeline, overviews.recent)
    return sum(sys.getsizeof(part) for part in _reachable(roots, seen))


def _reachable(roots: Any, seen: set[int]) -> Iterator[Any]:
    left = list(roots)
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        if isinstance(part, dict):
            left += [*part, *part.values()]
        elif isinstance(part, list | tuple | set | frozenset | deque):
            left += part
        elif isinstance(part, NameRow):
            left += [getattr(part, name) for name in part.__slots__]
        elif type(part).__module__.startswith("scalable.scheduler.overview"):
            left.append(vars(part))


class Switch:
    """Takes the model out of a running scheduler, and puts it back; between batches of calls."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._model = [controller.overviews._names, controller.overviews._timeline]

    def set(self, on: bool) -> None:
        """Put the model in, or take it out."""
        ledger = Ledger.of(self._controller.scheduler)
        ledger._listeners = [each for each in ledger._listeners if each not in self._model]
        ledger._subscribe()
        self._controller.overviews.__dict__.pop("sample", None)
        if on:
            for listener in self._model:
                ledger.listen(listener)
        else:
            self._controller.overviews.sample = lambda: None


class Handlers:
    """The handlers for benchmarks; ``KNOWN`` returns the number of known calls."""

    def __init__(self, controller: Controller, meter: LoopMeter | None) -> None:
        self._controller, self._meter = controller, meter
        self._switch = Switch(controller)
        controller.scheduler.handlers.update(
            {
                TAKE: self.take,
                SIZES: self.sizes,
                KNOWN: lambda: len(controller.scheduler.tasks),
                SWITCH: self.switch,
                USED: self.used,
            }
        )

    def take(self) -> dict[str, Any]:
        """Return what was measured since the last time."""
        return {} if self._meter is None else self._meter.take()

    def sizes(self) -> dict[str, int]:
        """Return the number of known calls, and the bytes of the model."""
        tasks = self._controller.scheduler.tasks
        return {"calls": len(tasks), "bytes": model_bytes(self._controller)}

    def switch(self, on: bool) -> None:
        """Put the model in, or take it out."""
        self._switch.set(on)

    def used(self) -> float:
        """Return the CPU seconds of the process."""
        return time.process_time()


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    directory = ClusterDirectory(Path(sys.argv[1]))
    meter = None if "--unmeasured" in sys.argv else LoopMeter()
    if meter is not None:
        meter.install()

    async def beside(controller: Controller, close: Callable[[], None]) -> None:  # noqa: ARG001
        Handlers(controller, meter)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    Importer(in_image("the scheduler")).install()
    asyncio.run(serve(directory, beside=beside))
    clear_away(directory, leave_alone=("scheduler",))


if __name__ == "__main__":
    main()
