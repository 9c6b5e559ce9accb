"""A scheduler in a process of its own, with all our plug-ins, whose event loop is measured.

    python benchmarks/measured_scheduler.py DIRECTORY

DIRECTORY is that of a cluster on record (:func:`record_cluster`). The program is that of detached
clusters, with handlers for benchmarks beside it (:class:`Handlers`).

Options: ``--unmeasured`` leaves the loop as it is; ``--turns`` measures its turns, but not the
listeners that run with each call; ``--plain-tcp`` serves without TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from distributed import Scheduler

from loop_meter import Labels, LoopMeter, offer_measures
from scalable.clusters.ending import clear_away
from scalable.clusters.programs import scheduler
from scalable.dask_compat.stealing import PoolStealing
from scalable.liveness import identify_process
from scalable.model import ClusterRecord
from scalable.protocol.code import in_image
from scalable.protocol.credentials import new_credentials
from scalable.protocol.importing import Importer
from scalable.records import ClusterDirectory
from scalable.scheduler.adaptation import PoolAdaptive
from scalable.scheduler.controller import Attendance, Controller, Status
from scalable.scheduler.explaining import Explainer
from scalable.scheduler.ledger import EVENTS, Ledger, Listener
from scalable.scheduler.overview.call_counts import NameCounts, NameRow
from scalable.scheduler.overview.overviews import Overviews
from scalable.scheduler.overview.timeline import Timeline
from scalable.scheduler.pool_scheduler import PoolScheduler
from scalable.scheduler.recorder import Recorder
from scalable.scheduler.workload import Workload
from scalable.watch.dashboard import routes

#: Names of the handlers for benchmarks.
SIZES, KNOWN, SWITCH = "bench_sizes", "bench_known", "bench_switch"

#: Label -> class and methods that it stands for. The whole turn in which they run counts for it.
REQUESTS: Labels = {
    "overview request": (Overviews, ("answer",)),
    "page request": (routes.Overview, ("get",)),
    "status request": (Controller, ("status",)),
    "controller pass": (Controller, ("_tick",)),
    "sample of the overview": (Overviews, ("sample",)),
    "manager's heartbeat": (Attendance, ("heartbeat",)),
    "order to scale": (Controller, ("scale",)),
    "worker arrives": (Controller, ("add_worker",)),
    "worker leaves": (Controller, ("remove_worker",)),
    "worker's heartbeat": (Scheduler, ("heartbeat_worker",)),
    "graph of a client": (Ledger, ("update_graph",)),
    "adaptive decision": (PoolAdaptive, ("adapt",)),
    "recorder's rows": (Recorder, ("_tick",)),
    "stealing": (PoolStealing, ("balance",)),
}
#: Label -> class and methods whose own time counts for it.
PARTS: Labels = {
    "model: an overview made": (Overviews, ("_made",)),
    "status: snapshot": (Status, ("snapshot",)),
    "ledger: graph": (Ledger, ("update_graph",)),
}
FOLLOWED: Labels = {"explain request": (Explainer, ("explain",))}
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

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._switch = Switch(controller)
        controller.scheduler.handlers.update(
            {SIZES: self.sizes, KNOWN: lambda: len(controller.scheduler.tasks), SWITCH: self.switch}
        )

    def sizes(self) -> dict[str, int]:
        """Return the number of known calls, and the bytes of the model."""
        tasks = self._controller.scheduler.tasks
        return {"calls": len(tasks), "bytes": model_bytes(self._controller)}

    def switch(self, on: bool) -> None:
        """Put the model in, or take it out."""
        self._switch.set(on)


class PlainTcp(PoolScheduler):
    """Our scheduler without TLS, to compare."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs | {"protocol": "tcp://", "security": None})


def parts() -> Labels:
    """Return the methods whose own time is measured, the listeners' among them."""
    listeners = {
        label: (listener, tuple(name for name in EVENTS if name in vars(listener)))
        for label, listener in LISTENERS.items()
    }
    return {**PARTS, **listeners}


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    directory = ClusterDirectory(Path(sys.argv[1]))
    meter = None if "--unmeasured" in sys.argv else LoopMeter()
    if meter is not None:
        meter.install(REQUESTS, {} if "--turns" in sys.argv else parts(), FOLLOWED)
    if "--plain-tcp" in sys.argv:
        scheduler.PoolScheduler = PlainTcp  # type: ignore[misc]

    async def beside(controller: Controller, close: Callable[[], None]) -> None:  # noqa: ARG001
        offer_measures(controller.scheduler, meter)
        Handlers(controller)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    Importer(in_image("the scheduler")).install()
    asyncio.run(scheduler.serve(directory, beside=beside))
    clear_away(directory, leave_alone=("scheduler",))


if __name__ == "__main__":
    main()
