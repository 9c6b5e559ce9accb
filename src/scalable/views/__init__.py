"""Overviews of a cluster as tables, lines and HTML, and reasons why a task waits or failed.

The package is pure: it does no I/O and reads no clock.
"""
