"""Replays workloads on simulated pools, to compare policies before they are used. Pure."""
