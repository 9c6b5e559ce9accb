"""Executors, which send many calls in bundles (batches that are one Dask task each).

Calls wait in the client until they are sent. Each call gets its own result.

Not in here: how a worker runs a bundle (``worker``).
"""
