"""``scalable top``: a terminal application that shows a running cluster.

It needs textual, the extra ``tui``. Tables and numbers come from :mod:`scalable.views` and
overviews.
"""
