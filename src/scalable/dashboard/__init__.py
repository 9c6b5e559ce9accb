"""The live page of a cluster. Empty in this version; a target's ``dashboard_address`` opens Dask's."""
