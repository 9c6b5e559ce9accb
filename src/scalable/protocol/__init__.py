"""Names, messages, rules and credentials that several kinds of processes share.

Not in here: decisions, and code that only one kind of process uses.
"""
