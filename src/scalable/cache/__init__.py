"""Result cache: cache keys, and the store of results by key.

Does not decide which tasks are cached, nor move results to workers and clients. Does not import
Dask.
"""
