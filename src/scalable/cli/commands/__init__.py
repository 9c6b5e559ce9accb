"""One file per command, with a click command called ``command``.
Their first lines are imported whenever help is shown, so heavy imports are inside functions.
"""
