"""The model of how a cluster is, kept beside its scheduler.

Listeners of the ledger keep counts and recent events in bounded memory. :class:`Overviews` makes
overviews of them for all readers. Nothing here is shown to people: readers do that.
"""
