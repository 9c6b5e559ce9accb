"""Guarded access to the parts of Dask that are not its public interface.

Each module in here holds the seams of one process: one function or class per seam, whose docstring
says what it relies on. The decorator ``relies_on`` states the same as facts, which are verified
once per process when a scheduler, worker, client or cluster starts (``seams.check()``), and one by
one in ``tests/unit/protocol/test_dask_seams.py``.

Not in here: decisions. A seam reads or changes one thing of Dask for its caller.
"""
