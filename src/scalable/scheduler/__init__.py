"""The process of Dask's scheduler: placement, wanted counts, managers, draining and records.

Not in here: what a policy decides (``scaling``), how workers are started (``manager``).
"""
