"""`CollectionClient`: a Dask client that runs Dask's collections on the workers of a pool.

A *tag* is the name of a pool. A collection is a Dask array, bag, dataframe or delayed object.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from scalable.client.bundle_client import BundleClient
from scalable.client.routing import ONE_SLOT, ROUTING, Routing
from scalable.errors import ClusterError
from scalable.protocol.dask_seams.shuffles import shuffle_mender
from scalable.protocol.operations import CONTROLLER

logger = logging.getLogger("scalable.client")


@dataclass(frozen=True)
class _Route:
    """Tag and task of the graphs that are sent in a context, and their annotations for Dask."""

    tag: str | None = None
    task: str | None = None
    annotations: Mapping[str, Any] = field(default_factory=dict)


_route: ContextVar[_Route] = ContextVar("_route", default=_Route())  # noqa: B039 - it is frozen


class CollectionClient(BundleClient):
    """A client whose ``compute``, ``persist`` and ``get`` take ``tag=``, ``n=`` and ``task=``.

    The same three, given to ``dask.annotate``, apply to the graphs that are sent within its block,
    and to the layers of graphs that are made within its block.

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
        tag, n, task
            As in :meth:`ScalableClient.submit`, for each task of the graphs.
        resources, *args, **options
            Other arguments of ``distributed.Client.compute``.

        Raises
        ------
        ClusterError
            When no pool has the tag, or no worker of the pool has ``n`` slots.
        """
        with self._routed(tag, n, task, resources):
            return super().compute(collections, *args, **options)

    def persist(
        self,
        collections: Any,
        *args: Any,
        tag: str | None = None,
        n: int = ONE_SLOT,
        task: str | None = None,
        resources: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Compute collections on the workers of a pool, and return collections of the results.

        Parameters
        ----------
        collections, tag, n, task, resources, *args, **options
            As in :meth:`compute`.

        Raises
        ------
        ClusterError
            As in :meth:`compute`.
        """
        with self._routed(tag, n, task, resources):
            return super().persist(collections, *args, **options)

    @contextmanager
    def _routed(
        self, tag: str | None, n: int, task: str | None, resources: dict[str, Any] | None
    ) -> Iterator[None]:
        """Annotate the graphs that are sent in the block, so that they run in the tag's pool."""
        tag, n, task = self._routing.asked(tag, n, task)
        if tag is None and task is None and n is ONE_SLOT and resources is None:
            yield  # an enclosing call may have set a route
            return
        annotations = self._routing.annotations(tag, resources, n, task)
        token = _route.set(_Route(tag, task, annotations))
        try:
            yield
        finally:
            _route.reset(token)

    # Graphs -------------------------------------------------------------------------------------

    def graph_annotations(self) -> Mapping[str, Any]:
        """Return the annotations of the graph that is about to be sent."""
        return _route.get().annotations

    def layer_annotations(self, annotations: dict[str, Any]) -> dict[str, Any]:
        """Return the annotations of a layer, routed by its own tag or by that of the graph."""
        asked = {name: annotations[name] for name in ROUTING if annotations.get(name) is not None}
        resources = annotations.get("resources")
        if callable(resources) or not (asked or resources):
            return annotations
        whole = _route.get()
        tag, task = asked.get("tag"), asked.get("task")
        if tag is None and task is None:
            # Dask would let the layer's resources replace those of the graph.
            resources = {**whole.annotations.get("resources", {}), **(resources or {})}
            if "n" not in asked:
                return {**annotations, "resources": resources}
            tag, task = whole.tag, whole.task
        routed = self._routing.annotations(tag, resources, asked.get("n", ONE_SLOT), task)
        return {**annotations, **routed}

    def before_tagged_graph(self) -> None:
        """Keep shuffles within pools on a scheduler that was not started by scalable."""
        if self._shuffles_stay is not None or self.asynchronous:
            return
        self._shuffles_stay = bool(self.ask("get_metadata", keys=[CONTROLLER], default=False))
        if self._shuffles_stay:
            return
        logger.debug("the scheduler is told to keep shuffles within pools")
        try:
            self.run_on_scheduler(shuffle_mender())
        except (ImportError, AttributeError, ValueError) as error:
            raise ClusterError(
                f"the scheduler cannot keep the shuffles of collections within a pool: {error}",
                hint="compute without a tag, or on a scheduler that scalable started",
            ) from error
