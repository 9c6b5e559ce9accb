"""Dashboard of a cluster, in its scheduler's HTTP server, which mounts ``routes`` by name."""
