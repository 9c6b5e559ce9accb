"""The live view of clusters in a terminal. Empty in this version."""
