"""Overviews of a client's cluster, and the display of clients in notebooks."""

from __future__ import annotations

import logging
from typing import Any

from distributed import Client
from distributed.utils import in_async_call

from scalable.client.explaining import ExplainingClient
from scalable.client.shown_cluster import ANSWER_S, NOW_S
from scalable.exports import PublicNames
from scalable.protocol.handlers import SchedulerCalls
from scalable.protocol.operations import CONTROLLER
from scalable.spec.overview import Overview

logger = logging.getLogger("scalable.client")


class ShownClient(PublicNames, ExplainingClient):
    """A client that notebooks show with the pools and the tasks of its cluster."""

    def _repr_html_(self) -> str:
        from scalable.markup.clusters import render_overview

        overview = overview_of(self)
        facts: list[tuple[str, Any]] = []
        if self.scheduler is not None:
            facts.append(("Scheduler", self.scheduler.address))
        name = "" if overview is None else str(overview.cluster.get("name") or "")
        return render_overview(type(self).__name__, name, self.status, overview, facts=facts)


def overview_of(client: Client) -> Overview | None:
    """Return the current overview of a client's cluster, or None if none is available.

    It is None for a client that is closed or asynchronous, for a scheduler that was not started by
    scalable, and for one that does not answer.
    """
    if client.status != "running" or client.asynchronous or in_async_call(client.loop):
        return None
    try:
        found: Overview | None = client.sync(_ask, client, callback_timeout=ANSWER_S)
    except (OSError, TimeoutError) as error:
        logger.debug("there is no overview: %s", error)
        return None
    return found


async def _ask(client: Client) -> Overview | None:
    scheduler = client.scheduler
    if scheduler is None or not await scheduler.get_metadata(keys=[CONTROLLER], default=False):
        return None
    answer = await SchedulerCalls(scheduler).overview(fresh_s=NOW_S)
    return Overview.from_dict(answer["overview"])
