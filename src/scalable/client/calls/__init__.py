"""Executors, which send many tasks in bundles (batches that are one Dask task each).

Tasks wait in the client until they are sent, and each has its own result. The code that runs a
bundle is in ``worker``.
"""
