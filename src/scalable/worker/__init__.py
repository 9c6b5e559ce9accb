"""A worker process: its program, memory limit, slots, bundles, interrupts and output.

The code that starts and replaces workers is in ``manager`` and ``providers``.
"""
