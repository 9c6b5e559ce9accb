"""Result cache: cache keys, and the store of results by key.

Which tasks are cached, and how results reach workers and clients, is decided elsewhere. Does not
import Dask.
"""
