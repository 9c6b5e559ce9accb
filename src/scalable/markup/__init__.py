"""HTML of public objects for notebooks: clusters, sessions, clients, executors.

Pure: renders values from its callers, with words and rows of :mod:`scalable.showing`. jinja2
escapes every string.
"""
