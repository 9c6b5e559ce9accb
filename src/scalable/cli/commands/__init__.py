"""One file per command, with a click command called ``command``.
Showing help imports a module, so heavy imports are inside functions.
"""
