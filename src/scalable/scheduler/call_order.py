"""Order in which the waiting calls of a scheduler run: those with long remaining paths first.

A graph gets its order when it arrives. The order changes when calls arrive that wait for earlier
ones, when lengths become known, and when results fill the memory of the workers. How often depends
on the time that this takes, and the event loop is given way in between.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
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
from scalable.scaling.order import CHANGED, SAMPLES, Rank, ranks
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

_Graph = dict[Any, tuple[Kind, list[Any]]]
_Moves = list[tuple[TaskState, Precedence]]


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
        self._unfinished: dict[Any, tuple[Call, Kind]] = {}
        self._lengths = KeptLengths(self.model)
        self._kinds: dict[tuple[str, str], Kind] = {}
        self._graphs = 0
        self._paths_count = True
        # Numbers of calls that have ended, and of samples.
        self._ended: Counter[Kind] = Counter()
        self._samples: Counter[Kind] = Counter()
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
        self._lengths = KeptLengths(self.model)

    # Events of the ledger -------------------------------------------------------------------------

    def submitted(self, calls: list[Call]) -> None:
        """Order the calls of a new graph, before any of them gets a worker."""
        if self.rule != CRITICAL_PATH:
            return
        self._graphs += 1
        graph: _Graph = {}
        new = []
        for call in calls:
            task = call.task
            if task.priority is not None and task.state not in ENDED:
                self._unfinished[call.key] = call, (kind := self._kind(call))
                graph[call.key] = kind, [other.key for other in task.dependencies]
                new.append((call, kind))
        found = self._ranks(graph)
        for call, kind in new:
            task, key = call.task, call.key
            known: Any = task.priority
            epoch = known[1]
            if any(other not in graph for other in graph[key][1]):
                epoch = self._oldest(task, graph)
            rank = found[key]
            if rank.sample:
                rank = self._sampled(kind, rank)
            path = self._path(call, rank)
            if isinstance(known, Precedence):
                # Calls of other graphs may wait for this call, too.
                task.priority = known._replace(
                    epoch=min(epoch, known.epoch), path=min(path, known.path)
                )
            else:
                task.priority = Precedence(known[0], epoch, path, self._graphs, known[2])

    def _ranks(self, graph: _Graph) -> Mapping[Any, Rank]:
        if len(graph) == 1:
            ((key, (kind, _)),) = graph.items()
            return {key: Rank(not self._lengths.knows(kind), self._lengths.mean_s(kind))}
        return ranks(graph, self._lengths)

    def _oldest(self, task: TaskState, graph: Container[Any]) -> float:
        """Return the smallest epoch of a call and of the unfinished calls that it waits for."""
        assert task.priority is not None
        epoch = task.priority[1]
        for other in task.dependencies:
            if other.state in ENDED or other.priority is None or other.key in graph:
                continue
            self._change_soon()  # the other call has a longer path than before
            if epoch >= 0:
                epoch = min(epoch, max(0, other.priority[1]))
        return epoch

    def waiting(self, call: Call) -> None:
        """Count a call as unfinished."""
        if self.rule == CRITICAL_PATH:
            if call.key not in self._unfinished:
                self._unfinished[call.key] = call, self._kind(call)
            if self._looking is None:
                self._looking = self._scheduler.loop.call_later(LOOK_S, self._look)

    def ended(self, end: EndedCall) -> None:
        """Learn from a call that succeeded; the order changes soon if a length has changed."""
        counted = self._unfinished.pop(end.call.key, None)
        if counted is not None and end.succeeded and end.ran:
            self._learn(counted[1], end)

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

    def _kind(self, call: Call) -> Kind:
        named = call.slots[0][0], call.name
        kind = self._kinds.get(named)
        if kind is None:
            kind = self._kinds[named] = Kind(*named)
        return kind

    def _sampled(self, kind: Kind, rank: Rank) -> Rank:
        """Return the rank of a sample; a kind has few samples, in how many graphs it may arrive."""
        self._samples[kind] += 1
        return rank._replace(sample=self._samples[kind] <= SAMPLES)

    def _path(self, call: Call, rank: Rank) -> int:
        """Return the place of a call by its path."""
        if not self._paths_count:
            return 0
        if rank.sample:
            return FIRST
        calls = 1 if call.bundle is None else call.bundle["calls"]
        return -path_class(rank.path_s * calls)

    def _learn(self, kind: Kind, end: EndedCall) -> None:
        self._ended[kind] = count = self._ended[kind] + 1
        if count > ALL_LEARNED and count % LEARNED_SHARE:
            return
        began, ended, _, _, memory, bundle, *_ = end.measured
        if bundle is not None:
            for duration in bundle["quantiles_s"][1:-1]:
                self.model.observe(Sample(kind, duration, memory))
        elif began is not None and ended is not None:
            self.model.observe(Sample(kind, ended - began, memory))
        if not count & (count - 1) and self._has_changed(kind):
            self._lengths = KeptLengths(self.model)
            if self._unfinished:
                self._change_soon()

    def _has_changed(self, kind: Kind) -> bool:
        used, mean = self._lengths.means.get(kind), self.model.mean_s(kind)
        return used is None or abs(mean - used) > CHANGED * used

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
        began, pace = time.monotonic(), Pace()
        calls = list(self._unfinished.values())
        graph: _Graph = {}
        epochs: dict[Any, float] = {}
        for call, kind in calls:
            task = call.task
            if task.priority is not None:
                graph[call.key] = kind, [other.key for other in task.waiting_on or ()]
                epochs[call.key] = task.priority[1]
            await pace.give_way()
        kinds = {kind for kind, _ in graph.values()}
        if len(kinds) < 2 and not any(others for _, others in graph.values()):
            return  # whatever their length, equal calls keep their order
        lengths = KeptLengths(self.model, kinds)
        if len(graph) < MANY_CALLS:
            found, epochs = _ordered(graph, epochs, lengths)
        else:
            found, epochs = await asyncio.to_thread(_ordered, graph, epochs, lengths)
        moves: _Moves = []
        for call, _ in calls:
            key, known = call.key, call.task.priority
            if key in graph and isinstance(known, Precedence):
                epoch, path = min(known.epoch, epochs[key]), self._path(call, found[key])
                if (epoch, path) != known[1:3]:
                    moves.append((call.task, known._replace(epoch=epoch, path=path)))
            await pace.give_way()
        await self._move(moves, pace)
        self._not_before = time.monotonic() + CHANGE_SHARE * (time.monotonic() - began)

    async def _move(self, moves: _Moves, pace: Pace) -> None:
        """Give calls their new places, here and on the workers that have not begun them."""
        change_priorities(self._scheduler, moves)
        workers: dict[str, list[tuple[Any, Precedence]]] = defaultdict(list)
        for task, precedence in moves:
            address = waits_on_worker(task)
            if address is not None:
                workers[address].append((task.key, precedence))
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


class KeptLengths(TaskModel):
    """Running times of kinds as they were when each was first asked for.

    Parameters
    ----------
    model
        Model of the running times.
    kinds
        Kinds to ask for at once: then another thread can read the times.

    Attributes
    ----------
    means
        Kind -> mean running time in seconds.
    """

    def __init__(self, model: TaskModel, kinds: Iterable[Kind] = ()) -> None:
        super().__init__()
        self.means: dict[Kind, float] = {}
        self._model = model
        self._known: dict[Kind, bool] = {}
        for kind in kinds:
            self.mean_s(kind), self.knows(kind)

    def mean_s(self, kind: Kind, running: Sequence[float] = ()) -> float:  # noqa: ARG002
        """Return the mean running time of a kind in seconds."""
        mean = self.means.get(kind)
        if mean is None:
            mean = self.means[kind] = self._model.mean_s(kind)
        return mean

    def knows(self, kind: Kind) -> bool:
        """Return whether the running time of a kind is known."""
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = self._model.knows(kind)
        return known


def _ordered(
    graph: _Graph, epochs: Mapping[Any, float], model: TaskModel
) -> tuple[dict[Any, Rank], dict[Any, float]]:
    """Return the rank of each call, and its epoch."""
    waits = {key: others for key, (_, others) in graph.items()}
    return ranks(graph, model), shared_epochs(epochs, waits)
