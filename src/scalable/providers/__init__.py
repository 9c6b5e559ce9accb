"""Places to run: the contract (``base``), the registry, and one folder for each provider.

A provider validates offline and imports Dask only when it builds or scales.
"""
