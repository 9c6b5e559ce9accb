"""The reconciler: a loop that starts and stops units until the desired units exist.

Only the reconciler restarts workers. It has launchers and a link to a scheduler, but no cluster
object. Its decisions are in :mod:`scalable.manager.units`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from scalable.errors import ProviderError
from scalable.manager.background import (
    LOG_TIMEOUT_S,
    OUTPUT,
    Batch,
    Launches,
    Losses,
    note_reason,
)
from scalable.manager.inventory import Inventory
from scalable.manager.launcher import LimitReachedError, Observation, UnitName, UnitState
from scalable.manager.pools import Pool
from scalable.manager.scheduler_link import HeartbeatReport, SchedulerLink, SchedulerView
from scalable.manager.units import (
    CRASH_LOOP_STARTS,
    WALLTIME,
    Loss,
    Margin,
    NextSteps,
    Phase,
    Unit,
    decide,
    in_crash_loop,
    refresh,
    set_phase,
    take_note,
)
from scalable.pricing.metering import Charge
from scalable.protocol.events import SILENT_SCHEDULER, Event, degraded, failed_start, worker_event
from scalable.protocol.pools import shown
from scalable.units import format_duration

logger = logging.getLogger("scalable.manager")

#: Seconds between two passes if nothing has changed: a minimum, the share of the time that passes
#: may take, and a maximum. With thousands of workers a pass takes long, here and in the scheduler.
INTERVAL_S, SHARE, LONGEST_INTERVAL_S = 0.5, 0.1, 2.0
CLOSE_TIMEOUT_S = 5.0
#: Seconds for unfinished requests for units while the reconciler closes.
LAUNCH_CLOSE_TIMEOUT_S = 10.0


def pause_s(used_s: float) -> float:
    """Return the pause before the next pass, after a pass with ``used_s`` of CPU time."""
    return min(max(INTERVAL_S, used_s / SHARE), LONGEST_INTERVAL_S)


class Reconciler:
    """A loop that starts and stops units until a manager's pools have the desired units.
    Workers must connect within ``start_timeout`` seconds. ``end_wanted`` is true when the cluster
    stops, ``replaced`` when another process has taken over this manager's id.
    """

    def __init__(
        self,
        incarnation: str,
        *,
        on_event: Callable[[Event], None] | None = None,
        start_timeout: float = 120.0,
    ) -> None:
        self.inventory = Inventory(incarnation, self.wake)
        self.link: SchedulerLink | None = None
        self.end_wanted = False
        self.replaced = False
        #: True while a caller waits for the answers to requests, and gets refusals as errors.
        self._aligning = False
        self._on_event = on_event or self._tell
        self._start_timeout = start_timeout
        self._untold: list[Event] = []
        self._excused: list[str] = []
        self._out_of_memory: list[str] = []
        self._unreachable_since: float | None = None
        #: CPU seconds of the last pass, without other work of the event loop.
        self._used_s = 0.0
        self._charges = Charges()
        self._launches = Launches(self.wake)
        self._losses = Losses(self.wake)
        self._stops = Stops(self.wake)
        self._silent_starts = SilentStarts(self._on_event)
        #: Failed units, to stop unless they connect.
        self._failed: dict[UnitName, Unit] = {}
        self._lock: asyncio.Lock | None = None
        self._wake: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    # Life ---------------------------------------------------------------------------------------

    def start(self, link: SchedulerLink) -> None:
        self.link = link
        self._lock, self._wake = asyncio.Lock(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._run(), name="scalable reconciler")
        self._task.add_done_callback(self._loop_ended)

    def wake(self) -> None:
        """Start the next pass now instead of after the interval. Thread-safe."""
        if self._wake is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    async def _run(self) -> None:
        assert self._wake is not None
        while not self._closing:
            # Not `wait_for`: in Python 3.11 it loses a cancellation that comes with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s(self._used_s)):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self.reconcile()
                self._unreachable_since = None
            except OSError as error:
                if self._unreachable_since is None:
                    logger.warning("the scheduler does not answer: %s", error)
                    self._unreachable_since = time.monotonic()

    @property
    def unreachable_s(self) -> float:
        """Seconds since the scheduler last answered, or 0 while it answers."""
        since = self._unreachable_since
        return 0.0 if since is None else time.monotonic() - since

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical(
                "the reconciler failed and has stopped managing workers", exc_info=error
            )
            for pool in self.inventory.pools.values():
                self._degrade(pool, f"its reconciler failed: {error!r}")

    async def align(self) -> None:
        """Reconcile, and wait until the requests for the due units have been answered.
        Raise ProviderError if a unit is refused permanently (its pool is then degraded), and
        OSError if the scheduler does not answer.
        """
        self._aligning = True
        try:
            await self.reconcile()
            batches = await self._launches.finish()
            await self.reconcile()
        finally:
            self._aligning = False
        errors = [batch.error for batch in batches if isinstance(batch.error, ProviderError)]
        refusals = [error for error in errors if not error.transient]
        for words in {str(error) for error in refusals} - {str(refusals[0]) if refusals else ""}:
            logger.error("%s", words)
        if refusals:
            raise refusals[0]

    def drains_idle_units(self) -> bool:
        """Return whether a draining unit has connected workers, none of which has tasks."""
        workers = self.inventory.workers
        for unit in self.inventory.units.values():
            here = [workers[name] for name in unit.worker_names if name in workers]
            if unit.phase is Phase.DRAINING and here and not any(w.processing for w in here):
                return True
        return False

    async def reconcile(self) -> None:
        """Compare existing and desired units once, and request the launches and stops that are due.
        Does not wait for launchers. Raise OSError if the scheduler does not answer.
        """
        assert self.link is not None
        assert self._lock is not None
        async with self._lock:
            view = await self._heartbeat()
            self.inventory.workers = view.workers
            self.end_wanted = view.end
            self.replaced = not view.known
            if view.end or self.replaced:
                return
            now, used_s = time.monotonic(), -time.thread_time()
            with self.inventory.changing:
                for batch in self._launches.take_answered():
                    self._answered(batch, now)
                self._stop_lost()
                self.inventory.obey(view.orders)
                decision = self._decide(view, now)
                for loss in decision.lost:
                    workers = self._lose(loss, now)
                    self._excused += workers if loss.from_outside else ()
                    self._out_of_memory += workers if loss.out_of_memory else ()
                for name in decision.excused:
                    self._excused += self.inventory.units[name].worker_names
                renew(self.inventory, decision)
                reasons = drain_reasons(self.inventory.units, decision)
                draining = set_phase(self.inventory.units, decision.drain, Phase.DRAINING)
            self._used_s = used_s + time.thread_time()
            await self._stop_unconnected(decision.stop)
            if self._excused:
                await self.link.excuse_losses(self._excused)
                self._excused = []
            if self._out_of_memory:
                await self.link.ended_for_memory(self._out_of_memory)
                self._out_of_memory = []
            if draining:
                units, pools = self.inventory.units, self.inventory.pools
                walltimes = walltimes_of(units, pools, decision)
                await self.link.drain({name: reasons[name] for name in draining}, walltimes)
            await self._resume(decision.resume)
            await self._launch(now)

    async def _resume(self, names: Iterable[UnitName]) -> None:
        """Resume draining units. Replace units with workers that are already leaving."""
        assert self.link is not None
        units = {name: self.inventory.units[name] for name in names}
        workers = [worker for unit in units.values() for worker in unit.worker_names]
        if workers:
            logger.debug("workers %s are desired again", workers)
            resumed = set(await self.link.resume(workers))
            with self.inventory.changing:
                for name, unit in units.items():
                    if resumed >= set(unit.worker_names):
                        unit.phase = Phase.RUNNING
                    elif name in self.inventory.wanted.spec:
                        self._replace_leaving(unit)

    def _replace_leaving(self, unit: Unit) -> None:
        """Request a replacement for a leaving unit. Later passes stop the leaving one."""
        logger.debug("unit %s is leaving and cannot be used again", unit.name)
        unit.starts, unit.superseded = (), True  # it did not fail
        self.inventory.wanted.replace(unit, self.inventory.pools[unit.pool])

    async def _heartbeat(self) -> SchedulerView:
        assert self.link is not None
        with self.inventory.changing:
            pools = self.inventory.status()
            workers = tuple(w for unit in self.inventory.units.values() for w in unit.worker_names)
            events, self._untold = tuple(self._untold), []
            ending = (*self._stops.names, *self._losses.names, *self._failed)
            charges = self._charges.of(self.inventory.units.values(), ending, time.monotonic())
        try:
            view = await self.link.heartbeat(HeartbeatReport(pools, workers, events, charges))
        except OSError:
            self._untold[:0] = events
            raise
        self._charges.counted = view.counts_costs
        return view

    def _tell(self, event: Event) -> None:
        self._untold.append(event)

    def _decide(self, view: SchedulerView, now: float) -> NextSteps:
        units = self.inventory.units.values()
        for unit in refresh(units, view.workers, now, view.dismissed, view.lost_at_work):
            pool = self.inventory.pools[unit.pool]
            pool.connected()
            pool.wait_s = now - unit.launched_at
            logger.debug("unit %s is connected after %.1f s", unit.name, pool.wait_s)
        launchers = {id(pool.launcher): pool.launcher for pool in self.inventory.pools.values()}
        observed: dict[UnitName, Observation] = {}
        for launcher in launchers.values():
            observed.update(launcher.observe())
        self._charges.observed = observed
        for unit in take_note(self.inventory.units.values(), observed, now):
            self.inventory.pools[unit.pool].launcher.look_soon()
        self._silent_starts.look(units, self.inventory.pools, now)
        return decide(
            self.inventory.wanted.spec,
            self.inventory.units,
            observed,
            view.workers,
            now=now,
            start_timeout=self._start_timeout,
            margins=margins_of(self.inventory.pools, view.longest_s),
        )

    # Losses and renewals ------------------------------------------------------------------------

    def _lose(self, loss: Loss, now: float) -> Iterable[str]:
        """Replace a lost unit, or stop its pool in a crash loop. Return its workers' names.
        Units that were stopped from outside, or lost with tasks, are always replaced: the tasks
        fail after a few losses.
        """
        unit = self.inventory.units.pop(loss.name)
        pool = self.inventory.pools[unit.pool]
        unit.leaving, unit.superseded = f"lost: {loss.reason}", True
        pool.lost += 1
        pool.last_loss = f"{loss.name}: {loss.reason}"
        started = loss.from_outside or unit.at_work
        if started:
            unit.starts = unit.starts[:-1]
        if unit.at_work:
            pool.connected()
        elif unit.connected_at is None:
            (pool.pause if loss.from_outside else pool.back_off)(now)
        crashes = pool.failures >= CRASH_LOOP_STARTS or in_crash_loop(unit.starts, now)
        gives_up = crashes and not started
        if gives_up:
            logger.debug("pool %r is in a crash loop", pool.tag)
            pool.giving_up = True
        else:
            self.inventory.wanted.replace(unit, pool)
        self._losses.begin(pool, unit, loss, gives_up=gives_up)
        return unit.worker_names

    def _stop_lost(self) -> None:
        """Log lost units whose reasons are known, and stop their remaining processes or jobs."""
        for lost in self._losses.take_explained():
            reason = lost.task.result()
            known = lost.failed_start and lost.pool.start_failure == reason.partition(OUTPUT)[0]
            logger.warning(
                "worker %s was lost: %s", lost.unit.name, "as the last one" if known else reason
            )
            if (event := note_reason(lost, reason)) is not None:
                self._on_event(event)
            if lost.gives_up and lost.pool.giving_up:
                self._degrade(
                    lost.pool, f"{CRASH_LOOP_STARTS} starts failed; the last error: {reason}"
                )
            if lost.ended or lost.gives_up:
                self._end([lost.unit])
            else:
                self._failed[lost.unit.name] = lost.unit

    def _degrade(self, pool: Pool, reason: str, level: int = logging.ERROR) -> None:
        if pool.degraded is None:
            pool.degraded = reason
            logger.log(level, "%s is degraded: %s", shown(pool.tag), reason)
            self._on_event(degraded(pool.tag, reason))

    # Launches -----------------------------------------------------------------------------------

    async def _launch(self, now: float) -> None:
        """Request the units that are due. A later pass handles the answers."""
        assert self.link is not None
        with self.inventory.changing:
            due = self._launches.take_due(self.inventory, self._is_ending, now)
            units = [self.inventory.units[name] for entries in due.values() for name in entries]
        if not units:
            return
        try:
            await self.link.allow_work([worker for unit in units for worker in unit.worker_names])
        except OSError:
            with self.inventory.changing:
                for unit in units:
                    self.inventory.units.pop(unit.name, None)
            raise
        if self._closing:
            return
        for unit in units:
            for worker in unit.worker_names:
                self._on_event(worker_event("requested", worker, unit.pool))
        for tag, entries in due.items():
            self._launches.begin(self.inventory.pools[tag], entries)

    def _is_ending(self, name: UnitName) -> bool:
        return name in self._stops.names or name in self._losses or name in self._failed

    def _answered(self, batch: Batch, now: float) -> None:
        """Handle a launcher's answer: the units were accepted or refused."""
        pool, error = batch.pool, batch.error
        units = [self.inventory.units[name] for name in batch.names if name in self.inventory.units]
        for unit in units:
            unit.in_flight = False
        if error is None:
            pool.accepted(len(batch.names), whole=batch.whole)
            return
        words = error.message if isinstance(error, ProviderError) else repr(error)
        logger.debug("pool %r: %s were refused: %s", pool.tag, batch.names, words)
        for unit in units:
            unit.leaving = f"refused: {words}"
            self._failed[unit.name] = self.inventory.units.pop(unit.name)  # part of it may run
        reason = refused(pool, error, len(units), now)
        if reason is not None:
            self._degrade(pool, reason, logging.DEBUG if self._aligning else logging.ERROR)

    # Stops --------------------------------------------------------------------------------------

    async def _stop_unconnected(self, names: Iterable[UnitName]) -> None:
        """Stop undesired and failed units once the scheduler confirms that they get no work."""
        assert self.link is not None
        units = {name: self.inventory.units[name] for name in names} | self._failed
        if not units:
            return
        answer = await self.link.withhold_work([unit.worker_names for unit in units.values()])
        connected = set(answer)
        with self.inventory.changing:
            ending = []
            for name, unit in units.items():
                failed = self._failed.pop(name, None) is not None
                if not connected.isdisjoint(unit.worker_names):
                    logger.debug("unit %s is not stopped: it has connected", name)
                    self.inventory.units[name] = unit
                    continue
                ending.append(unit)
                if not failed:
                    del self.inventory.units[name]
                    if name in self.inventory.wanted.spec and not unit.superseded:
                        # It became desired again while the scheduler answered.
                        self.inventory.wanted.replace(unit, self.inventory.pools[unit.pool])
            self._end(ending)

    def _end(self, units: Iterable[Unit]) -> None:
        by_pool: dict[str, list[UnitName]] = {}
        for unit in units:
            logger.debug("unit %s is stopped: %s", unit.name, unit.leaving)
            by_pool.setdefault(unit.pool, []).append(unit.name)
            for worker in unit.worker_names:
                self._on_event(worker_event("removed", worker, unit.pool, unit.leaving))
        for tag, names in by_pool.items():
            self._stops.begin(self.inventory.pools[tag], names)

    def abandon(self) -> None:
        """Stop reconciling, and leave all units to another process of this manager."""
        self._closing = True
        self.inventory.take_all()

    async def close(self) -> None:
        """Stop reconciling, and stop every unit without draining."""
        self._closing = True
        if self._task is not None:
            # Wake it first: Dask's comms may swallow a cancellation, and the loop would continue.
            self.wake()
            await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT_S)
            self._task.cancel()
            self._task = None
        self._silent_starts.close()
        units = self.inventory.take_all()
        for unit in units:
            unit.leaving = "closed"
        # Units whose launcher has answered are stopped first, without waiting for slow launchers.
        failed = [*self._losses.abandon(), *self._failed.values()]
        self._end([*failed, *(unit for unit in units if not unit.in_flight)])
        await self._launches.close(LAUNCH_CLOSE_TIMEOUT_S)
        self._end([unit for unit in units if unit.in_flight])
        await self._stops.finish()
        await self.inventory.close_launchers()


# Charges ------------------------------------------------------------------------------------------


class Charges:
    """Units for which a manager is charged, from the first report that they run until they stop."""

    def __init__(self) -> None:
        self.observed: Mapping[UnitName, Observation] = {}
        self.counted = False
        self._since: dict[UnitName, tuple[Unit, float]] = {}

    def of(
        self, units: Iterable[Unit], ending: Iterable[UnitName], now: float
    ) -> dict[str, Charge] | None:
        """Map the charged units to their charges, or return None if costs are not counted.
        ``ending`` names units that are being stopped or may still exist. ``now`` is monotonic.
        """
        known, self._since = self._since, {}
        for unit in units:
            since = _charged_since(unit, self.observed.get(unit.name), now)
            if since is not None:
                self._since[unit.name] = unit, known.get(unit.name, (unit, since))[1]
        for name in ending:
            if name in known:
                self._since.setdefault(name, known[name])
        if not self.counted:
            return None
        seen = self.observed
        return {
            str(name): _charge(unit, since, seen.get(name), now)
            for name, (unit, since) in self._since.items()
            if name not in seen or seen[name].state is not UnitState.ENDED
        }


def _charge(unit: Unit, since: float, seen: Observation | None, now: float) -> Charge:
    machine = None if seen is None else seen.machine
    workers = tuple(map(str, unit.worker_names))
    if machine is None:
        return Charge(unit.pool, now - since, workers)
    charged_s = now - since if machine.charged_s is None else machine.charged_s
    return Charge(
        unit.pool, charged_s, workers, machine.name, machine.per_hour, max(1, machine.holds)
    )


def _charged_since(unit: Unit, seen: Observation | None, now: float) -> float | None:
    charged_s = None if seen is None or seen.machine is None else seen.machine.charged_s
    moments = unit.running_since, unit.connected_at, None if charged_s is None else now - charged_s
    return min((moment for moment in moments if moment is not None), default=None)


# Refusals -----------------------------------------------------------------------------------------

#: Seconds of refusals with temporary errors after which a pool is degraded.
REFUSED_LIMIT_S = 600.0


def refused(pool: Pool, error: BaseException, count: int, now: float) -> str | None:
    """Record a refusal of units. Return the reason if their pool must be stopped, else None."""
    if isinstance(error, LimitReachedError):
        if pool.limited(now, count, error.message):
            logger.warning("%s: %s; more workers are requested later", shown(pool.tag), error)
        return None
    if not isinstance(error, ProviderError):
        logger.critical("the launcher of %s failed", shown(pool.tag), exc_info=error)
        return f"its launcher failed: {error!r}"
    if not error.transient:
        return str(error)
    if pool.refused_for(now, error.message) > REFUSED_LIMIT_S:
        return f"refused for {REFUSED_LIMIT_S:g} s; the last error: {error}"
    pool.pause(now)
    logger.warning("%s: %s; it is retried", shown(pool.tag), error)
    return None


# Renewals -----------------------------------------------------------------------------------------

#: Seconds that a worker needs to hand over its results before its walltime is over.
HAND_OVER_S = 10.0
#: Largest part of the walltime in which a unit accepts no tasks.
FITTING = 0.75


def margin_for(task_s: float, wait_s: float, walltime_s: float) -> Margin:
    """Return the seconds before the walltime's end at which units are renewed and stopped.
    ``task_s`` is the longest task. If it nearly fills the walltime, a worker still gets tasks.
    """
    stop = min(1.2 * task_s + HAND_OVER_S, walltime_s / 2)
    stop = max(stop, min(task_s + HAND_OVER_S, FITTING * walltime_s))
    return Margin(stop_s=stop, renew_s=stop + min(wait_s, walltime_s / 4))


def margins_of(pools: Mapping[str, Pool], longest_s: float) -> dict[str, Margin]:
    """Map the pools with a walltime to their margins."""
    return {
        tag: margin_for(pool.task_s or longest_s, pool.wait_s, pool.walltime_s)
        for tag, pool in pools.items()
        if pool.walltime_s is not None
    }


def drain_reasons(units: Mapping[UnitName, Unit], decision: NextSteps) -> dict[str, str]:
    """Map the names of the workers to drain now to the reasons for the user."""
    reasons: dict[str, str] = {}
    for name in decision.drain:
        if name in units:
            reason, left_s = units[name].leaving, decision.left_s.get(name)
            if reason == WALLTIME and left_s is not None:
                reason = f"its walltime ends in {format_duration(left_s)}"
            reasons |= dict.fromkeys(units[name].worker_names, reason)
    return reasons


def walltimes_of(
    units: Mapping[UnitName, Unit], pools: Mapping[str, Pool], decision: NextSteps
) -> dict[str, tuple[float, float]]:
    """Map the names of draining workers to their remaining and total walltimes in seconds."""
    found: dict[str, tuple[float, float]] = {}
    for name in decision.drain:
        left_s, walltime_s = decision.left_s.get(name), pools[units[name].pool].walltime_s
        if left_s is not None and walltime_s is not None:
            found |= dict.fromkeys(units[name].worker_names, (left_s, walltime_s))
    return found


def renew(inventory: Inventory, decision: NextSteps) -> None:
    """Request successors for leaving units. Units that must leave are no longer desired."""
    for name in (*decision.renew, *decision.leave):
        unit = inventory.units.get(name)
        if unit is not None and not unit.renewed:
            logger.debug("unit %s is renewed", name)
            inventory.wanted.renew(unit, inventory.pools[unit.pool])
    for name in decision.taken_back:
        unit = inventory.units.get(name)
        if unit is not None:
            pool, reason = inventory.pools[unit.pool], decision.leave[name]
            logger.warning("worker %s is replaced: %s", name, reason)
            pool.lost += 1
            pool.last_loss = f"{name}: {reason}"
    for name, reason in decision.leave.items():
        if name in inventory.units:
            inventory.units[name].leaving = reason
            inventory.wanted.remove(name)


# Silent starts ------------------------------------------------------------------------------------

#: Seconds for which a unit runs without connecting before its output is read.
SILENT_S = 12.0
#: Seconds between two reads of the output of a pool's units.
AGAIN_S = 4.0


class SilentStarts:
    """Finder of workers whose output shows that their scheduler does not answer."""

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self._on_event = on_event
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._looked_at: dict[str, float] = {}

    def look(self, units: Iterable[Unit], pools: Mapping[str, Pool], now: float) -> None:
        """Read the output of running units that do not connect. Needs a running event loop."""
        for unit in units:
            pool = pools[unit.pool]
            since, tag = unit.running_since, pool.tag
            silent = unit.phase is Phase.LAUNCHING and unit.connected_at is None
            if not silent or since is None or now - since < SILENT_S or pool.start_failure:
                continue
            if tag in self._looking or now - self._looked_at.get(tag, -AGAIN_S) < AGAIN_S:
                continue
            self._looked_at[tag] = now
            self._looking[tag] = asyncio.ensure_future(self._read(unit, pool))

    async def _read(self, unit: Unit, pool: Pool) -> None:
        try:
            await self._show(unit, pool)
        finally:
            del self._looking[pool.tag]

    async def _show(self, unit: Unit, pool: Pool) -> None:
        try:
            text = await asyncio.wait_for(pool.launcher.logs(unit.name), LOG_TIMEOUT_S)
        except (ProviderError, OSError) as error:  # TimeoutError is an OSError
            logger.debug("the output of worker %s cannot be read: %r", unit.name, error)
            return
        said = [line.strip() for line in text.splitlines() if line.startswith(SILENT_SCHEDULER)]
        if said and unit.connected_at is None and pool.start_failure is None:
            logger.warning("worker %s runs but does not connect: %s", unit.name, said[-1])
            pool.start_failure = said[-1]
            self._on_event(failed_start(pool.tag, str(unit.name), said[-1]))

    def close(self) -> None:
        for task in self._looking.values():
            task.cancel()


# Stops --------------------------------------------------------------------------------------------

#: First and longest pause in seconds before a stop is repeated on a backend that did not answer.
#: Each pause is twice the one before.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
#: Seconds after which stops are no longer repeated on a backend that does not answer.
GIVE_UP_S = 3600.0


class Stops:
    """Background requests to stop units, repeated until answered. ``names`` are not reused."""

    def __init__(self, on_stopped: Callable[[], None]) -> None:
        self.names: set[UnitName] = set()
        self._on_stopped = on_stopped
        self._tasks: set[asyncio.Task[None]] = set()
        self._finishing: asyncio.Event | None = None

    def begin(self, pool: Pool, names: Sequence[UnitName]) -> None:
        """Stop units of a pool in the background. Needs a running event loop."""
        self.names.update(names)
        task = asyncio.ensure_future(self._stop(pool, names))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop(self, pool: Pool, names: Sequence[UnitName]) -> None:
        deadline, pause_s = time.monotonic() + GIVE_UP_S, FIRST_PAUSE_S
        try:
            while not await self._is_stopped(pool, names):
                if self._is_finishing() or time.monotonic() > deadline:
                    logger.error("%s: units %s may still run", shown(pool.tag), list(names))
                    return
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            self.names.difference_update(names)
            self._on_stopped()

    async def _is_stopped(self, pool: Pool, names: Sequence[UnitName]) -> bool:
        """Stop units. Return False if this failed but another attempt may succeed."""
        try:
            await pool.launcher.stop(list(names))
        except ProviderError as error:
            logger.warning("units %s could not be stopped: %s", list(names), error)
            return not error.transient
        logger.debug("pool %r: units %s are stopped", pool.tag, names)
        return True

    def _is_finishing(self) -> bool:
        return self._finishing is not None and self._finishing.is_set()

    async def _pause(self, seconds: float) -> None:
        """Wait for some seconds, or until :meth:`finish` is called."""
        self._finishing = self._finishing or asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._finishing.wait()

    async def finish(self) -> None:
        """Wait until all requests have made their last attempt, and log unexpected errors."""
        self._finishing = self._finishing or asyncio.Event()
        self._finishing.set()
        while self._tasks:
            done = await asyncio.gather(*self._tasks, return_exceptions=True)
            for error in filter(None, done):
                logger.error("a request to stop units failed", exc_info=error)
