"""Order in which the waiting calls of a scheduler run: those with long remaining paths first.

A graph gets its order when it arrives. The order changes when calls arrive that wait for earlier
ones, when lengths become known, and when results fill the memory of the workers. How often depends
on the time that this takes, and the event loop is given way in between.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import psutil
from distributed import Scheduler
from distributed.scheduler import TaskState

from scalable.protocol.dask_seams.priorities import (
    change_priorities,
    memory_of_workers,
    waits_on_worker,
)
from scalable.protocol.dask_seams.scheduler import send_to_worker, told_at_start
from scalable.protocol.operations import PRIORITIES
from scalable.scaling.order import CHANGED, SAMPLES, first_calls, longest_paths
from scalable.scaling.precedence import (
    FIRST,
    Precedence,
    path_class,
    paths_count,
    shared_epochs,
)
from scalable.scaling.task_model import Expectation, Kind, Sample, TaskModel
from scalable.scheduler.ledger import ENDED, Call, EndedCall, Listener
from scalable.scheduler.pace import Pace
from scalable.spec.ordering import CRITICAL_PATH, Order

logger = logging.getLogger("scalable.scheduler")

#: Two lower limits of the time between changes of the order: seconds, and a multiple of the time
#: that the last change took.
SOON_S, CHANGE_SHARE = 0.1, 50.0
#: Seconds between looks at the memory of the workers.
LOOK_S = 1.0
#: Number of ended calls of each kind that are all learned from; of the later ones, which change a
#: mean little, one in so many.
ALL_LEARNED, LEARNED_SHARE = 64, 8
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


class _Task:
    """A task whose calls are ordered, with the mean running time that the order uses."""

    __slots__ = ("ended", "is_known", "kind", "mean_s", "samples")

    def __init__(self, kind: Kind, model: TaskModel) -> None:
        self.kind = kind
        self.ended = 0
        self.samples = 0
        self.read(model)

    def read(self, model: TaskModel) -> None:
        """Take the mean running time of the model."""
        self.mean_s = model.mean_s(self.kind)
        self.is_known = model.knows(self.kind)

    def has_changed(self, model: TaskModel) -> bool:
        """Return whether the model's mean running time differs much from the one in use."""
        changed = abs(model.mean_s(self.kind) - self.mean_s) > CHANGED * self.mean_s
        return changed or self.is_known != model.knows(self.kind)


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
    model
        Task model that learns from the calls that end.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.rule: Order = CRITICAL_PATH
        self.model = TaskModel()
        self._scheduler = scheduler
        self._unfinished: dict[Any, Call] = {}
        # (tag, name) -> task.
        self._tasks: dict[tuple[str, str], _Task] = {}
        self._graphs = 0
        self._paths_count = True
        self._timer: Any = None
        self._looking: Any = None
        self._changing: asyncio.Task[None] | None = None
        self._not_before = 0.0

    def expect(self, expectations: Mapping[str, Sequence[Any]]) -> None:
        """Take expected lengths for calls of which none has ended.

        Parameters
        ----------
        expectations
            Task name -> (tag, expected seconds, expected bytes) of one call; None for an unknown
            amount.
        """
        self.model = TaskModel(
            {
                (tag, task): Expectation(duration_s, memory)
                for task, (tag, duration_s, memory) in expectations.items()
            }
        )
        self._read_model()

    # Events of the ledger -------------------------------------------------------------------------

    def submitted(self, calls: list[Call]) -> None:
        """Order the calls of a new graph, before any of them gets a worker."""
        if self.rule != CRITICAL_PATH:
            return
        self._graphs += 1
        new = []
        for call in calls:
            state = call.task.state
            if call.task.priority is None:
                continue
            if state == "released":
                new.append(call)
            elif state not in ENDED:  # its place changes with those of all calls, if it does
                self._unfinished[call.key] = call
        if len(new) == 1:
            self._order_call(new[0])
        elif new:
            self._order_graph(new)

    def _order_call(self, call: Call) -> None:
        """Order a call that was submitted alone."""
        task = self._task(call)
        sample = not task.is_known and task.samples < SAMPLES
        task.samples += sample
        self._set_priority(
            call, task.mean_s, sample, {call.key} if call.task.dependencies else None
        )

    def _order_graph(self, calls: list[Call]) -> None:
        """Order the calls of a graph."""
        calls.sort(key=_static_order)
        tasks = {call.key: self._task(call) for call in calls}
        known = self._scheduler.tasks

        # Lists that are kept for all calls would have Python collect garbage sooner.
        def waits(key: Any) -> list[Any]:
            return [other.key for other in known[key].dependencies]

        paths = longest_paths({key: task.mean_s for key, task in tasks.items()}, waits)
        samples = self._samples(tasks, waits)
        alone = all(other.key in tasks for call in calls for other in call.task.dependencies)
        inner = None if alone else tasks.keys()
        for call in calls:
            self._set_priority(call, paths[call.key], call.key in samples, inner)

    def _samples(
        self, tasks: Mapping[Any, _Task], waits: Callable[[Any], list[Any]]
    ) -> Container[Any]:
        """Return the calls that are samples; a task has few, in how many graphs it may arrive."""
        counts = {
            task.kind: SAMPLES - task.samples
            for task in set(tasks.values())
            if not task.is_known and task.samples < SAMPLES
        }
        if not counts:
            return ()
        found = first_calls({key: (task.kind, waits(key)) for key, task in tasks.items()}, counts)
        for key in found:
            tasks[key].samples += 1
        return found

    def _set_priority(
        self, call: Call, path_s: float, sample: bool, inner: Container[Any] | None
    ) -> None:
        """Give a call that was submitted its place.

        Parameters
        ----------
        call, path_s, sample
            The call, its longest remaining path in seconds, and whether it is a sample.
        inner
            Keys of the calls of the graph; None if they wait for no others.
        """
        known: Any = call.task.priority
        path = self._path(call, path_s, sample)
        epoch = known[1] if inner is None else self._epoch(call, path_s, inner)
        placed = _placed(known)
        if placed is None:
            call.task.priority = (known[0], epoch, path, self._graphs, known[2])
        else:  # calls of other graphs may wait for this call, too
            path, epoch = min(path, placed.path), min(epoch, placed.epoch)
            call.task.priority = tuple(placed._replace(epoch=epoch, path=path))

    def _epoch(self, call: Call, path_s: float, inner: Container[Any]) -> float:
        """Return the smallest epoch of a call and of the unfinished calls that it waits for.

        The order changes soon if this call gives one of those a longer path or a smaller epoch.
        """
        assert call.task.priority is not None
        epoch = call.task.priority[1]
        others = [
            other
            for other in call.task.dependencies
            if other.key not in inner and other.priority and other.state not in ENDED
        ]
        if epoch >= 0:
            epoch = min([epoch, *(max(0, other.priority[1]) for other in others if other.priority)])
        if self._timer is None and any(self._moves(other, epoch, path_s) for other in others):
            self._change_soon()
        return epoch

    def _moves(self, other: TaskState, epoch: float, path_s: float) -> bool:
        """Return whether a call gets another place by a call that waits for it."""
        before, placed = self._unfinished.get(other.key), _placed(other.priority)
        if before is None or placed is None:
            return False
        path = self._path(before, self._task(before).mean_s + path_s, sample=False)
        return path < placed.path or 0 <= epoch < placed.epoch

    def waiting(self, call: Call) -> None:
        """Count a call as unfinished."""
        if self.rule == CRITICAL_PATH:
            self._unfinished[call.key] = call
            if self._looking is None:
                self._looking = self._scheduler.loop.call_later(LOOK_S, self._look)

    def ended(self, end: EndedCall) -> None:
        """Learn from a call that succeeded; the order changes soon if a length has changed."""
        if self._unfinished.pop(end.call.key, None) is not None and end.succeeded:
            self._learn(self._task(end.call), end)

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

    def _task(self, call: Call) -> _Task:
        named = call.tag or "", call.name
        task = self._tasks.get(named)
        if task is None:
            task = self._tasks[named] = _Task(Kind(*named), self.model)
        return task

    def _path(self, call: Call, path_s: float, sample: bool) -> int:
        """Return the place of a call by its path."""
        if not self._paths_count:
            return 0
        if sample:
            return FIRST
        return -path_class(path_s if call.bundle is None else path_s * call.bundle["calls"])

    def _learn(self, task: _Task, end: EndedCall) -> None:
        count = task.ended + 1
        if count > ALL_LEARNED and count % LEARNED_SHARE:
            task.ended = count
            return
        if not end.ran:
            return
        task.ended = count
        began, ended, _, _, memory, bundle, *_ = end.measured
        if bundle is not None:
            for duration in bundle["quantiles_s"][1:-1]:
                self.model.observe(Sample(task.kind, duration, memory))
        elif began is not None and ended is not None:
            self.model.observe(Sample(task.kind, ended - began, memory))
        if not count & (count - 1) and task.has_changed(self.model):
            self._read_model()
            if self._unfinished:
                self._change_soon()

    def _read_model(self) -> None:
        """Take the mean running times of the model for the order from now on."""
        for task in self._tasks.values():
            task.read(self.model)

    # Changes --------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Decide whether the paths count, by the memory of the workers; look again later."""
        self._looking = None
        if not self._unfinished:
            return
        self._looking = self._scheduler.loop.call_later(LOOK_S, self._look)
        each = list(memory_of_workers(self._scheduler))
        memory = sum(limit for _, limit in each)
        if any(not limit for _, limit in each):  # workers without a limit are in one process
            memory += psutil.virtual_memory().total
        count = paths_count(sum(stored for stored, _ in each), memory, counted=self._paths_count)
        if count != self._paths_count:
            logger.debug("calls run %s", "by their paths" if count else "in Dask's static order")
            self._paths_count = count
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
        tasks: dict[Any, _Task] = {}
        waits: _Waits = {}
        known: dict[Any, _Values] = {}
        for call in calls:
            if call.task.priority is not None:
                tasks[call.key] = self._task(call)
                waits[call.key] = [other.key for other in call.task.waiting_on or ()]
                known[call.key] = call.task.priority
            await pace.give_way()
        used = set(tasks.values())
        if len(used) < 2 and not any(waits.values()):
            return  # whatever their length, equal calls keep their order
        lengths = {key: task.mean_s for key, task in tasks.items()}
        if len(lengths) < MANY_CALLS:
            paths, epochs = _ordered(lengths, waits, known)
        else:
            paths, epochs = await asyncio.to_thread(_ordered, lengths, waits, known)
        unknown = {task.kind: SAMPLES for task in used if not task.is_known}
        samples: Container[Any] = ()
        if unknown:
            samples = first_calls(
                {key: (task.kind, waits[key]) for key, task in tasks.items()}, unknown
            )
        moves: _Moves = []
        for call in calls:
            key, placed = call.key, _placed(call.task.priority)
            if placed is not None and key in epochs:
                epoch = min(placed.epoch, epochs[key])
                path = self._path(call, paths[key], key in samples)
                if path != placed.path or epoch != placed.epoch:
                    moves.append((call.task, tuple(placed._replace(epoch=epoch, path=path))))
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


def _static_order(call: Call) -> float:
    """Return the place of a call in Dask's static order of its graph."""
    assert call.task.priority is not None
    return call.task.priority[-1]


def _ordered(
    lengths: Mapping[Any, float], waits: _Waits, known: Mapping[Any, _Values]
) -> tuple[Mapping[Any, float], dict[Any, float]]:
    """Return the longest remaining path of each call in seconds, and its epoch."""
    # Calls mostly wait for calls of their graph, or of graphs before it.
    places = sorted(lengths, key=lambda key: known[key][-2:])
    paths = longest_paths({key: lengths[key] for key in places}, waits.__getitem__)
    return paths, shared_epochs({key: known[key][1] for key in known}, waits)
