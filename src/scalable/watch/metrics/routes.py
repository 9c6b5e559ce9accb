"""Page of metrics in Dask's HTTP server, which requires the cluster's token."""

from __future__ import annotations

import asyncio
from typing import Any

from scalable.dask_compat.scheduler_extensions import dask_metrics_handler
from scalable.model.overview import Overview
from scalable.protocol.handlers import Handler

#: Maximum number of Dask's task prefixes for which its own metrics are written. They have more than
#: a dozen values for each prefix, which would block the scheduler and fill Prometheus.
MOST_PREFIXES = 100
_LEFT_OUT = (
    "# Dask's own metrics are left out: this scheduler has {} task prefixes, but they are "
    "written for {} at most\n"
)
_MISSING = "# There are no metrics: prometheus-client is missing on the scheduler's machine "
_MISSING += "(pip install prometheus-client)\n"


class Metrics(dask_metrics_handler()):  # type: ignore[misc]
    """Dask's metrics of the scheduler and its process, and the metrics of the overview."""

    async def get(self) -> None:
        self.set_header("Cache-Control", "no-store")
        try:
            from scalable.watch.metrics.exported import exposition
        except ModuleNotFoundError:
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.write(_MISSING)
            return
        prefixes = len(self.server.task_prefixes)
        if prefixes <= MOST_PREFIXES:
            super().get()
        else:
            self.write(_LEFT_OUT.format(prefixes, MOST_PREFIXES))
        self.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        made = self.server.handlers.get(Handler.OVERVIEW.value)
        if made is not None:  # a scheduler without pools has Dask's metrics only
            overview = (await made(lasting=True))["overview"]
            # In a thread, so that the scheduler continues.
            self.write(await asyncio.to_thread(lambda: exposition(Overview.from_dict(overview))))


routes: list[tuple[str, type[Any], dict[str, Any]]] = [(r"metrics", Metrics, {})]
