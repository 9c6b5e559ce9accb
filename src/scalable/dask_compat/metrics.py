"""Seams of the scheduler's metrics for Prometheus."""

from __future__ import annotations

from typing import Any

from distributed.http.scheduler import prometheus

from scalable.dask_compat.facts import Seams, has, mentions

seams = Seams("scheduler")


@seams.relies_on(
    has("distributed.http.scheduler:prometheus", "routes"),
    mentions("distributed.http.scheduler.prometheus.core:PrometheusHandler.get", "write"),
    mentions("distributed.http.utils:RequestHandler.initialize", "server"),
    optional=True,  # without prometheus-client there is no such handler
)
def dask_metrics_handler() -> type[Any]:
    """Return the class of Dask's metrics page, whose ``get`` does not finish the response."""
    ((_, handler, _),) = prometheus.routes
    return handler  # type: ignore[no-any-return]
