"""Overviews of a client's cluster, and the display of clients in notebooks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from distributed import Client, Future
from distributed.utils import in_async_call

from scalable.client.bundle_client import BundleClient
from scalable.client.displayed_cluster import ANSWER_S, NOW_S
from scalable.client.futures import CallFuture, ended_facts, waiting_facts
from scalable.client.routing import ONE_SLOT, ROUTING, Routing, slots_given
from scalable.dask_compat.scheduler_extensions import shuffle_mender
from scalable.errors import ClusterError
from scalable.model.overview import Overview
from scalable.protocol.handlers import Handler, SchedulerCalls
from scalable.protocol.operations import CONTROLLER
from scalable.views.explanation import Explanation, Explanations
from scalable.views.facts import CallFacts
from scalable.views.notebooks import render_overview
from scalable.views.task_reasons import explain_call

# Collections --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Route:
    """Tag, task and Dask annotations of the graphs sent in a context."""

    tag: str | None = None
    task: str | None = None
    annotations: Mapping[str, Any] = field(default_factory=dict)


_route: ContextVar[_Route] = ContextVar("_route", default=_Route())  # noqa: B039 - it is frozen


class CollectionClient(BundleClient):
    """A client whose ``compute``, ``persist`` and ``get`` take ``tag=``, ``slots=`` and ``task=``.

    ``dask.annotate`` accepts the same keywords, for graphs sent and graph layers created in
    its block.

    Parameters
    ----------
    routing
        The known tags, and the keywords that send tasks to them.
    *args, **kwargs
        As in ``distributed.Client``.
    """

    def __init__(self, routing: Routing, *args: Any, **kwargs: Any) -> None:
        self._routing = routing
        #: True if shuffles are known to stay within pools, None before the scheduler was queried.
        self._shuffles_stay: bool | None = None
        super().__init__(*args, **kwargs)

    def compute(
        self,
        collections: Any,
        *args: Any,
        tag: str | None = None,
        slots: int = ONE_SLOT,
        n: int = ONE_SLOT,
        task: str | None = None,
        resources: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Compute collections on the workers of a pool, and return futures of the results.

        Parameters
        ----------
        collections
            A collection, or a list of collections.
        tag, slots, n, task
            As in :meth:`ScalableClient.submit`, for each task of the graphs.
        resources, *args, **options
            Other arguments of ``distributed.Client.compute``.

        Raises
        ------
        ClusterError
            When no pool has the tag, or no worker of the pool has enough slots.
        """
        with self._routed(tag, slots_given(slots, n), task, resources):
            return super().compute(collections, *args, **options)

    def persist(
        self,
        collections: Any,
        *args: Any,
        tag: str | None = None,
        slots: int = ONE_SLOT,
        n: int = ONE_SLOT,
        task: str | None = None,
        resources: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Compute collections on the workers of a pool, and return collections of the results.

        Parameters
        ----------
        collections, tag, slots, n, task, resources, *args, **options
            As in :meth:`compute`.

        Raises
        ------
        ClusterError
            As in :meth:`compute`.
        """
        with self._routed(tag, slots_given(slots, n), task, resources):
            return super().persist(collections, *args, **options)

    @contextmanager
    def _routed(
        self, tag: str | None, n: int, task: str | None, resources: dict[str, Any] | None
    ) -> Iterator[None]:
        """Annotate the graphs that are sent in the block, so that they run in the tag's pool."""
        tag, n, task = self._routing.asked(tag, n, task)
        if tag is None and task is None and n is ONE_SLOT and resources is None:
            yield  # an enclosing block may have set a route
            return
        annotations = self._routing.annotations(tag, resources, n, task)
        token = _route.set(_Route(tag, task, annotations))
        try:
            yield
        finally:
            _route.reset(token)

    # Graphs -------------------------------------------------------------------------------------

    def _graph_annotations(self) -> Mapping[str, Any]:
        """Return the annotations of the graph that is about to be sent."""
        return _route.get().annotations

    def _layer_annotations(self, annotations: dict[str, Any]) -> dict[str, Any]:
        """Return a layer's annotations, routed by its own tag or by the graph's tag."""
        asked = {name: annotations[name] for name in ROUTING if annotations.get(name) is not None}
        resources = annotations.get("resources")
        if callable(resources) or not (asked or resources):
            return annotations
        n = slots_given(asked.get("slots", ONE_SLOT), asked.get("n", ONE_SLOT))
        whole = _route.get()
        tag, task = asked.get("tag"), asked.get("task")
        if tag is None and task is None:
            # Dask would let the layer's resources replace those of the graph.
            resources = {**whole.annotations.get("resources", {}), **(resources or {})}
            if n is ONE_SLOT:
                return {**annotations, "resources": resources}
            tag, task = whole.tag, whole.task
        routed = self._routing.annotations(tag, resources, n, task)
        return {**annotations, **routed}

    def _before_tagged_graph(self) -> None:
        """Keep shuffles within pools on a scheduler that was not started by scalable."""
        if self._shuffles_stay is not None or self.asynchronous:
            return
        self._shuffles_stay = bool(self._ask("get_metadata", keys=[CONTROLLER], default=False))
        if self._shuffles_stay:
            return
        logger.debug("requesting the scheduler to keep shuffles within pools")
        try:
            self.run_on_scheduler(shuffle_mender())
        except (ImportError, AttributeError, ValueError) as error:
            raise ClusterError(
                f"the scheduler cannot keep the shuffles of collections within a pool: {error}",
                hint="compute without a tag, or on a scheduler that scalable started",
            ) from error


# Explaining ---------------------------------------------------------------------------------------


class ExplainingClient(CollectionClient):
    """A client with the method :meth:`explain`."""

    def explain(self, about: Any = None) -> Any:
        """Return why a task or a pool waits, or why a task has failed.

        Parameters
        ----------
        about
            Future of a task (including those of executors), tag of a pool, key of a task or its
            prefix, or name of a task. None for all pools and all waiting tasks.

        Returns
        -------
        Explanation or Explanations
            ``sentence``, ``advice`` and ``details`` about one task, or the explanations of pools
            and of the waiting tasks, grouped by reason. ``print`` shows both. An asynchronous
            client returns an awaitable object.

        Raises
        ------
        ClusterError
            When the scheduler was not started by scalable.
        """
        if isinstance(about, CallFuture):
            return self._explain_executors(about)
        if self.asynchronous:
            return self._fetch_explanation(about)
        return self.sync(self._fetch_explanation, about)

    async def _fetch_explanation(self, about: Any) -> Explanation | Explanations:
        if isinstance(about, Future):
            if about.cancelled():
                key = str(about.key)
                return explain_call(CallFacts(key, key, "", "cancelled"))
            return (await self._asked(key=about.key)).calls[0]
        found = await self._asked(name=about)
        return found if found.pools or not found.calls else found.calls[0]

    async def _asked(self, **named: Any) -> Explanations:
        assert self.scheduler is not None
        if not await self.scheduler.get_metadata(keys=[CONTROLLER], default=False):
            raise ClusterError("the scheduler of this cluster cannot explain tasks")
        return Explanations.from_dict(await getattr(self.scheduler, Handler.EXPLAIN)(**named))

    def _explain_executors(self, future: CallFuture) -> Explanation:
        """Explain an executor's task from the facts of the scheduler and of this client."""
        if future.done():
            return explain_call(ended_facts(future))
        place = self._line.wait_for(self._line.find, future)
        if future.call is None and place is None and not future.done():
            raise ClusterError("this future stands for several tasks", hint="explain the pool")
        if place is not None and place.bundle is not None:
            return self._first(key=place.bundle)
        facts = waiting_facts(future, place)
        if facts.state != "backlog":
            return explain_call(facts)
        told = {"key": facts.key, "tag": facts.tag, "before": facts.before}
        return self._first(in_client=told)

    def _first(self, **named: Any) -> Explanation:
        found: Explanations = self.sync(self._asked, **named)
        return found.calls[0]


# Overviews ----------------------------------------------------------------------------------------

logger = logging.getLogger("scalable.client")


class ShownClient(ExplainingClient):
    """A client whose notebook display shows its cluster's pools and tasks."""

    def _repr_html_(self) -> str:
        overview = overview_of(self)
        facts: list[tuple[str, Any]] = []
        if self.scheduler is not None:
            facts.append(("Scheduler", self.scheduler.address))
        name = "" if overview is None else str(overview.cluster.get("name") or "")
        return render_overview(type(self).__name__, name, self.status, overview, facts=facts)


def overview_of(client: Client) -> Overview | None:
    """Return the current overview of a client's cluster, or None if none is available."""
    if client.status != "running" or client.asynchronous or in_async_call(client.loop):
        return None
    try:
        found: Overview | None = client.sync(_ask, client, callback_timeout=ANSWER_S)
    except (OSError, TimeoutError) as error:
        logger.debug("could not get an overview: %s", error)
        return None
    return found


async def _ask(client: Client) -> Overview | None:
    scheduler = client.scheduler
    if scheduler is None or not await scheduler.get_metadata(keys=[CONTROLLER], default=False):
        return None
    answer = await SchedulerCalls(scheduler).overview(fresh_s=NOW_S)
    return Overview.from_dict(answer["overview"])
