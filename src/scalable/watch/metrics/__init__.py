"""Metrics of a cluster for Prometheus, in the HTTP server of its scheduler.

They are numbers of its overviews. The scheduler mounts ``routes`` by name.
"""
