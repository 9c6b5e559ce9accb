"""Sentences that say why a call or a pool waits, or why a call failed, decided from plain facts.

Not in here: the collection of the facts, which needs a scheduler or a client. No I/O and no clock.
"""
