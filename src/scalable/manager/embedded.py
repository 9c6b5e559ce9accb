"""The worker manager that runs in the same process as the scheduler."""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distributed import Nanny, Scheduler, Security, Worker
from distributed.core import Status
from distributed.utils import import_term

from scalable import settings
from scalable.errors import ClusterError, ProviderError
from scalable.files import private_directory, write_json, write_private
from scalable.liveness import identify_process
from scalable.manager.launcher import Observation, UnitName, UnitState
from scalable.manager.pools import Pool
from scalable.manager.reconciler import Reconciler
from scalable.model import Starting
from scalable.protocol.events import Event
from scalable.protocol.pools import Attachment
from scalable.protocol.servers import GuardedWorker, accepts, protected
from scalable.records.directory import OWNER
from scalable.scheduler.controller import Controller
from scalable.scheduler.managers import AttachedManagers, Demand

#: Seconds for which ``await cluster`` waits for undesired units to stop, and between two checks.
ALIGN_TIMEOUT_S, ALIGN_INTERVAL_S = 30.0, 0.05

logger = logging.getLogger("scalable.manager")

#: Id of the embedded manager.
EMBEDDED = "embedded"


class EmbeddedManager:
    """Worker manager in the user's process, which also stores the desired worker counts."""

    def __init__(self, provider: str, starting: Starting, start_timeout: float) -> None:
        self.incarnation = secrets.token_hex(3)
        self.demand = Demand()
        self.managers = AttachedManagers()
        self.entries = EntryLauncher()
        self.listeners: list[Callable[[Event], None]] = []
        #: Source and reason of the counts that ``scale`` sets, for the record.
        self.origin = ("manual", "scale")
        self._scheduler: Any = None
        self.reconciler = Reconciler(
            self.incarnation, on_event=self._publish, start_timeout=start_timeout
        )
        self.inventory = self.reconciler.inventory
        # The embedded manager is always attached.
        own = Attachment(
            EMBEDDED,
            self.incarnation,
            identity=identify_process(),
            provider=provider,
            pools={},
            starting=asdict(starting),
        )
        self.managers.attach(own, time.monotonic())

    @property
    def controller(self) -> Controller | None:
        """Scheduler plugin that controls the pools, or None before the start."""
        found: Controller | None = getattr(self._scheduler, "plugins", {}).get(Controller.name)
        return found

    def _publish(self, event: Event) -> None:
        ours = [] if self.controller is None else self.controller.event_listeners
        for listener in (*self.listeners, *ours):
            listener(event)

    def add_pools(self, pools: Iterable[Pool]) -> None:
        for pool in pools:
            self.inventory.add_pool(pool)
        known = self.inventory.pools.values()
        shapes = {pool.tag: {"slots": pool.slots, **pool.shape} for pool in known}
        self.managers.change(EMBEDDED, pools=shapes)

    def price(self, prices: Mapping[str, Mapping[str, float]]) -> None:
        """Set prices by tag, in the event loop."""
        self.managers.change(EMBEDDED, prices=prices)
        if self.controller is not None:
            self.controller.spending.price(EMBEDDED, prices)

    def start(self, scheduler: Scheduler, comm: Any, security: Any) -> None:
        """Start the reconciler in the running event loop. Idempotent."""
        if self._scheduler is not None:
            return
        self._scheduler = scheduler
        if self.controller is None:
            scheduler.add_plugin(Controller(scheduler, self.demand, self.managers))
        contact = getattr(scheduler, "contact_address", None) or scheduler.address
        self.entries.scheduler_address = contact
        self.entries.security = security
        self.reconciler.start(comm, EMBEDDED, self.incarnation)

    def want(self, counts: Mapping[str, int], source: str, reason: str) -> None:
        """Set the desired worker counts of pools. Units are requested a moment later.
        ``source`` (``plan``, ``manual`` or ``decision``) and ``reason`` are recorded. An unknown
        pool or an invalid count raises ClusterError and changes nothing.
        """
        controller = self.controller
        for tag, count in counts.items():
            self.inventory.check(tag, count)
        if controller is not None:
            controller.adaptation.end(*counts, why="it was scaled")
        status = self.inventory.status()
        self.demand.scale(counts, status, source=source, reason=reason)
        # The new counts are visible at once, not only after the next heartbeat.
        running = {EMBEDDED: {tag: pool.running for tag, pool in status.items()}}
        self.demand.share(self.managers.tiers(running, time.monotonic()))
        self.inventory.obey(self.demand.orders(EMBEDDED))
        if controller is not None:
            controller.on_change()

    def discard(self, asked: Iterable[UnitName]) -> None:
        """Remove units from the desired ones, given the names of units or workers."""
        for tag, count in self.inventory.discard(asked).items():
            self.demand.settle(EMBEDDED, tag, count)

    async def align(self) -> None:
        """Start missing units and stop undesired ones now. Raise ProviderError if one is refused.
        Waits up to ``ALIGN_TIMEOUT_S`` for undesired idle units to stop. Busy ones stop later.
        """
        await self.reconciler.align()
        await self.entries.started()
        await self.reconciler.reconcile()
        deadline = time.monotonic() + ALIGN_TIMEOUT_S
        while self.reconciler.drains_idle_units() and time.monotonic() < deadline:
            await asyncio.sleep(ALIGN_INTERVAL_S)
            await self.reconciler.reconcile()


# Units that are Python objects --------------------------------------------------------------------

CLOSE_TIMEOUT_S = 10.0
#: Seconds that a worker whose threads run tasks has before it closes. The threads stop with the
#: process.
LAST_TASKS_S = 2.0
#: Seconds that a start may take before it is cancelled. A cancelled start of a ``Nanny``
#: leaves the process of its worker, and that of a job may leave the job.
START_TIMEOUT_S = 30.0
_ENDED = frozenset({Status.closed, Status.failed, Status.closing})
_HINT = (
    "give the class a parameter security, and pass it on to the worker that it starts; or, only "
    "where no other user can reach the scheduler, give PoolCluster a scheduler with "
    "{'protocol': 'tcp://'} in its options"
)


class EntryLauncher:
    """Launcher that creates Python objects from entries, in the running event loop."""

    def __init__(self) -> None:
        self.scheduler_address = ""
        self.security: Any = None
        #: Directory with the credentials, and the credentials with paths there.
        self._directory: Path | None = None
        self._in_files: Any = None
        #: Each launched object that has not been stopped, and its start.
        self._units: dict[UnitName, tuple[Any, asyncio.Future[Any]]] = {}

    @property
    def objects(self) -> dict[UnitName, Any]:
        """Objects of the launched units that have not been stopped, by name."""
        return {name: created for name, (created, _) in self._units.items()}

    async def launch(self, entries: Mapping[UnitName, Mapping[str, Any]]) -> None:
        """Create and start objects without waiting. Raises ProviderError for a bad entry."""
        for name, entry in entries.items():
            if name in self._units:
                continue
            try:
                created = self._create(name, entry)
            except (TypeError, ValueError, ImportError, AttributeError) as error:
                shown = getattr(entry.get("cls"), "__name__", entry.get("cls"))
                raise ProviderError(
                    f"worker {name!r} cannot be created from {shown}: {error}",
                    hint="check the cls and options of its entry in worker_spec",
                ) from error
            except ClusterError as error:
                message = f"worker {name!r} cannot be created: {error}"
                raise ProviderError(message, hint=error.hint) from error
            logger.debug("worker %s: starting %s", name, type(created).__name__)
            self._units[name] = created, asyncio.ensure_future(created)

    def _create(self, name: UnitName, entry: Mapping[str, Any]) -> Any:
        cls = entry["cls"]
        if isinstance(cls, str):
            cls = import_term(cls)
        options = {"name": name, **entry.get("options", {})}
        if isinstance(cls, type) and issubclass(cls, (Worker, Nanny)):
            options.setdefault("security", self.security)
        else:
            options = self._with_security(cls, name, options)
        if cls is Nanny:
            # The worker of a Nanny runs in another process that has to import its class.
            options.setdefault("worker_class", GuardedWorker)
        made = protected(cls) if isinstance(cls, type) else cls
        return made(self.scheduler_address, **options)

    def _with_security(self, cls: Any, name: Any, options: dict[str, Any]) -> dict[str, Any]:
        """Add needed ``security`` to options. Raises ProviderError if the class takes none."""
        security = self.security
        if "security" in options or not getattr(security, "require_encryption", False):
            return options
        if takes_security(cls):
            return {**options, "security": self._as_files()}
        if not _texts(security):
            return options  # the class may get the files in another way
        shown = getattr(cls, "__name__", cls)
        raise ProviderError(
            f"the workers of {shown} ({name!r}) could never connect: the scheduler accepts only "
            f"the TLS credentials of this cluster, and {shown} takes no security=",
            hint=_HINT,
        )

    def _as_files(self) -> Any:
        """Return the credentials with file paths instead of PEM strings."""
        texts = _texts(self.security)
        if not texts:
            return self.security
        if self._in_files is None:
            self._directory = private_directory(
                settings.state_dir() / "embedded" / f"credentials-{secrets.token_hex(4)}"
            )
            # `prune` removes the directory when this process has exited.
            write_json(self._directory / OWNER, identify_process())
            paths = {name: self._directory / f"{name}.pem" for name in texts}
            for name, path in paths.items():
                write_private(path, texts[name])
            self._in_files = Security(
                require_encryption=True, **{name: str(path) for name, path in paths.items()}
            )
        return self._in_files

    async def adopt(self) -> dict[UnitName, str]:
        """Return an empty mapping, since the objects exited with their process."""
        return {}

    async def started(self) -> None:
        """Wait until every start in progress has succeeded or failed."""
        pending = [start for _, start in self._units.values() if not start.done()]
        if pending:
            await asyncio.wait(pending)

    async def stop(self, names: Sequence[UnitName]) -> None:
        """Close the objects, and warn about an object that does not close in time."""
        await asyncio.gather(*(self._stop(name) for name in names))

    async def _stop(self, name: UnitName) -> None:
        if name not in self._units:
            return
        created, start = self._units.pop(name)
        if not start.done():
            logger.debug("worker %s: waiting until it has started", name)
            await asyncio.wait([start], timeout=START_TIMEOUT_S)
        if not start.done():
            logger.warning(
                "worker %s has not started within %g s: cancelled", name, START_TIMEOUT_S
            )
            start.cancel()
            await asyncio.wait([start], timeout=CLOSE_TIMEOUT_S)
        if getattr(created, "status", None) is Status.closed:
            return
        logger.debug("worker %s: closing", name)
        options = {}
        if isinstance(created, Worker) and accepts(type(created), "executor_wait", method="close"):
            await _idle(created)
            # A thread that waits for an endless task would keep the event loop from closing.
            options = {"executor_wait": False}
        closing = asyncio.ensure_future(created.close(**options))
        await asyncio.wait([closing], timeout=CLOSE_TIMEOUT_S)
        if not closing.done():
            logger.warning(
                "worker %s has not closed within %g s; no longer waiting for it",
                name,
                CLOSE_TIMEOUT_S,
            )
        elif not closing.cancelled() and (error := closing.exception()) is not None:
            logger.warning("worker %s failed to close: %r", name, error)

    def observe(self) -> dict[UnitName, Observation]:
        return {name: self._observe(*unit) for name, unit in self._units.items()}

    @staticmethod
    def _observe(created: Any, start: asyncio.Future[Any]) -> Observation:
        if not start.done():
            return Observation(UnitState.PENDING, "starting")
        if not start.cancelled() and (error := start.exception()) is not None:
            while error.__cause__ is not None:  # Dask's error has the original one
                error = error.__cause__
            return Observation(UnitState.ENDED, f"it failed to start: {error!r}")
        status = getattr(created, "status", Status.running)
        if status in _ENDED:
            return Observation(UnitState.ENDED, f"it is {status.name}")
        return Observation(UnitState.RUNNING)

    async def close(self) -> None:
        """Remove the credential files. Call after all objects have been stopped."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def look_soon(self) -> None:
        """Do nothing, because :meth:`observe` always returns the current state."""

    async def logs(self, name: UnitName) -> str:  # noqa: ARG002 - see below
        """Return an empty string: the created objects have no log of their own."""
        return ""


async def _idle(worker: Worker) -> None:
    """Wait for the tasks that run in a worker's threads, at most :data:`LAST_TASKS_S` seconds."""
    last = time.monotonic() + LAST_TASKS_S
    while worker.state.executing and time.monotonic() < last:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(ALIGN_INTERVAL_S)


def _texts(security: Any) -> dict[str, str]:
    """Return the certificates and keys that are PEM strings rather than paths."""
    roles = ("tls_worker_cert", "tls_worker_key", "tls_client_cert", "tls_client_key")
    found = {name: getattr(security, name, None) for name in ("tls_ca_file", *roles)}
    return {name: value for name, value in found.items() if value and "\n" in value}


def takes_security(cls: Any) -> bool:
    """Return whether a class, or a function that creates objects, accepts ``security=``.
    One that passes ``**kwargs`` on may accept it.
    """
    maker: Any = cls.__init__ if isinstance(cls, type) else cls  # type: ignore[misc]
    try:
        parameters = inspect.signature(maker).parameters
    except (TypeError, ValueError):  # written in C
        return False
    passes_on = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return "security" in parameters or passes_on
