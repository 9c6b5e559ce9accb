"""Views of a cluster, as tables, lines and HTML. No I/O, and no clock is read."""
