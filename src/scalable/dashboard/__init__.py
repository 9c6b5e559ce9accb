"""The live page of a cluster, in the HTTP server of its scheduler.

It shows the overviews that the scheduler makes, and computes nothing of its own. The scheduler
mounts :mod:`scalable.dashboard.routes` by its name, so nothing below this package imports it.
"""
