"""Metrics of a cluster for Prometheus, in its scheduler's HTTP server.

They come from the scheduler's overviews. The scheduler mounts ``routes`` by name.
"""
