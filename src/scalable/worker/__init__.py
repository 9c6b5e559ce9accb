"""A worker process: its program, memory limit, slots, bundles, interrupts and output.

Not in here: what starts and replaces workers (``manager``, ``providers``).
"""
