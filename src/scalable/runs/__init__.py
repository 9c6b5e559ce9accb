"""Append-only records of runs, and their summaries. A run is one session on a cluster, recorded as
a directory of JSON files: :class:`.RunRecord` documents the rows.
"""
