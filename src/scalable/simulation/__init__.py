"""Simulation of workloads on pools, to compare policies before they are used. Pure.

Not in this package: the policy of live pools (``scaling``).
"""
