"""The live page of a cluster. Empty in this version: ``dashboard_address`` opens Dask's own."""
