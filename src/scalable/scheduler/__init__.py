"""Code in the scheduler's process: task placement, worker counts, managers and run records.
Scaling policies are in ``scaling``; workers are started by ``manager``.
"""
