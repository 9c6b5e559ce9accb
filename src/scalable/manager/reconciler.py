"""Holds what is wanted, looks at what is, and brings the second to the first, again and again.

It alone restarts workers. It stands apart from any cluster object: give it launchers and a link to
a scheduler. What it decides is in :mod:`scalable.manager.decisions`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from scalable.errors import ClusterError, ProviderError
from scalable.manager.decisions import (
    CRASH_LOOP_STARTS,
    Decision,
    Loss,
    Margin,
    Phase,
    Unit,
    WorkerView,
    choose_victims,
    decide,
    in_crash_loop,
    margin_for,
    refresh,
)
from scalable.manager.launcher import Observation, UnitName, UnitState
from scalable.manager.pools import Pool, PoolStatus, status_of, worker_names
from scalable.manager.scheduler_link import Report, SchedulerLink, SchedulerView
from scalable.manager.stops import Stops
from scalable.manager.wanted import Wanted
from scalable.protocol.events import Event, degraded, worker_event
from scalable.protocol.pools import UNTAGGED, check_count

logger = logging.getLogger("scalable.manager")

INTERVAL_S = 0.5
CLOSE_TIMEOUT_S = 5.0
#: A place that refuses units for the moment is asked again for so long.
REFUSED_LIMIT_S = 600.0


class Reconciler:
    """Keeps the units of some pools as they are wanted.

    Parameters
    ----------
    incarnation
        Short text that makes the unit names of this reconciler unique on its scheduler.
    on_event
        Receives what happened, as rows of ``workers.jsonl`` and ``failures.jsonl`` with the
        stream under ``"stream"``; by default the scheduler's side is told with the next heartbeat.
    start_timeout
        Seconds that a running unit may take until its workers are connected.
    """

    def __init__(
        self,
        incarnation: str,
        *,
        on_event: Callable[[Event], None] | None = None,
        start_timeout: float = 120.0,
    ) -> None:
        self.wanted = Wanted(incarnation)
        self.pools: dict[str, Pool] = {}
        self.units: dict[UnitName, Unit] = {}
        self.link: SchedulerLink | None = None
        self._on_event = on_event or self._tell
        self._start_timeout = start_timeout
        self._obeyed: dict[str, int] = {}
        self._untold: list[Event] = []
        self.leaving = False
        self.end_wanted = False
        self.replaced = False
        self._unreachable_since: float | None = None
        self._workers: Mapping[str, WorkerView] = {}
        self._stops = Stops(self.wake)
        self._changing = threading.RLock()
        self._lock: asyncio.Lock | None = None
        self._wake: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    # What is wanted ---------------------------------------------------------------------------

    def add_pool(self, pool: Pool) -> None:
        """Make a pool known. It starts empty."""
        with self._changing:
            if pool.tag in self.pools:
                raise ClusterError(f"pool {pool.tag!r} exists already")
            self.pools[pool.tag] = pool

    def want(self, tag: str, count: int, reason: str = "scale") -> None:
        """Set how many units of a pool are wanted.

        Asking again, also for the same count, gives a degraded pool another chance.
        """
        with self._changing:
            pool = self.pool(tag)
            self.check(tag, count)
            if pool.degraded:
                logger.info("pool %r is tried again: %s", tag, reason)
            pool.start_anew()
            names = self.wanted.names(tag)
            self.wanted.forget_starts(tag)
            for _ in range(count - len(names)):
                if not self.wanted.take_back(pool, self.units):
                    self.wanted.add(pool)
            for name in choose_victims(names, len(names) - count, self.units, self._workers):
                self.wanted.remove(name)
        self.wake()

    def check(self, tag: str, count: int) -> int:
        """Whether a pool can be given so many units; returns how many are wanted now.

        Raises
        ------
        ClusterError
            When there is no such pool, this is no count, or nothing to make units of.
        """
        pool = self.pool(tag)
        check_count(tag, count)
        before = len(self.wanted.names(tag))
        if count > before and pool.template is None:
            raise ClusterError(
                f"pool {tag!r} has no template to start workers from",
                hint="give PoolCluster worker=, or add entries to worker_spec",
            )
        return before

    def obey(self, orders: Mapping[str, tuple[int, int]]) -> None:
        """Bring the wanted counts to what the scheduler's side ordered last.

        Parameters
        ----------
        orders
            Tag -> serial number and count. What was obeyed already is not obeyed again.
        """
        with self._changing:
            for tag, (serial, count) in orders.items():
                if tag in self.pools and serial > self._obeyed.get(tag, 0) and not self.leaving:
                    self._obeyed[tag] = serial
                    self.want(tag, count, "order")

    async def adopt(self) -> list[UnitName]:
        """Take over what an earlier process of the same manager left in its place."""
        adopted: list[UnitName] = []
        now = time.monotonic()
        for launcher in {id(p.launcher): p.launcher for p in self.pools.values()}.values():
            for name, tag in (await launcher.adopt()).items():
                pool = self.pools.get(tag)
                if pool is None or pool.template is None or name in self.units:
                    continue
                self.wanted.include(name, pool)
                names = worker_names(name, pool.template)
                self.units[name] = Unit(name, tag, names, launched_at=now)
                adopted.append(name)
        return adopted

    def leave(self) -> None:
        """Want nothing more, whatever is ordered: units are emptied, and end."""
        with self._changing:
            self.leaving = True
            for tag in self.pools:
                self.want(tag, 0, "leave")

    def discard(self, names: Iterable[UnitName]) -> None:
        """Want these units no more."""
        with self._changing:
            for name in list(names):
                self.wanted.remove(name)
        self.wake()

    def pool(self, tag: str) -> Pool:
        """The pool of a tag; ClusterError names the known ones."""
        try:
            return self.pools[tag]
        except KeyError:
            known = ", ".join(sorted(repr(t) for t in self.pools if t != UNTAGGED)) or "none"
            raise ClusterError(f"no pool {tag!r}; known pools: {known}") from None

    # What is ----------------------------------------------------------------------------------

    def status(self) -> dict[str, PoolStatus]:
        """Counts of every pool."""
        with self._changing:
            units = list(self.units.values())
            return {
                tag: status_of(pool, self.wanted.names(tag), units)
                for tag, pool in self.pools.items()
            }

    def existing(self) -> dict[UnitName, Unit]:
        """Name -> unit, of those that were asked for and are not gone yet."""
        with self._changing:
            return dict(self.units)

    # Bringing the second to the first -----------------------------------------------------------

    def start(self, link: SchedulerLink) -> None:
        """Begin to reconcile in the running event loop."""
        self.link = link
        self._lock, self._wake = asyncio.Lock(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._run(), name="scalable reconciler")
        self._task.add_done_callback(self._loop_ended)

    def wake(self) -> None:
        """Reconcile now instead of at the next tick. May be called from any thread."""
        if self._wake is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    async def _run(self) -> None:
        assert self._wake is not None
        while not self._closing:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), INTERVAL_S)
            self._wake.clear()
            try:
                await self.reconcile()
                self._unreachable_since = None
            except ProviderError:
                self._unreachable_since = None  # the pool is degraded, and says so
            except OSError as error:
                if self._unreachable_since is None:
                    logger.warning("the scheduler does not answer: %s", error)
                    self._unreachable_since = time.monotonic()

    @property
    def unreachable_s(self) -> float:
        """For how many seconds the scheduler has refused to be spoken to; 0 while it answers."""
        since = self._unreachable_since
        return 0.0 if since is None else time.monotonic() - since

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("the reconciler failed and manages no worker any more", exc_info=error)
            for pool in self.pools.values():
                self._degrade(pool, f"its reconciler failed: {error!r}")

    async def reconcile(self) -> None:
        """Look once, and do what has to be done.

        Raises
        ------
        ProviderError
            When a place refused a unit for good; its pool is degraded then.
        OSError
            When the scheduler does not answer.
        """
        assert self.link is not None
        assert self._lock is not None
        async with self._lock:
            view = await self._heartbeat()
            self._workers = view.workers
            self.end_wanted = view.end
            self.replaced = not view.known
            if view.end or self.replaced:
                return
            now = time.monotonic()
            with self._changing:
                self.obey(view.orders)
                self._connected(refresh(self.units.values(), self._workers, now), now)
                observed = self._observe(now)
                self._give_up_crash_loops(now)
                decision = decide(
                    self.wanted.spec,
                    self.units,
                    observed,
                    self._workers,
                    now=now,
                    start_timeout=self._start_timeout,
                    margins=self._margins(view.longest_s),
                )
                forgiven = self._lose(decision.lost, now)
                self._pass_on(decision)
                draining = self._set_phase(decision.drain, Phase.DRAINING)
                resumed = self._set_phase(decision.resume, Phase.RUNNING)
            await self._stop_unwanted(decision.stop)
            if forgiven:
                await self.link.forgive(forgiven)
            if draining:
                await self.link.drain(draining)
            if resumed:
                await self.link.resume(resumed)
            with self._changing:
                due = self._due(now)
            await self._launch(due)

    async def _heartbeat(self) -> SchedulerView:
        assert self.link is not None
        with self._changing:
            pools = {tag: asdict(status) for tag, status in self.status().items()}
            workers = tuple(w for unit in self.units.values() for w in unit.worker_names)
            events, self._untold = tuple(self._untold), []
        try:
            view = await self.link.heartbeat(Report(pools, workers, events))
        except OSError:
            self._untold[:0] = events
            raise
        return view

    def _tell(self, event: Event) -> None:
        self._untold.append(event)

    async def _stop_unwanted(self, names: Iterable[UnitName]) -> None:
        """End units that hold nothing; one that connected in this moment is drained instead."""
        assert self.link is not None
        units = [self.units[name] for name in names]
        starting = [w for u in units if u.connected_at is None for w in u.worker_names]
        connected = set(await self.link.bar(starting)) if starting else set()
        with self._changing:
            ending = [unit for unit in units if not connected & set(unit.worker_names)]
            for unit in ending:
                self.units.pop(unit.name, None)
            self._end(ending)

    def _connected(self, units: Iterable[Unit], now: float) -> None:
        for unit in units:
            pool = self.pools[unit.pool]
            pool.failures = 0
            pool.wait_s = now - unit.launched_at

    def _margins(self, longest_s: float) -> dict[str, Margin]:
        return {
            tag: margin_for(pool.task_s or longest_s, pool.wait_s, pool.walltime_s)
            for tag, pool in self.pools.items()
            if pool.walltime_s is not None
        }

    def _pass_on(self, decision: Decision) -> None:
        """See to units whose walltime is nearly over."""
        for name in (*decision.renew, *decision.leave):
            unit = self.units.get(name)
            if unit is not None and not unit.renewed:
                self.wanted.renew(unit, self.pools[unit.pool])
        for name in decision.leave:
            if name in self.units:
                self.units[name].leaving = "its walltime is nearly over"
                self.wanted.remove(name)

    def _lose(self, losses: Iterable[Loss], now: float) -> list[str]:
        """Replace lost units; returns the workers whose calls are not at fault."""
        forgiven: list[str] = []
        lost: list[Unit] = []
        for loss in losses:
            if loss.from_outside:
                forgiven += self.units[loss.name].worker_names
            lost.append(self._replace(loss, now))
        self._end(lost)
        return forgiven

    def _observe(self, now: float) -> dict[UnitName, Observation]:
        launchers = {id(pool.launcher): pool.launcher for pool in self.pools.values()}
        observed = {n: o for one in launchers.values() for n, o in one.observe().items()}
        for name, unit in self.units.items():
            seen = observed.get(name)
            pending = seen is not None and seen.state is UnitState.PENDING
            unit.waiting = seen.reason if seen is not None and pending else None
            if seen is not None and seen.state is UnitState.RUNNING:
                unit.running_since = unit.running_since or now
            if unit.missing_since is not None and unit.connected_at is not None:
                self.pools[unit.pool].launcher.look_soon()
        return observed

    def _set_phase(self, names: Iterable[UnitName], phase: Phase) -> list[str]:
        workers: list[str] = []
        for name in names:
            self.units[name].phase = phase
            workers += self.units[name].worker_names
        return workers

    def _give_up_crash_loops(self, now: float) -> None:
        # Units that restart their own workers (a Nanny) are never seen to end.
        for unit in list(self.units.values()):
            restarting = unit.connected_at is not None and unit.missing_since is not None
            if unit.name in self.wanted.spec and restarting and in_crash_loop(unit.starts, now):
                loss = Loss(unit.name, "its worker ended again and again")
                self._end([self._replace(loss, now)])

    def _replace(self, loss: Loss, now: float) -> Unit:
        """Want another unit instead of a lost one, or give its pool up; returns the lost one."""
        unit = self.units.pop(loss.name)
        pool = self.pools[unit.pool]
        reason = self._with_log(pool, loss)
        if unit.connected_at is None:
            pool.back_off(now)
        logger.warning("worker %s was lost: %s", unit.name, reason)
        unit.leaving = f"lost: {loss.reason}"
        if pool.failures >= CRASH_LOOP_STARTS or in_crash_loop(unit.starts, now):
            self._degrade(pool, f"{CRASH_LOOP_STARTS} starts failed; the last: {reason}")
        else:
            self.wanted.replace(unit, pool)
        return unit

    def _with_log(self, pool: Pool, loss: Loss) -> str:
        lines = pool.launcher.logs(loss.name).splitlines()
        tail = [line for line in lines if line.strip() and " - INFO - " not in line][-5:]
        if not tail:
            return loss.reason
        return f"{loss.reason}: {tail[-1].strip()}; its last output:\n  " + "\n  ".join(tail)

    def _degrade(self, pool: Pool, reason: str) -> None:
        if pool.degraded is None:
            pool.degraded = reason
            logger.error("pool %r is degraded: %s", pool.tag, reason)
            self._on_event(degraded(pool.tag, reason))

    def _due(self, now: float) -> dict[str, dict[UnitName, dict[str, Any]]]:
        """Entries to launch now, by pool; their units exist from here on."""
        due: dict[str, dict[UnitName, dict[str, Any]]] = {}
        starting = Counter(
            id(self.pools[unit.pool].launcher)
            for unit in self.units.values()
            if unit.connected_at is None
        )
        for name, entry in self.wanted.spec.items():
            pool = self.pools[entry.get("pool", UNTAGGED)]
            names = worker_names(name, entry)
            taken = name in self._stops.names or any(n in self._workers for n in names)
            if name in self.units or pool.degraded or now < pool.retry_at or taken:
                continue
            most = getattr(pool.launcher, "at_once", None)
            if most is not None and starting[id(pool.launcher)] >= most:
                continue
            starting[id(pool.launcher)] += 1
            starts = (*self.wanted.starts(name), now)
            self.units[name] = Unit(name, pool.tag, names, launched_at=now, starts=starts)
            due.setdefault(pool.tag, {})[name] = entry
        return due

    async def _launch(self, due: Mapping[str, Mapping[UnitName, Mapping[str, Any]]]) -> None:
        assert self.link is not None
        refused: ProviderError | None = None
        again = [
            w for entries in due.values() for n, e in entries.items() for w in worker_names(n, e)
        ]
        if again:
            await self.link.admit(again)
        for tag, entries in due.items():
            pool = self.pools[tag]
            for name, entry in entries.items():
                for worker in worker_names(name, entry):
                    self._on_event(worker_event("requested", worker, tag))
            try:
                await pool.launcher.launch(entries)
                pool.accepted()
            except ProviderError as error:
                refused = self._refused(pool, entries, error) or refused
        if refused is not None:
            raise refused

    def _refused(
        self, pool: Pool, entries: Mapping[UnitName, Any], error: ProviderError
    ) -> ProviderError | None:
        with self._changing:
            refused = [self.units.pop(name) for name in entries]
            for unit in refused:
                unit.leaving = f"refused: {error.message}"
            self._end(refused)
            if not error.transient:
                self._degrade(pool, str(error))
                return error
            now = time.monotonic()
            if pool.refused_for(now, error.message) > REFUSED_LIMIT_S:
                self._degrade(pool, f"refused for {REFUSED_LIMIT_S:g} s; the last: {error}")
            else:
                pool.back_off(now)
                logger.warning("pool %r: %s; it is tried again", pool.tag, error)
        return None

    def _end(self, units: Iterable[Unit]) -> None:
        by_pool: dict[str, list[UnitName]] = {}
        for unit in units:
            by_pool.setdefault(unit.pool, []).append(unit.name)
            for worker in unit.worker_names:
                self._on_event(worker_event("removed", worker, unit.pool, unit.leaving))
        for tag, names in by_pool.items():
            self._stops.begin(self.pools[tag], names)

    def abandon(self) -> None:
        """End, and leave every unit to whoever manages them now."""
        self._closing = True
        with self._changing:
            self.units.clear()
            self.wanted.spec.clear()

    async def close(self) -> None:
        """Stop every unit at once, without draining, and end."""
        self._closing = True
        if self._task is not None:
            # Not cancelled at once: Dask's comms may swallow that, and the loop would go on.
            self.wake()
            await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT_S)
            self._task.cancel()
            self._task = None
        with self._changing:
            units, self.units = list(self.units.values()), {}
            self.wanted.spec.clear()
        for unit in units:
            unit.leaving = "closed"
        self._end(units)
        await self._stops.finish()
