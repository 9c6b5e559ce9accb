"""Places to run: the contract (``base``), the registry, and one folder for each provider.

A provider validates offline and imports the engine only when it builds or scales.
"""
