"""Executors: many calls wait in the client, are sent in bundles, and are answered one by one.

Not in here: how a worker runs a bundle (``worker``).
"""
