"""Order in which the waiting calls of a scheduler run: those with long remaining paths first.

A graph gets its order when it arrives. The order changes when calls arrive that wait for earlier
ones, when lengths become known, and when results fill the memory of the workers. How often depends
on the time that this takes, and the event loop is given way in between.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import Container, Mapping
from operator import attrgetter
from typing import Any

import psutil
from distributed import Scheduler
from distributed.scheduler import TaskState

from scalable.protocol.dask_seams.connected_workers import told_at_start
from scalable.protocol.dask_seams.priorities import (
    change_priorities,
    memory_of_workers,
    waits_on_worker,
)
from scalable.protocol.dask_seams.scheduler import send_to_worker
from scalable.protocol.operations import PRIORITIES
from scalable.scaling.order import Length, longest_paths, rank
from scalable.scaling.precedence import Precedence, ranks_count, shared_epochs
from scalable.scheduler.learned_lengths import LearnedLengths
from scalable.scheduler.ledger import ENDED, Call, EndedCall, Listener
from scalable.scheduler.pace import Pace
from scalable.spec.ordering import CRITICAL_PATH, Order

logger = logging.getLogger("scalable.scheduler")

#: Two lower limits of the time between changes of the order: seconds, and a multiple of the time
#: that the last change took.
SOON_S, CHANGE_SHARE = 0.1, 50.0
#: Seconds between looks at the memory of the workers.
LOOK_S = 1.0
#: Number of unfinished calls from which on their paths are computed beside the event loop.
MANY_CALLS = 1000
#: Maximum number of calls in one message to a worker.
CALLS_PER_MESSAGE = 1000

#: Keys of the calls that each call waits for.
_Waits = dict[Any, list[Any]]
#: Values of a :class:`Precedence`. A plain tuple costs less: Python's garbage collector does not
#: visit it again and again.
_Values = tuple[float, ...]
_Moves = list[tuple[TaskState, _Values]]
#: Number of values of Dask's own sort keys.
_DASKS = 3

_sort_key = attrgetter("task.priority")


class CallOrder(Listener):
    """Orders the calls of a scheduler by their longest remaining paths, with learned lengths.

    Parameters
    ----------
    scheduler
        Scheduler of the calls.

    Attributes
    ----------
    rule
        ``critical-path``, or ``submitted`` for Dask's own order.
    lengths
        Lengths of the tasks, learned from the calls that end.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.rule: Order = CRITICAL_PATH
        self.lengths = LearnedLengths()
        self._scheduler = scheduler
        self._unfinished: dict[Any, Call] = {}
        self._graphs = 0
        self._ranks_count = True
        self._timer: Any = None
        self._looking: Any = None
        self._changing: asyncio.Task[None] | None = None
        self._not_before = 0.0

    # Events of the ledger -------------------------------------------------------------------------

    def submitted(self, calls: list[Call]) -> None:
        """Order the calls of a new graph, before any of them gets a worker."""
        if self.rule != CRITICAL_PATH:
            return
        self._graphs += 1
        new = []
        for call in calls:
            task = call.task
            if task.priority is None:
                continue
            if task.state == "released":
                new.append(call)
            elif task.state not in ENDED:  # its place changes with those of all calls, if it does
                self._unfinished[call.key] = call
        if len(new) == 1:
            self._order_call(new[0])
        elif new:
            self._order_graph(new)

    def _order_call(self, call: Call) -> None:
        """Order a call that was submitted alone."""
        self._set_priority(call, self.lengths.of(call).seconds, (call.key,))

    def _order_graph(self, calls: list[Call]) -> None:
        """Order the calls of a graph."""
        # Almost always the static order of Dask, in which calls come after those they wait for.
        calls.sort(key=_sort_key)
        lengths = {call.key: self.lengths.of(call).seconds for call in calls}
        known = self._scheduler.tasks

        # Lists that are kept for all calls would have Python collect garbage sooner.
        def waits(key: Any) -> list[Any]:
            return [other.key for other in known[key].dependencies]

        paths = longest_paths(lengths, waits)
        for call in calls:
            self._set_priority(call, paths[call.key], lengths)

    def _set_priority(self, call: Call, path_s: float, inner: Container[Any]) -> None:
        """Give a call that was submitted its place.

        Parameters
        ----------
        call, path_s
            The call, and its longest remaining path in seconds.
        inner
            Keys of the calls of the graph.
        """
        task = call.task
        known: Any = task.priority
        placed = self._rank(call, path_s)
        epoch = self._epoch(call, path_s, inner) if task.dependencies else known[1]
        if len(known) == _DASKS:
            task.priority = (known[0], epoch, placed, self._graphs, known[2])
        else:  # calls of other graphs may wait for this call, too
            user, before, rank_before, graph, order = known
            task.priority = (user, min(epoch, before), min(placed, rank_before), graph, order)

    def _epoch(self, call: Call, path_s: float, inner: Container[Any]) -> float:
        """Return the smallest epoch of a call and of the unfinished calls that it waits for.

        The order changes soon if this call gives one of those a longer path or a smaller epoch.
        """
        assert call.task.priority is not None
        epoch = call.task.priority[1]
        for other in call.task.dependencies:
            if other.key in inner or not other.priority or other.state in ENDED:
                continue
            if epoch >= 0:
                epoch = min(epoch, max(0, other.priority[1]))
            if self._timer is None and self._moves(other, epoch, path_s):
                self._change_soon()
        return epoch

    def _moves(self, other: TaskState, epoch: float, path_s: float) -> bool:
        """Return whether a call gets another place by a call that waits for it."""
        before, placed = self._unfinished.get(other.key), _placed(other.priority)
        if before is None or placed is None:
            return False
        # One more call that waits for it is no reason to order all calls anew.
        path = math.ceil(self._rank(before, self.lengths.of(before).seconds + path_s))
        return path < math.ceil(placed.rank) or 0 <= epoch < placed.epoch

    def waiting(self, call: Call) -> None:
        """Count a call as unfinished."""
        if self.rule == CRITICAL_PATH:
            self._unfinished[call.key] = call
            if self._looking is None:
                self._looking = self._scheduler.loop.call_later(LOOK_S, self._look)

    def ended(self, end: EndedCall) -> None:
        """Learn from a call that succeeded; the order changes soon if a length has changed."""
        if self._unfinished.pop(end.call.key, None) is None or not end.succeeded:
            return
        if self.lengths.learn(end):
            self.lengths.read()
            if self._unfinished:
                self._change_soon()

    def left(self, call: Call) -> None:
        """Stop counting a call as unfinished."""
        self._unfinished.pop(call.key, None)

    def forgotten(self, call: Call) -> None:
        """Stop counting a call as unfinished."""
        self._unfinished.pop(call.key, None)

    def restarted(self, scheduler: Scheduler) -> None:  # noqa: ARG002
        """Forget all calls; their lengths stay known."""
        self._unfinished.clear()

    def closed(self, scheduler: Scheduler) -> None:  # noqa: ARG002
        """Change the order no more."""
        for timer in (self._timer, self._looking):
            if timer is not None:
                self._scheduler.loop.remove_timeout(timer)
        if self._changing is not None:
            self._changing.cancel()

    def _rank(self, call: Call, path_s: float) -> float:
        """Return the place of a call by its longest remaining path; less is earlier."""
        if not self._ranks_count:
            return 0
        if call.bundle is not None:
            path_s *= call.bundle["calls"]
        return -rank(path_s, len(call.task.dependents))

    # Changes --------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Decide whether the ranks count, by the memory of the workers; look again later."""
        self._looking = None
        if not self._unfinished:
            return
        self._looking = self._scheduler.loop.call_later(LOOK_S, self._look)
        each = list(memory_of_workers(self._scheduler))
        memory = sum(limit for _, limit in each)
        if any(not limit for _, limit in each):  # workers without a limit are in one process
            memory += psutil.virtual_memory().total
        count = ranks_count(sum(stored for stored, _ in each), memory, counted=self._ranks_count)
        if count != self._ranks_count:
            logger.debug("calls run %s", "by their ranks" if count else "in Dask's static order")
            self._ranks_count = count
            self._change_soon()

    def _change_soon(self) -> None:
        """Order the unfinished calls anew, as soon as this may take time again."""
        if self._timer is None:
            wait_s = max(SOON_S, self._not_before - time.monotonic())
            self._timer = self._scheduler.loop.call_later(wait_s, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._changing is not None and not self._changing.done():
            self._change_soon()
        elif len(self._unfinished) > 1:
            self._changing = asyncio.ensure_future(self._change())

    async def _change(self) -> None:
        """Order the unfinished calls anew."""
        began = time.monotonic()
        await self._change_now(Pace())
        self._not_before = time.monotonic() + CHANGE_SHARE * (time.monotonic() - began)

    async def _change_now(self, pace: Pace) -> None:
        calls = list(self._unfinished.values())
        tasks: dict[Any, Length] = {}
        waits: _Waits = {}
        known: dict[Any, _Values] = {}
        for call in calls:
            if call.task.priority is not None:
                tasks[call.key] = self.lengths.of(call)
                waits[call.key] = [other.key for other in call.task.waiting_on or ()]
                known[call.key] = call.task.priority
            await pace.give_way()
        if len(set(tasks.values())) < 2 and not any(waits.values()):
            return  # whatever their length, equal calls keep their order
        lengths = {key: task.seconds for key, task in tasks.items()}
        if len(lengths) < MANY_CALLS:
            paths, epochs = _ordered(lengths, waits, known)
        else:
            paths, epochs = await asyncio.to_thread(_ordered, lengths, waits, known)
        moves: _Moves = []
        for call in calls:
            key, placed = call.key, _placed(call.task.priority)
            if placed is not None and key in epochs:
                epoch = min(placed.epoch, epochs[key])
                to = self._rank(call, paths[key])
                if to != placed.rank or epoch != placed.epoch:
                    moves.append((call.task, tuple(placed._replace(epoch=epoch, rank=to))))
            await pace.give_way()
        await self._move(moves, pace)

    async def _move(self, moves: _Moves, pace: Pace) -> None:
        """Give calls their new places, here and on the workers that have not begun them."""
        change_priorities(self._scheduler, moves)
        workers: dict[str, list[tuple[Any, _Values]]] = defaultdict(list)
        for task, priority in moves:
            address = waits_on_worker(task)
            if address is not None:
                workers[address].append((task.key, priority))
            await pace.give_way()
        for address, changed in workers.items():
            worker = self._scheduler.workers.get(address)
            if worker is None or told_at_start(worker, PRIORITIES) is None:
                continue  # it has left, or it is Dask's own
            for first in range(0, len(changed), CALLS_PER_MESSAGE):
                told = changed[first : first + CALLS_PER_MESSAGE]
                message = {"op": PRIORITIES, "priorities": told}
                send_to_worker(self._scheduler, address, message)
                await pace.give_way()


def _placed(priority: _Values | None) -> Precedence | None:
    """Return the place of a call; None for a call with Dask's own sort key."""
    if priority is None or len(priority) != len(Precedence._fields):
        return None
    return Precedence._make(priority)


def _ordered(
    lengths: Mapping[Any, float], waits: _Waits, known: Mapping[Any, _Values]
) -> tuple[Mapping[Any, float], dict[Any, float]]:
    """Return the longest remaining path of each call in seconds, and its epoch."""
    # Calls mostly wait for calls of their graph, or of graphs before it.
    places = sorted(lengths, key=lambda key: known[key][-2:])
    paths = longest_paths({key: lengths[key] for key in places}, waits.__getitem__)
    return paths, shared_epochs({key: known[key][1] for key in known}, waits)
