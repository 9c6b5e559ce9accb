"""Simulation of workloads on pools of workers, to judge the scaling policy beside other rules."""
