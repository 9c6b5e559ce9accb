"""What users read of a cluster: overviews as tables, lines and HTML, and why a task waits or failed.

Pure: no I/O and no clock.
"""
