"""A worker process: its program, memory limit, slots, bundles, interrupts and output."""
