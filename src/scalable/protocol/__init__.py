"""Names, messages, rules and credentials that two processes share.

Not in here: code of one process only, and decisions.
"""
