"""Metrics of a cluster for Prometheus, in the HTTP server of its scheduler.

They are the numbers of the overviews that the scheduler makes; nothing is computed here. The
scheduler mounts :mod:`scalable.metrics.routes` by its name, so nothing below this package imports
it.
"""
