"""Seams of what a scheduler keeps of finished work.

Dask keeps data on each past worker, client and burst of tasks, which accumulate in a cluster that
runs for weeks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dask.config
from distributed import Scheduler
from distributed.broker import Broker
from distributed.scheduler import TaskState
from distributed.spans import Span, SpansSchedulerExtension

from scalable.dask_compat.facts import Seams, declares, has, mentions

seams = Seams("scheduler that lives for long")

_SCHEDULER = "distributed.scheduler:Scheduler"
_BROKER = "distributed.broker:Broker"
_SPANS = "distributed.spans:SpansSchedulerExtension"
_STEALING = "distributed.stealing:WorkStealing"
#: Key of Dask's configuration: number of the latest computations that a scheduler keeps. As many
#: root spans, which correspond to them, are kept.
KEPT = "distributed.diagnostics.computations.max-history"


@seams.relies_on(
    mentions(f"{_SCHEDULER}.__init__", "_broker", "Broker"),
    mentions(f"{_SCHEDULER}.remove_worker", "_broker", "truncate"),
    mentions(f"{_SCHEDULER}.remove_client", "_broker", "truncate"),
    declares(f"{_BROKER}.truncate", "self", "topic"),
    mentions(f"{_BROKER}.__init__", "_topics"),
    mentions("distributed.broker:Topic.__init__", "subscribers"),
    optional=True,
)
class ForgettingBroker(Broker):
    """The events of a scheduler, without empty topics and subscribers that have left.

    Dask empties the topics of workers and clients that have left, but keeps the topics, and sends
    each event to all clients that have ever subscribed to it.
    """

    @classmethod
    def in_place_of(cls, broker: Broker) -> ForgettingBroker:
        """Return a broker with the topics of another one, which is not used any more."""
        made = cls.__new__(cls)
        vars(made).update(vars(broker))
        return made

    def truncate(self, topic: str | None = None) -> None:
        """Remove a topic's events (by default all), and the topic without subscribers."""
        super().truncate(topic)
        known = None if topic is None else self._topics.get(topic)
        if topic is not None and known is not None and not known.subscribers:
            del self._topics[topic]

    def forget_subscriber(self, client: str) -> None:
        for topic in self._topics.values():
            topic.subscribers.discard(client)


@seams.relies_on(
    declares(f"{_SPANS}.observe_tasks", "self", "tss", "code", "span_metadata"),
    declares(f"{_SPANS}.heartbeat", "self", "ws", "data"),
    mentions(f"{_SPANS}.__init__", "spans", "root_spans", "spans_search_by_name"),
    mentions(f"{_SPANS}._ensure_span", "spans_search_by_tag", "total_nthreads_history"),
    mentions("distributed.spans:Span.__init__", "_total_nthreads_offset"),
    has("distributed.spans:Span", "groups", "children", "traverse_spans", "traverse_groups"),
    mentions("distributed.scheduler:SchedulerState.__init__", "task_groups"),
    has("distributed.scheduler:TaskGroup", "name", "span_id"),
    optional=True,
)
class ForgettingSpans(SpansSchedulerExtension):
    """The spans of a scheduler, without old ones whose tasks are all forgotten.

    Dask starts a span whenever tasks arrive after all others have finished. It keeps all spans with
    their task groups, and all changes of the number of threads since the first span.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._kept = max(1, int(dask.config.get(KEPT)))
        self._look_at = 2 * self._kept

    def observe_tasks(self, tss: Iterable[Any], *args: Any, **kwargs: Any) -> dict[Any, Any]:
        if len(self.root_spans) >= self._look_at:
            self._forget()
            self._look_at = len(self.root_spans) + self._kept
        return super().observe_tasks(tss, *args, **kwargs)

    def heartbeat(self, ws: Any, data: dict[Any, float]) -> None:
        super().heartbeat(ws, {key: value for key, value in data.items() if key[1] in self.spans})

    def _forget(self) -> None:
        old = [span for span in self.root_spans[: -self._kept] if self._is_over(span)]
        gone = {span.id for root in old for span in root.traverse_spans()}
        for spans in (
            self.root_spans,
            *self.spans_search_by_name.values(),
            *self.spans_search_by_tag.values(),
        ):
            spans[:] = [span for span in spans if span.id not in gone]
        _drop_empty(self.spans_search_by_name)
        _drop_empty(self.spans_search_by_tag)
        for name in gone:
            del self.spans[name]
        first = min((span._total_nthreads_offset for span in self.spans.values()), default=0)  # noqa: SLF001
        del self.scheduler.total_nthreads_history[:first]
        for span in self.spans.values():
            span._total_nthreads_offset -= first  # noqa: SLF001

    def _is_over(self, root: Span) -> bool:
        groups = self.scheduler.task_groups
        return all(groups.get(group.name) is not group for group in root.traverse_groups())


def _drop_empty(lists: dict[Any, list[Span]]) -> None:
    for name in [name for name, spans in lists.items() if not spans]:
        del lists[name]


@seams.relies_on(
    mentions(f"{_STEALING}.__init__", "in_flight_occupancy", "in_flight_tasks"),
    mentions(f"{_STEALING}._combined_occupancy", "in_flight_occupancy"),
    mentions(f"{_SCHEDULER}.__init__", "extensions"),
    optional=True,
)
def forget_thefts(scheduler: Scheduler, worker: Any) -> None:
    """Remove a worker that has left from the counts of work stealing, where Dask keeps it."""
    stealing = scheduler.extensions.get("stealing")
    if stealing is not None:
        stealing.in_flight_occupancy.pop(worker, None)
        stealing.in_flight_tasks.pop(worker, None)


@seams.relies_on(
    mentions(f"{_STEALING}.__init__", "unknown_durations"),
    mentions(f"{_STEALING}.put_key_in_stealable", "unknown_durations", "prefix", "name"),
    mentions(f"{_SCHEDULER}.__init__", "extensions"),
    optional=True,
)
def forget_unknown_duration(scheduler: Scheduler, task: TaskState) -> None:
    """Remove a forgotten task from Dask's work stealing.

    Dask keeps the assigned tasks of a prefix until one succeeds: for a function that always fails,
    for ever and with their arguments.
    """
    stealing = scheduler.extensions.get("stealing")
    durations = {} if stealing is None else stealing.unknown_durations
    unknown = durations.get(task.prefix.name)
    if unknown is not None:
        unknown.discard(task)
        if not unknown:
            del durations[task.prefix.name]


class ForgettingScheduler(Scheduler):
    """A scheduler that drops past workers, clients and tasks, as far as Dask's version allows."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if seams.difference(ForgettingBroker.__name__) is None:
            self._broker = ForgettingBroker.in_place_of(self._broker)
        if "spans" in self.extensions and seams.difference(ForgettingSpans.__name__) is None:
            self.extensions["spans"] = ForgettingSpans(self)
        self._forgets_thefts = seams.difference(forget_thefts.__name__) is None

    def remove_client(self, client: str, *args: Any, **kwargs: Any) -> None:
        super().remove_client(client, *args, **kwargs)
        if isinstance(self._broker, ForgettingBroker):
            self._broker.forget_subscriber(client)

    async def remove_worker(self, address: str, *args: Any, **kwargs: Any) -> Any:
        worker = self.workers.get(address)
        answer = await super().remove_worker(address, *args, **kwargs)
        if worker is not None and self._forgets_thefts:
            forget_thefts(self, worker)
        return answer
