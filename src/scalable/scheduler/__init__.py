"""Code in the scheduler's process: task placement, worker counts, managers and run records."""
