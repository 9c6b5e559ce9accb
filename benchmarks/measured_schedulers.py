"""Schedulers whose event loops are measured, ours and Dask's, in processes of their own.

    python benchmarks/measured_schedulers.py ours DIRECTORY [--turns]
    python benchmarks/measured_schedulers.py dask DIRECTORY
    python benchmarks/measured_schedulers.py workers DIRECTORY ADDRESS

DIRECTORY is that of a cluster on record. Ours is the program of detached clusters; ``--turns``
measures its turns, but not the listeners that run with each call. Workers are simulated, for Dask,
and obey the lines ``add NAME NUMBER`` and ``leave NUMBER`` of their standard input.

A *turn* is one callback of an event loop: for so long, nothing else runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import dask
import psutil
from distributed import Client, Scheduler
from distributed.stealing import WorkStealing

from scalable import ScalableClient
from scalable.clusters.ending import clear_away
from scalable.clusters.managing import wait_for_scheduler
from scalable.clusters.programs import scheduler as program
from scalable.dask_compat.scheduler_extensions import PoolStealing
from scalable.files import write_whole
from scalable.liveness import identify_process
from scalable.model import ClusterRecord
from scalable.protocol.code import in_image
from scalable.protocol.credentials import new_credentials, security_of
from scalable.protocol.handlers import Handler
from scalable.protocol.importing import Importer
from scalable.records import ClusterDirectory
from scalable.scheduler.adaptation import PoolAdaptive, Workload
from scalable.scheduler.controller import Controller
from scalable.scheduler.explaining import Explainer
from scalable.scheduler.overviews import NameCounts, Overviews
from scalable.scheduler.recorder import Recorder
from scalable.scheduler.task_log import EVENTS, Listener, TaskLog
from scalable.watch import pages
from simulated_workers import SimulatedWorkers, collect_seldom, open_many_files

#: Names of the handlers with which a measured scheduler answers: the measures since the last time,
#: what its process has used, and the number of its workers.
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

    def take(self) -> dict[str, Any]:
        """Return what was measured since the last time, as plain values."""
        kinds = {"turns": self.turns, "parts": self.parts, "shares": self.shares}
        found: dict[str, Any] = {
            kind: {label: asdict(measure) for label, measure in measures.items()}
            for kind, measures in kinds.items()
        }
        found["longest"] = [list(turn) for turn in self.longest]
        self.turns, self.parts, self.shares, self.longest = {}, {}, {}, []
        return found


def offer_measures(scheduler: Any, meter: LoopMeter) -> None:
    """Let a scheduler answer to ``TAKE``, ``USED`` and ``COUNT``."""
    scheduler.handlers |= {
        TAKE: meter.take,
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


#: Label -> class and methods that it stands for. The whole turn in which they run counts for it.
TURNS: Labels = {
    "overview request": (Overviews, ("answer",)),
    "page request": (pages.OverviewRoute, ("get",)),
    "status request": (Controller, ("status",)),
    "controller pass": (Controller, ("_tick",)),
    "sample of the overview": (Overviews, ("sample",)),
    "manager's heartbeat": (Controller, ("heartbeat",)),
    "order to scale": (Controller, ("scale",)),
    "worker arrives": (Controller, ("add_worker",)),
    "worker leaves": (Controller, ("remove_worker",)),
    "worker's heartbeat": (Scheduler, ("heartbeat_worker",)),
    "graph of a client": (TaskLog, ("update_graph",)),
    "adaptive decision": (PoolAdaptive, ("adapt",)),
    "recorder's rows": (Recorder, ("_tick",)),
    "stealing": (PoolStealing, ("balance",)),
}
#: Label -> class and methods whose own time counts for it.
PARTS: Labels = {
    "model: an overview made": (Overviews, ("_new_overview",)),
    "ledger: graph": (TaskLog, ("update_graph",)),
}
EXPLAINED: Labels = {"explain request": (Explainer, ("explain",))}
LISTENERS: Mapping[str, type[Listener]] = {
    "model: counts": NameCounts,
    "model: timeline": Overviews,
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


def parts() -> Labels:
    """Return the methods whose own time is measured, the listeners' among them."""
    listeners = {
        label: (listener, tuple(name for name in EVENTS if name in vars(listener)))
        for label, listener in LISTENERS.items()
    }
    return {**PARTS, **listeners}


HERE = Path(__file__).parent
TAGS = ("model", "post")
TIMEOUT_S, POLL_S = 600.0, 0.1
MANIFEST = """version: 1
project: {name: bench}
targets: {local: {provider: local, processes: true}}
components: {model: {}, post: {}}
"""


class Called:
    """A scheduler with a client, whose handlers can be called."""

    client: Any

    def call(self, handler: str, **arguments: Any) -> Any:
        return self.client.sync(getattr(self.client.scheduler, handler), **arguments)


class Bed(Called):
    """A scheduler in a process of its own, and a client of it."""

    def __init__(self, place: Path, *options: str) -> None:
        os.environ |= {
            "XDG_STATE_HOME": str(place / "state"),
            "SCALABLE_RUNS_DIR": str(place / "runs"),
        }
        self._programs: list[subprocess.Popen[bytes]] = []
        self.directory = record_cluster(
            "bench", MANIFEST, "local", dashboard_address="127.0.0.1:0", tags=TAGS,
            wanted=dict.fromkeys(TAGS, 0), runs_dir=str(place / "runs"),
        )  # fmt: skip
        self.scheduler = self.start(
            "measured_schedulers.py", "ours", str(self.directory.path), *options
        )
        known = wait_for_scheduler(self.directory)
        self.page = known["dashboard"]
        self.address = known["address"]
        security = security_of(self.directory.pem())
        self.client = ScalableClient(self.address, security=security)

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        started = subprocess.Popen([sys.executable, str(HERE / name), *arguments])
        self._programs.append(started)
        return started

    def close(self) -> None:
        try:
            self.call(Handler.END.value, reason="the benchmark is over")
            self.client.close()
        except (AttributeError, OSError) as error:  # a client without a connection has no scheduler
            print(f"the scheduler is killed: {error}", file=sys.stderr)
            self.scheduler.kill()
        for started in self._programs:
            try:
                started.wait(60)
            except subprocess.TimeoutExpired:
                started.kill()


@contextmanager
def bed(*options: str) -> Iterator[Bed]:
    with tempfile.TemporaryDirectory() as place:
        made = Bed(Path(place), *options)
        try:
            yield made
        finally:
            made.close()


def until(condition: Callable[[], bool], what: str) -> float:
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() - began > TIMEOUT_S:
            raise SystemExit(f"waited {TIMEOUT_S:g} s in vain: {what}")
        time.sleep(POLL_S)
    return time.perf_counter() - began


# Plain Dask --------------------------------------------------------------------------------------

TAG = "model"
DASK_TURNS: Labels = {
    "worker's heartbeat": (Scheduler, ("heartbeat_worker",)),
    "stealing": (WorkStealing, ("balance",)),
}
DASK_FOLLOWED: Labels = {
    "worker arrives": (Scheduler, ("add_worker",)),
    "worker leaves": (Scheduler, ("remove_worker",)),
}


class PlainBed(Called):
    """Plain Dask's scheduler in a process of its own, its simulated workers, and a client."""

    def __init__(self, place: Path, *options: str) -> None:
        os.environ |= {"XDG_STATE_HOME": str(place / "state")}
        self.directory = record_cluster("plain", MANIFEST, "local")
        path = str(self.directory.path)
        self.scheduler = _start("dask", path, *options)
        written = self.directory.path / "plain"
        until(written.exists, "Dask's scheduler")
        self.address = written.read_text()
        self.client = Client(self.address, security=security_of(self.directory.pem()))
        self._workers = _start("workers", path, self.address, stdin=subprocess.PIPE)
        self._orders = 0

    def scale(self, count: int) -> None:
        """Start or end simulated workers, and wait until as many are connected."""
        more = count - self.call(COUNT)
        self._orders += 1
        order = f"add w{self._orders} {more}" if more > 0 else f"leave {-more}"
        assert self._workers.stdin is not None
        self._workers.stdin.write(f"{order}\n".encode())
        self._workers.stdin.flush()
        until(lambda: self.call(COUNT) == count, "workers")

    def close(self) -> None:
        self.client.close()
        for started in (self.scheduler, self._workers):
            started.terminate()
            started.wait(60)


def _start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, *arguments], **options)


async def schedule(directory: ClusterDirectory) -> None:
    gc.set_threshold(*(3 * each for each in gc.get_threshold()))  # as ``dask scheduler`` does
    meter = LoopMeter()
    meter.install(DASK_TURNS, {}, DASK_FOLLOWED)
    # Ours does not remove workers whose heartbeats are late, as with many of them in one process.
    with dask.config.set({"distributed.scheduler.worker-ttl": None}):
        scheduler = Scheduler(
            host="127.0.0.1", port=0, dashboard=False, protocol="tls://",
            security=security_of(directory.pem()),
        )  # fmt: skip
    async with scheduler:
        offer_measures(scheduler, meter)
        end = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
        write_whole(directory.path / "plain", scheduler.address)
        await end.wait()


async def work(directory: ClusterDirectory, address: str) -> None:
    """Start and end simulated workers, as the standard input says."""
    open_many_files()
    collect_seldom()
    workers = SimulatedWorkers(address, security_of(directory.pem()))
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while line := (await reader.readline()).decode().split():
        if line[0] == "add":
            await workers.add([f"{line[1]}-{number}" for number in range(int(line[2]))], TAG)
        else:
            await workers.end(int(line[1]))


def serve(directory: ClusterDirectory) -> None:
    meter = LoopMeter()
    meter.install(TURNS, {} if "--turns" in sys.argv else parts(), EXPLAINED)

    async def beside(controller: Controller, close: Callable[[], None]) -> None:  # noqa: ARG001
        offer_measures(controller.scheduler, meter)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    Importer(in_image("the scheduler")).install()
    asyncio.run(program.serve(directory, beside=beside))
    clear_away(directory, leave_alone=("scheduler",))


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    which, directory = sys.argv[1], ClusterDirectory(Path(sys.argv[2]))
    if which == "ours":
        serve(directory)
    elif which == "dask":
        asyncio.run(schedule(directory))
    else:
        asyncio.run(work(directory, sys.argv[3]))


if __name__ == "__main__":
    main()
