"""Overviews of a cluster as tables, lines and HTML, and reasons why a task waits or failed.

Pure: no I/O and no clock.
"""
