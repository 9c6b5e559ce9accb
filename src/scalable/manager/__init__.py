"""The worker manager: it starts and stops units until the desired units exist.

A unit is one process, job or object that provides one worker or a group of workers.
"""
