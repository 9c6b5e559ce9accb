"""A worker manager: the launcher contract, the reconciler and its decisions.

Not in here: how one place starts a worker (``providers``), the counts wanted of all managers
(``scheduler``).
"""
