"""``scalable top``: a terminal application that shows a running cluster.

It needs textual, the extra ``tui``. Texts and tables come from :mod:`scalable.showing`, and numbers
from the scheduler's overview; nothing here computes any.
"""
