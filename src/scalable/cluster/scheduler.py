"""Dask's scheduler and what our pools need of it."""

from __future__ import annotations

from typing import Any

import dask
from distributed import Scheduler


class QuietHttp:
    """A server node that opens no HTTP port unless it was given a dashboard address.

    Dask's nodes always open one, on every interface in the case of the scheduler.
    """

    services: dict[str, Any]

    def start_http_server(
        self, routes: Any, dashboard_address: Any, default_port: int = 0, ssl_options: Any = None
    ) -> None:
        """Open the HTTP server, where an address was asked for."""
        if dashboard_address:
            super().start_http_server(  # type: ignore[misc]
                routes, dashboard_address, default_port, ssl_options
            )


class PoolScheduler(QuietHttp, Scheduler):
    """Dask's scheduler, without an HTTP server that nobody asked for.

    It does not give up workers that are silent: a call that holds Python's lock for longer than
    Dask's worker-ttl would be run twice. Whether a worker lives is what its place says.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with dask.config.set({"distributed.scheduler.worker-ttl": None}):
            super().__init__(*args, **kwargs)
