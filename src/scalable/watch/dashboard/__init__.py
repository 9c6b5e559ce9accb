"""The dashboard of a cluster, in the HTTP server of its scheduler.

It shows the scheduler's overviews. The scheduler mounts ``routes`` by name.
"""
