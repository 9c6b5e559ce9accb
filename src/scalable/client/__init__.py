"""The user's process: the client that routes calls by tag, graphs, and clusters that run elsewhere.

Not in here: how calls are placed (``scheduler``) and run (``worker``).
"""
