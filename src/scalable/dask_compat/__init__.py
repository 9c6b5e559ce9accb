"""Seams: functions and classes that depend on Dask's internals.

``relies_on`` declares these internals as facts. ``seams.check()`` verifies them when a scheduler,
worker, client or cluster starts. Each seam reads or changes one thing in Dask and contains no
policy.
"""
