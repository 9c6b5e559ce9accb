"""Seams: functions and classes that depend on parts of Dask outside its public interface.

``relies_on`` states these parts as facts that ``seams.check()`` verifies when a scheduler, worker,
client or cluster starts. Seams read or change one thing in Dask, and decide nothing.
"""
