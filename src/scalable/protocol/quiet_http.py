"""Server nodes that open no HTTP port of their own accord."""

from __future__ import annotations

from typing import Any


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
