"""HTML of public objects for notebooks: clusters, sessions, clients, executors.

It is pure: it renders values that others give it, and asks no scheduler. Words and rows of tables
are those of :mod:`scalable.showing`, which terminals show too. jinja2 escapes every text. Reports
and plans have their pages in :mod:`scalable.report`, which builds on ``templates``.
"""
