"""Result cache: cache keys, and the store of results by key.

Other packages decide which tasks are cached, and how results reach workers and clients. This
package does not import Dask.
"""
