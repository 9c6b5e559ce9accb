"""Remembered results: the key of a call, and the store of results by their keys.

Not in here: the decision which calls are remembered, and the way of a result to its worker and its
client. No Dask.
"""
