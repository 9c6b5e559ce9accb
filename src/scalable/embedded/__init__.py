"""A cluster whose scheduler and worker manager live in the user's process.

Not in here: detached clusters (``lifecycle``, ``programs``).
"""
