"""Seams: functions and classes that depend on parts of Dask outside its public interface.

Each module holds the seams for one kind of process. The docstring of a seam says which parts of
Dask it relies on. The decorator ``relies_on`` states the same as facts that can be checked.
``seams.check()`` verifies the facts when a scheduler, worker, client or cluster starts, and
``tests/unit/protocol/test_dask_seams.py`` verifies each fact.

Not in here: decisions. A seam reads or changes one thing in Dask for its caller.
"""
