"""Dashboard of a cluster, in its scheduler's HTTP server.

It shows the scheduler's overviews. The scheduler mounts ``routes`` by name.
"""
