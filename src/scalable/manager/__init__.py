"""The worker manager: it starts and stops units until the wanted units exist.

A unit is one process, job or object that brings one worker or a group of workers.

Not in here: how a provider starts a worker (``providers``), and the division of the wanted worker
counts among managers (``scheduler``).
"""
