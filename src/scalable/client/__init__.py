"""Client side: routing of calls by tag, graphs of calls, and connections to running clusters.

Not in here: how calls are placed (``scheduler``) and run (``worker``).
"""
