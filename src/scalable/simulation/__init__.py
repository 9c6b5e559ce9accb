"""Simulation of workloads on pools of workers, to compare scaling policies. No I/O.

Not in this package: the policy of live pools (``scaling``).
"""
