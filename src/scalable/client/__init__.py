"""Client side: routing of tasks by tag, task graphs, and connections to running clusters.

Placement of tasks is in ``scheduler``, their execution in ``worker``.
"""
