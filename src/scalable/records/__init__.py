"""Clusters on disk: what was asked for, where it lives, its credentials, and how it said it is.

Only files are read here. Who may speak with a cluster, and what ends it, is elsewhere.
"""

from scalable.records.bundle import Bundle, read_bundle, write_bundle
from scalable.records.directory import RECORD, ClusterDirectory
from scalable.records.finding import all_directories, find, status_of

__all__ = [
    "RECORD",
    "Bundle",
    "ClusterDirectory",
    "all_directories",
    "find",
    "read_bundle",
    "status_of",
    "write_bundle",
]
