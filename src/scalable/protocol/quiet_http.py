"""Server nodes that open no HTTP port by default."""

from __future__ import annotations

from typing import Any


class QuietHttp:
    """A server node that opens an HTTP port only if it was given a dashboard address.

    Dask's nodes always open one, on every interface in the case of the scheduler.
    """

    services: dict[str, Any]

    def start_http_server(
        self, routes: Any, dashboard_address: Any, default_port: int = 0, ssl_options: Any = None
    ) -> None:
        """Open the HTTP server if an address was given."""
        if dashboard_address:
            super().start_http_server(  # type: ignore[misc]
                routes, dashboard_address, default_port, ssl_options
            )
