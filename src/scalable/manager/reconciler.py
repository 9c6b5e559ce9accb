"""The reconciler, which starts and stops units. Nothing else restarts workers."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from scalable.errors import ProviderError
from scalable.manager.inventory import Inventory
from scalable.manager.launcher import LimitReachedError, Observation, UnitName
from scalable.manager.pools import Pool
from scalable.manager.units import (
    CRASH_LOOP_STARTS,
    WALLTIME,
    Loss,
    Margin,
    NextSteps,
    Phase,
    Unit,
    WorkerView,
    charges_of,
    decide,
    in_crash_loop,
    refresh,
    take_note,
)
from scalable.model.clusters import pools_to_dict
from scalable.protocol.events import (
    SILENT_SCHEDULER,
    Event,
    failed_start,
    failure_event,
    worker_event,
)
from scalable.protocol.failures import without_dask
from scalable.protocol.handlers import Handler, HeartbeatAnswer, request
from scalable.protocol.pools import shown
from scalable.units import as_written, format_duration

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
        self.end_wanted = False
        self.replaced = False
        self._comm: Any = None
        self._identity: dict[str, str] = {}
        #: True while a caller waits for the answers to requests, and gets refusals as errors.
        self._aligning = False
        #: Events for the next heartbeat, unless the caller handles them.
        self._untold: list[Event] = []
        self._on_event = on_event or self._untold.append
        self._start_timeout = start_timeout
        self._excused: list[str] = []
        self._out_of_memory: list[str] = []
        self._unreachable_since: float | None = None
        #: CPU seconds of the last pass, without other work of the event loop.
        self._used_s = 0.0
        self._observed: Mapping[UnitName, Observation] = {}
        self._counts_costs = False
        #: Unanswered requests for units by tag.
        self._requests: dict[str, asyncio.Task[None]] = {}
        self._reading = set[asyncio.Task[None]]()
        self._stops = Stops(self._stopped)
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    # Life ---------------------------------------------------------------------------------------

    def start(self, comm: Any, manager: str, nonce: str) -> None:
        """Start reconciling. ``comm`` is Dask's ``rpc`` object of the scheduler."""
        self._comm, self._identity = comm, {"manager": manager, "nonce": nonce}
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._run(), name="scalable reconciler")
        self._task.add_done_callback(self._loop_ended)

    def wake(self) -> None:
        """Start the next pass now instead of after the interval. Thread-safe."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    async def _run(self) -> None:
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
            if requests := list(self._requests.values()):
                await asyncio.wait(requests)
            await self.reconcile()
        finally:
            self._aligning = False
        errors = [request.exception() for request in requests if not request.cancelled()]
        refusals = [e for e in errors if isinstance(e, ProviderError) and not e.transient]
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
        async with self._lock:
            answer = await self._heartbeat()
            self.replaced = not answer
            if self.replaced:
                return
            views = {name: WorkerView(**view) for name, view in answer["workers"].items()}
            self.inventory.workers = {name: view for name, view in views.items() if view.address}
            self.end_wanted = answer["end"]
            self._counts_costs = answer["counts_costs"]
            if self.end_wanted:
                return
            now, used_s = time.monotonic(), -time.thread_time()
            with self.inventory.changing:
                self.inventory.obey(answer["orders"])
                decision = self._decide(views, answer["longest_s"], now)
                for loss in decision.lost:
                    lost = self._lose(loss, now)
                    self._excused += lost if loss.from_outside else ()
                    self._out_of_memory += lost if loss.out_of_memory else ()
                for name in decision.excused:
                    self._excused += self.inventory.units[name].worker_names
                renew(self.inventory, decision)
                reasons, walltimes = drain(self.inventory, decision)
            self._used_s = used_s + time.thread_time()
            await self._stop_unconnected(decision.stop)
            if self._excused:
                await request(self._comm, Handler.EXCUSE_LOSSES, workers=self._excused)
                self._excused = []
            if self._out_of_memory:
                await request(self._comm, Handler.ENDED_FOR_MEMORY, workers=self._out_of_memory)
                self._out_of_memory = []
            if reasons:
                await request(self._comm, Handler.DRAIN, workers=reasons, walltimes=walltimes)
            await self._resume(decision.resume)
            await self._launch(now)

    async def _resume(self, names: Iterable[UnitName]) -> None:
        """Resume draining units. Replace units with workers that are already leaving."""
        units = {name: self.inventory.units[name] for name in names}
        workers = [worker for unit in units.values() for worker in unit.worker_names]
        if workers:
            logger.debug("workers %s are desired again", workers)
            resumed = set(await request(self._comm, Handler.RESUME, workers=workers))
            with self.inventory.changing:
                for name, unit in units.items():
                    if resumed >= set(unit.worker_names):
                        unit.phase = Phase.RUNNING
                    elif name in self.inventory.spec:
                        # Later passes stop the leaving unit.
                        logger.debug("unit %s is leaving and cannot be used again", name)
                        unit.starts, unit.superseded = (), True  # it did not fail
                        self.inventory.replace(unit)

    async def _heartbeat(self) -> HeartbeatAnswer:
        inventory = self.inventory
        with inventory.changing:
            pools = pools_to_dict(inventory.status())
            workers = [w for unit in inventory.units.values() for w in unit.worker_names]
            units = (*inventory.units.values(), *inventory.ending.values())
            charges = charges_of(units, self._observed, time.monotonic())
            events = list(self._untold)
            self._untold.clear()
        try:
            answer: HeartbeatAnswer = await request(
                self._comm,
                Handler.HEARTBEAT,
                **self._identity,
                pools=pools,
                workers=workers,
                events=events,
                charges=charges if self._counts_costs else None,
            )
        except OSError:
            self._untold[:0] = events
            raise
        return answer

    def _decide(self, views: Mapping[str, WorkerView], longest_s: float, now: float) -> NextSteps:
        units, pools = self.inventory.units, self.inventory.pools
        for unit in refresh(units.values(), views, now):
            pool = pools[unit.pool]
            pool.connected()
            pool.wait_s = now - unit.launched_at
            logger.debug("unit %s is connected after %.1f s", unit.name, pool.wait_s)
        observed: dict[UnitName, Observation] = {}
        for launcher in self.inventory.launchers():
            observed.update(launcher.observe())
        self._observed = observed
        for unit in take_note(units.values(), observed, now):
            pools[unit.pool].launcher.look_soon()
        for unit in units.values():
            if _is_silent(unit, pools[unit.pool], now):
                pools[unit.pool].read_at = now + AGAIN_S
                self._read(self._find_silence(unit, pools[unit.pool]))
        return decide(
            self.inventory.spec,
            units,
            observed,
            self.inventory.workers,
            now=now,
            start_timeout=self._start_timeout,
            margins=margins_of(pools, longest_s),
        )

    def _read(self, reading: Coroutine[Any, Any, None]) -> None:
        """Read the output of a unit in the background."""
        task = asyncio.ensure_future(reading)
        self._reading.add(task)
        task.add_done_callback(self._has_read)

    def _has_read(self, task: asyncio.Task[None]) -> None:
        self._reading.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the output of a worker could not be read", exc_info=error)

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
            self.inventory.replace(unit)
        unit.phase = Phase.LOST
        self.inventory.ending[unit.name] = unit
        self._read(self._explain(unit, pool, loss, gives_up=gives_up))
        return unit.worker_names

    async def _explain(self, unit: Unit, pool: Pool, loss: Loss, *, gives_up: bool) -> None:
        """Log why a unit was lost. Its remaining process or job is stopped afterwards."""
        reason, failed = loss.reason, unit.connected_at is None and not loss.from_outside
        try:
            if not loss.from_outside:
                output = await output_of(pool, unit.name)
                reason = explained(reason, output, pool.tag, pool.shape.get("memory"))
        finally:  # whatever its launcher raises, unless the reconciler has closed
            if unit.phase is Phase.LOST:
                unit.phase = Phase.ENDED if loss.ended or gives_up else Phase.FAILED
                with self.inventory.changing:
                    self._note_reason(unit, pool, reason, failed=failed)
                    if gives_up and pool.giving_up:
                        words = f"{CRASH_LOOP_STARTS} starts failed; the last error: {reason}"
                        self._degrade(pool, words)
                self.wake()

    def _note_reason(self, unit: Unit, pool: Pool, explanation: str, *, failed: bool) -> None:
        """Store and log why a unit was lost, and publish the reason of a ``failed`` start once."""
        reason = explanation.partition(OUTPUT)[0]
        known = failed and pool.start_failure == reason
        words = "as the last one" if known else explanation
        logger.warning("worker %s was lost: %s", unit.name, words)
        unit.leaving = f"lost: {reason}"
        if (pool.last_loss or "").startswith(f"{unit.name}: "):
            pool.last_loss = f"{unit.name}: {reason}"
        if failed and not known:
            before, pool.start_failure = pool.start_failure or "", reason
            # Otherwise clients were notified while the unit ran.
            if not (SILENT_SCHEDULER in before and SILENT_SCHEDULER in reason):
                self._on_event(failed_start(pool.tag, str(unit.name), reason))

    async def _find_silence(self, unit: Unit, pool: Pool) -> None:
        """Publish that a unit's scheduler does not answer, if the unit's output shows this."""
        output = await output_of(pool, unit.name)
        said = [line.strip() for line in output.splitlines() if line.startswith(SILENT_SCHEDULER)]
        if said and unit.connected_at is None and pool.start_failure is None:
            logger.warning("worker %s runs but does not connect: %s", unit.name, said[-1])
            pool.start_failure = said[-1]
            self._on_event(failed_start(pool.tag, str(unit.name), said[-1]))

    def _degrade(self, pool: Pool, reason: str, level: int = logging.ERROR) -> None:
        if pool.degraded is None:
            pool.degraded = reason
            words = f"{shown(pool.tag)} is degraded: {reason}"
            logger.log(level, "%s", words)
            self._on_event(failure_event("PoolDegraded", words, phase="start", tag=pool.tag))

    # Launches -----------------------------------------------------------------------------------

    async def _launch(self, now: float) -> None:
        """Request the units that are due. Launchers answer in the background."""
        with self.inventory.changing:
            due = self.inventory.take_due(self._requests, now)
            units = [self.inventory.units[name] for entries in due.values() for name in entries]
        if not units:
            return
        try:
            workers = [worker for unit in units for worker in unit.worker_names]
            await request(self._comm, Handler.ALLOW_WORK, workers=workers)
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
            pool, names = self.inventory.pools[tag], list(entries)
            logger.debug("pool %r: launching %s", tag, names)
            launch = asyncio.ensure_future(pool.launcher.launch(entries))
            launch.add_done_callback(partial(self._answered, pool, names))
            self._requests[tag] = launch

    def _answered(self, pool: Pool, names: Sequence[UnitName], request: asyncio.Task[None]) -> None:
        """Handle a launcher's answer: the units were accepted or refused."""
        del self._requests[pool.tag]
        error = None if request.cancelled() else request.exception()
        if self._closing:
            if error is not None:
                logger.warning("%s: %s", shown(pool.tag), error)
            return
        with self.inventory.changing:
            units = [self.inventory.units[n] for n in names if n in self.inventory.units]
            for unit in units:
                unit.in_flight = False
            if error is None:
                pool.accepted(len(names))
            else:
                self._refuse(pool, units, error)
        self.wake()

    def _refuse(self, pool: Pool, units: Sequence[Unit], error: BaseException) -> None:
        words = error.message if isinstance(error, ProviderError) else repr(error)
        logger.debug("pool %r: %s were refused: %s", pool.tag, [u.name for u in units], words)
        for unit in units:  # part of each may run
            unit.leaving, unit.phase = f"refused: {words}", Phase.FAILED
            self.inventory.ending[unit.name] = self.inventory.units.pop(unit.name)
        reason = refused(pool, error, len(units), time.monotonic())
        if reason is not None:
            self._degrade(pool, reason, logging.DEBUG if self._aligning else logging.ERROR)

    # Stops --------------------------------------------------------------------------------------

    async def _stop_unconnected(self, names: Iterable[UnitName]) -> None:
        """Stop units that the scheduler confirms to get no work, and what is left of ended ones."""
        inventory = self.inventory
        units = [inventory.units[name] for name in names]
        units += [unit for unit in inventory.ending.values() if unit.phase is Phase.FAILED]
        connected = set[str]()
        if units:
            names_of_workers = [list(unit.worker_names) for unit in units]
            withheld = request(self._comm, Handler.WITHHOLD_WORK, units=names_of_workers)
            connected |= set(await withheld)
        with inventory.changing:
            ended = [unit for unit in inventory.ending.values() if unit.phase is Phase.ENDED]
            for unit in units:
                failed = unit.phase is Phase.FAILED
                if not connected.isdisjoint(unit.worker_names):
                    logger.debug("unit %s is not stopped: it has connected", unit.name)
                    if failed:
                        unit.phase = Phase.LAUNCHING
                        inventory.units[unit.name] = inventory.ending.pop(unit.name)
                    continue
                ended.append(unit)
                if not failed:
                    del inventory.units[unit.name]
                    if unit.name in inventory.spec and not unit.superseded:
                        # It became desired again while the scheduler answered.
                        inventory.replace(unit)
            self._end(ended)

    def _end(self, units: Iterable[Unit]) -> None:
        by_pool: dict[str, list[UnitName]] = {}
        for unit in units:
            logger.debug("unit %s is stopped: %s", unit.name, unit.leaving)
            unit.phase = Phase.STOPPING
            self.inventory.ending[unit.name] = unit
            by_pool.setdefault(unit.pool, []).append(unit.name)
            for worker in unit.worker_names:
                self._on_event(worker_event("removed", worker, unit.pool, unit.leaving))
        for tag, names in by_pool.items():
            self._stops.begin(self.inventory.pools[tag], names)

    def _stopped(self, names: Iterable[UnitName]) -> None:
        with self.inventory.changing:
            for name in names:
                self.inventory.ending.pop(name, None)
        self.wake()

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
        for task in self._reading:
            task.cancel()
        units = self.inventory.take_all()
        for unit in units:
            unit.leaving = "closed"
        # Units whose launcher has answered are stopped first, without waiting for slow launchers.
        ending = list(self.inventory.ending.values())
        self._end([unit for unit in ending if unit.phase is not Phase.STOPPING])
        self._end([unit for unit in units if not unit.in_flight])
        await self._end_requests()
        self._end([unit for unit in units if unit.in_flight])
        await self._stops.finish()
        await self.inventory.close_launchers()

    async def _end_requests(self) -> None:
        """Wait for the answers to requests, cancel late requests, and wait as long again."""
        requests = dict(self._requests)
        if requests:
            await asyncio.wait(requests.values(), timeout=LAUNCH_CLOSE_TIMEOUT_S)
        late = {tag: task for tag, task in requests.items() if not task.done()}
        for tag, task in late.items():
            logger.warning(
                "%s: its launcher has not answered within %g s; the request is cancelled",
                shown(tag),
                LAUNCH_CLOSE_TIMEOUT_S,
            )
            task.cancel()
        if late:
            await asyncio.wait(late.values(), timeout=LAUNCH_CLOSE_TIMEOUT_S)


# Reasons of losses --------------------------------------------------------------------------------

#: Seconds that a backend may take to return a unit's output.
LOG_TIMEOUT_S = 5.0
#: Number of output lines in the message about a loss.
SHOWN_LINES = 5
#: Part of the lines that Dask logs about a worker whose memory is nearly used up.
_DASK_ON_MEMORY = " - distributed.worker.memory - "
#: String between a reason and the last lines of the output.
OUTPUT = "; its last output:"
#: Matches last lines that explain an exit. Other lines are ordinary output.
_REASON = re.compile(
    r"[\w.]*(error|exception|exit|interrupt)\b"
    r"|.*\b(error|fatal|out of memory|killed|denied|not found|no such|cannot|failed)\b",
    re.IGNORECASE,
)


#: Seconds for which a unit runs without connecting before its output is read.
SILENT_S = 12.0
#: Seconds between two reads of the output of a pool's units. One read takes less.
AGAIN_S = LOG_TIMEOUT_S


def _is_silent(unit: Unit, pool: Pool, now: float) -> bool:
    """Return whether a unit runs without connecting, and its output is to be read now."""
    since = unit.running_since
    starts = unit.phase is Phase.LAUNCHING and unit.connected_at is None
    due = since is not None and now - since >= SILENT_S and now >= pool.read_at
    return starts and due and not pool.start_failure


async def output_of(pool: Pool, name: UnitName) -> str:
    """Return the last output of a unit, or an empty string if it cannot be read in time."""
    try:
        return await asyncio.wait_for(pool.launcher.logs(name), LOG_TIMEOUT_S)
    except (ProviderError, OSError) as error:  # TimeoutError is an OSError
        logger.debug("the output of worker %s cannot be read: %r", name, error)
        return ""


def explained(reason: str, output: str, tag: str, memory: str | int | None) -> str:
    """Return a readable reason for a loss, followed by the last lines of ``output``.
    ``memory`` is one worker's memory as a string or in bytes, or None if unknown.
    """
    # Dask's entries name its internals, suggest leaks, and link to pages about its settings.
    own = [line for line in without_dask(output).splitlines() if line.strip()]
    if _DASK_ON_MEMORY in output and "memory" not in reason:
        reason = f"{reason}, when its memory was nearly used up"
    if memory and "memory" in reason and "limit" not in reason:
        amount = as_written(memory) if isinstance(memory, int) else memory
        whose = f"memory of component {tag!r}" if tag else "memory of a worker without a tag"
        reason = f"{reason} ({whose}: {amount})"
    tail = own[-SHOWN_LINES:]
    if not tail:
        return reason
    last = tail[-1].strip()
    cause = f": {last}" if _REASON.match(last) else f", after it had printed {last!r}"
    return f"{reason}{cause}{OUTPUT}\n  " + "\n  ".join(tail)


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


def drain(
    inventory: Inventory, decision: NextSteps
) -> tuple[dict[str, str], dict[str, tuple[float, float]]]:
    """Mark the units to drain now. Return the reasons for the user by name of worker, and the
    remaining and total walltimes in seconds, as far as they are known.
    """
    reasons: dict[str, str] = {}
    walltimes: dict[str, tuple[float, float]] = {}
    for name, left_s in decision.drain.items():
        unit = inventory.units[name]
        unit.phase = Phase.DRAINING
        walltime_s, reason = inventory.pools[unit.pool].walltime_s, unit.leaving
        if left_s is not None and reason == WALLTIME:
            reason = f"its walltime ends in {format_duration(left_s)}"
        if left_s is not None and walltime_s is not None:
            walltimes |= dict.fromkeys(unit.worker_names, (left_s, walltime_s))
        reasons |= dict.fromkeys(unit.worker_names, reason)
    return reasons, walltimes


def renew(inventory: Inventory, decision: NextSteps) -> None:
    """Request successors for leaving units. Units that must leave are no longer desired."""
    for name in decision.leave | dict.fromkeys(decision.renew):
        unit = inventory.units.get(name)
        if unit is None:  # it is lost too
            continue
        pool, reason = inventory.pools[unit.pool], decision.leave.get(name)
        inventory.renew(unit)
        if name in decision.taken_back:
            logger.warning("worker %s is replaced: %s", name, reason)
            pool.lost += 1
            pool.last_loss = f"{name}: {reason}"
        if reason is not None:
            unit.leaving = reason
            inventory.remove(name)


# Stops --------------------------------------------------------------------------------------------

#: First and longest pause in seconds before a stop is repeated on a backend that did not answer.
#: Each pause is twice the one before.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
#: Seconds after which stops are no longer repeated on a backend that does not answer.
GIVE_UP_S = 3600.0


class Stops:
    """Background requests to stop units, repeated until answered."""

    def __init__(self, on_stopped: Callable[[Sequence[UnitName]], None]) -> None:
        self._on_stopped = on_stopped
        self._tasks: set[asyncio.Task[None]] = set()
        self._finishing = asyncio.Event()

    def begin(self, pool: Pool, names: Sequence[UnitName]) -> None:
        """Stop units of a pool in the background. Needs a running event loop."""
        task = asyncio.ensure_future(self._stop(pool, names))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop(self, pool: Pool, names: Sequence[UnitName]) -> None:
        deadline, pause_s = time.monotonic() + GIVE_UP_S, FIRST_PAUSE_S
        try:
            while not await self._is_stopped(pool, names):
                if self._finishing.is_set() or time.monotonic() > deadline:
                    logger.error("%s: units %s may still run", shown(pool.tag), list(names))
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._finishing.wait()
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            self._on_stopped(names)

    async def _is_stopped(self, pool: Pool, names: Sequence[UnitName]) -> bool:
        """Stop units. Return False if this failed but another attempt may succeed."""
        try:
            await pool.launcher.stop(list(names))
        except ProviderError as error:
            logger.warning("units %s could not be stopped: %s", list(names), error)
            return not error.transient
        logger.debug("pool %r: units %s are stopped", pool.tag, names)
        return True

    async def finish(self) -> None:
        """Wait until all requests have made their last attempt, and log unexpected errors."""
        self._finishing.set()
        while self._tasks:
            done = await asyncio.gather(*self._tasks, return_exceptions=True)
            for error in filter(None, done):
                logger.error("a request to stop units failed", exc_info=error)
