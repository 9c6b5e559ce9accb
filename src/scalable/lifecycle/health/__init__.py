"""Checks of this machine and of a target for ``scalable doctor``; each check makes rows.

Not in here: anything that starts or changes something, except a file that is removed at once.
"""
