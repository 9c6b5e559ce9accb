"""Model of the state of a cluster, in the scheduler's process and in bounded memory.
Listeners of the ledger keep counts and recent events, which :class:`Overviews` combines. Readers
display them.
"""
