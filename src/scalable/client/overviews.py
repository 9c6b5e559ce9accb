"""Overviews of a cluster in notebooks, and explanations of its tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distributed import Client, Future
from distributed.utils import in_async_call
from tornado.ioloop import PeriodicCallback

from scalable.client.futures import CallFuture, ended_facts, unsent_facts
from scalable.errors import ClusterError
from scalable.model.overview import Overview
from scalable.protocol.handlers import Handler, request
from scalable.protocol.operations import CONTROLLER
from scalable.views.explanation import Explanation, Explanations, State, TaskFacts, explain_task
from scalable.views.notebooks import render_cluster

logger = logging.getLogger("scalable.client")

#: Seconds between two updates of a cluster in a notebook.
UPDATE_S = 1.0
#: Longest wait for the scheduler's answer, in seconds, before a cluster is shown without counts.
ANSWER_S = 5.0
#: Largest age in seconds of an overview that a user requests: it has to include all tasks that have
#: finished, even a moment ago.
NOW_S = 0.0
#: Most questions about a task, as the first may overtake its submission, and seconds between.
QUESTIONS, ASK_AGAIN_S = 40, 0.05
#: Name of the callback among those of the cluster object, which stop with it.
_CALLBACK = "scalable-notebook"


class DisplayedCluster:
    """Mixin that gives a cluster object an overview and a notebook display.

    It must precede Dask's ``Cluster`` among the bases of a class.
    """

    _last: Overview | None = None
    _widget_shown: Any = None
    # Of Dask's class
    name: Any
    loop: Any
    status: Any
    asynchronous: bool
    sync: Callable[..., Any]
    periodic_callbacks: dict[str, Any]

    if TYPE_CHECKING:

        @property
        def scheduler_address(self) -> str: ...

    async def _present(self) -> Overview | None:
        """Return the current overview, or None if the scheduler does not provide one."""
        raise NotImplementedError

    def overview(self) -> Any:
        """Return the current overview of the cluster: pools, tasks by name, predicted finish.

        Returns
        -------
        Overview or None
            None if the cluster is not running. An asynchronous cluster object returns an awaitable
            object.

        Raises
        ------
        TimeoutError
            When the scheduler does not answer within 5 s.
        """
        if self.asynchronous:
            return self._present()
        if self.status.name != "running":
            return None
        return self.sync(self._present, callback_timeout=ANSWER_S)

    # In notebooks -------------------------------------------------------------------------------

    def _repr_html_(self, cluster_status: Any = None) -> str:  # noqa: ARG002 - as in Dask
        if not self.asynchronous:  # otherwise waiting for a new overview is impossible
            try:
                self._last = self.overview()
            except (OSError, TimeoutError) as error:
                logger.debug("cluster %s is shown without counts: %s", self.name, error)
                self._last = None
        return self._rendered(self._last)

    def _rendered(self, overview: Overview | None) -> str:
        kind = type(self).__name__
        return render_cluster(
            kind, str(self.name), self.status.name, str(self.scheduler_address), overview
        )

    def _ipython_display_(self, **kwargs: Any) -> None:
        """Display the cluster. With ipywidgets, the display is kept up to date."""
        from IPython.display import display

        bundle: dict[str, Any] = {"text/plain": repr(self), "text/html": self._repr_html_()}
        if (widget := self._live_widget()) is not None:
            bundle = (widget._repr_mimebundle_(**kwargs) or {}) | bundle
        display(bundle, raw=True)

    def _live_widget(self) -> Any:
        """Return the widget that shows the cluster, or None if there is none to update."""
        if self._widget_shown is None and self.status.name == "running":
            try:
                from ipywidgets import HTML
            except ImportError:
                return None
            self._widget_shown = HTML(self._repr_html_())
            self.loop.add_callback(self._start_updates)
        return self._widget_shown

    def _start_updates(self) -> None:
        callback = PeriodicCallback(self._update, UPDATE_S * 1000)
        self.periodic_callbacks[_CALLBACK] = callback
        callback.start()

    async def _update(self) -> None:
        try:
            self._last = await self._present()
        except (OSError, TimeoutError) as error:
            logger.debug("cluster %s is shown without counts: %s", self.name, error)
            self._last = None
        self._show(self._last)

    def _show(self, overview: Overview | None) -> None:
        widget = self._widget_shown
        if widget is not None and widget.value != (html := self._rendered(overview)):
            widget.value = html

    def _end_updates(self) -> None:
        """Stop the updates of the widget, and show in it that the cluster object is closed."""
        callback = self.periodic_callbacks.pop(_CALLBACK, None)
        if callback is not None:
            callback.stop()
            self._show(None)


# Clients ------------------------------------------------------------------------------------------


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
    answer = await request(scheduler, Handler.OVERVIEW, fresh_s=NOW_S)
    return Overview.from_dict(answer["overview"])


# Explanations -------------------------------------------------------------------------------------


async def explanation_of(client: Client, about: Any) -> Explanation | Explanations:
    """Explain a Dask task, a pool, or all that waits (see :meth:`ScalableClient.explain`)."""
    if isinstance(about, Future):
        if about.cancelled():
            key = str(about.key)
            return explain_task(TaskFacts(key, key, "", "cancelled"))
        for _ in range(QUESTIONS):
            found = (await _asked(client, key=about.key)).tasks[0]
            if found.state != State.UNKNOWN or about.status != "pending":
                break
            await asyncio.sleep(ASK_AGAIN_S)
        return found
    answer = await _asked(client, name=about)
    return answer if answer.pools or not answer.tasks else answer.tasks[0]


async def _asked(client: Client, **named: Any) -> Explanations:
    scheduler: Any = client.scheduler
    if not await scheduler.get_metadata(keys=[CONTROLLER], default=False):
        raise ClusterError("the scheduler of this cluster cannot explain tasks")
    return Explanations.from_dict(await request(scheduler, Handler.EXPLAIN, **named))


def explain_executors(client: Client, future: CallFuture) -> Explanation:
    """Explain an executor's task from the facts of the scheduler and of this client."""
    if future.done():
        return explain_task(ended_facts(future))
    asked: dict[str, Any] = {"key": future.bundle}
    if future.bundle is None:
        facts = unsent_facts(future)
        if facts.state != "backlog":
            return explain_task(facts)
        asked = {"in_client": {"key": facts.key, "tag": facts.tag, "before": facts.before}}
    found: Explanations = client.sync(_asked, client, **asked)
    return found.tasks[0]
