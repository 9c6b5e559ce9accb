"""Launcher of units that are Python objects, made from the entries of a worker specification.
An entry is ``{"cls": class, "options": {...}}``, as in Dask's ``SpecCluster``. The objects follow
Dask's ``ProcessInterface``, such as ``Worker``, ``Nanny`` and the jobs of dask-jobqueue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from distributed import Nanny, Worker
from distributed.core import Status
from distributed.utils import import_term

from scalable.errors import ClusterError, ProviderError
from scalable.manager.entry_security import EntrySecurity
from scalable.manager.launcher import Observation, UnitName, UnitState
from scalable.protocol.guarded_http import guarded
from scalable.protocol.guarded_worker import GuardedWorker
from scalable.protocol.private_node import private_class

logger = logging.getLogger("scalable.manager")

CLOSE_TIMEOUT_S = 10.0
#: Seconds that a start may take before it is cancelled. A cancelled start of a ``Nanny``
#: leaves the process of its worker, and that of a job may leave the job.
START_TIMEOUT_S = 30.0
_ENDED = frozenset({Status.closed, Status.failed, Status.closing})


class EntryLauncher:
    """Launcher that creates Python objects from entries, in the running event loop.
    ``security`` is for entries without that option. Classes that are not Dask's get it as files.
    """

    def __init__(self) -> None:
        self.scheduler_address = ""
        self.security: Any = None
        self._entry_security: EntrySecurity | None = None
        self._objects: dict[UnitName, Any] = {}
        self._starts: dict[UnitName, asyncio.Future[Any]] = {}

    @property
    def objects(self) -> dict[UnitName, Any]:
        """Objects of the launched units that have not been stopped, by name."""
        return dict(self._objects)

    async def launch(self, entries: Mapping[UnitName, Mapping[str, Any]]) -> None:
        """Create the objects, and start them without waiting.
        Raise ProviderError if an object cannot be created from its entry.
        """
        for name, entry in entries.items():
            if name in self._starts:
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
            self._objects[name] = created
            self._starts[name] = asyncio.ensure_future(created)

    def _create(self, name: UnitName, entry: Mapping[str, Any]) -> Any:
        cls = entry["cls"]
        if isinstance(cls, str):
            cls = import_term(cls)
        options = {"name": name, **entry.get("options", {})}
        if isinstance(cls, type) and issubclass(cls, (Worker, Nanny)):
            options.setdefault("security", self.security)
        else:
            if self._entry_security is None:
                self._entry_security = EntrySecurity(self.security)
            options = self._entry_security.options_for(cls, name, options)
        if isinstance(cls, type) and issubclass(cls, Worker):
            cls = guarded(cls)
        elif cls is Nanny:
            # The worker of a Nanny runs in another process that has to import its class.
            options.setdefault("worker_class", GuardedWorker)
        if isinstance(cls, type):
            cls = private_class(cls)
        return cls(self.scheduler_address, **options)

    async def adopt(self) -> dict[UnitName, str]:
        """Return an empty mapping: the objects exited with the process that created them."""
        return {}

    async def started(self) -> None:
        """Wait until every start in progress has succeeded or failed."""
        pending = [task for task in self._starts.values() if not task.done()]
        if pending:
            await asyncio.wait(pending)

    async def stop(self, names: Sequence[UnitName]) -> None:
        """Close the objects, and warn about an object that does not close in time."""
        await asyncio.gather(*(self._stop(name) for name in names))

    async def _stop(self, name: UnitName) -> None:
        created, task = self._objects.pop(name, None), self._starts.pop(name, None)
        if task is not None and not task.done():
            logger.debug("worker %s: its start has to end first", name)
            await asyncio.wait([task], timeout=START_TIMEOUT_S)
        if task is not None and not task.done():
            logger.warning("worker %s has not started in %g s: cancelled", name, START_TIMEOUT_S)
            task.cancel()
            await asyncio.wait([task], timeout=CLOSE_TIMEOUT_S)
        if created is None or getattr(created, "status", None) is Status.closed:
            return
        logger.debug("worker %s: closing", name)
        closing = asyncio.ensure_future(created.close())
        await asyncio.wait([closing], timeout=CLOSE_TIMEOUT_S)
        if not closing.done():
            logger.warning(
                "worker %s has not closed within %g s and is left to itself", name, CLOSE_TIMEOUT_S
            )
        elif not closing.cancelled() and (error := closing.exception()) is not None:
            logger.warning("worker %s failed to close: %r", name, error)

    def observe(self) -> dict[UnitName, Observation]:
        return {name: self._observe(name, created) for name, created in self._objects.items()}

    def _observe(self, name: UnitName, created: Any) -> Observation:
        start = self._starts[name]
        if not start.done():
            return Observation(UnitState.PENDING, "starting")
        if not start.cancelled() and (error := start.exception()) is not None:
            return Observation(UnitState.ENDED, f"it failed to start: {_root(error)!r}")
        status = getattr(created, "status", Status.running)
        if status in _ENDED:
            return Observation(UnitState.ENDED, f"it is {status.name}")
        return Observation(UnitState.RUNNING)

    async def close(self) -> None:
        """Remove the credential files, once all objects have been stopped."""
        if self._entry_security is not None:
            self._entry_security.remove()

    def look_soon(self) -> None:
        """Do nothing, because :meth:`observe` always returns the current state."""

    async def logs(self, name: UnitName) -> str:  # noqa: ARG002 - see below
        """Return an empty string, because these objects have no log of their own."""
        return ""


def _root(error: BaseException) -> BaseException:
    """Return the original cause of an error, which Dask wraps in a 'failed to start' error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
