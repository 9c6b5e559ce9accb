"""What two processes must agree on: names, messages, the matching rule, credentials.

Nothing in here belongs to one process, and nothing decides.
"""
