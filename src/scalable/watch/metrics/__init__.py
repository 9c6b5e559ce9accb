"""Metrics of a cluster for Prometheus, in its scheduler's HTTP server, which mounts ``routes``."""
