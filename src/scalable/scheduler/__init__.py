"""Code that runs in the scheduler's process: placement of calls, worker counts, managers, records.

Not in here: scaling policies (``scaling``) and the start of workers (``manager``).
"""
