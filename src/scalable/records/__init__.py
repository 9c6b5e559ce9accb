"""Clusters on disk: their records, addresses, credentials and reported status.
This package only reads and writes files. ``clusters`` contacts clusters and stops them.
"""

from scalable.records.access_file import (
    AccessFile,
    find_access,
    read_access_file,
    write_access_file,
)
from scalable.records.directory import RECORD, ClusterDirectory
from scalable.records.finding import all_directories, find, opened, status_of, unreadable

__all__ = [
    "RECORD",
    "AccessFile",
    "ClusterDirectory",
    "all_directories",
    "find",
    "find_access",
    "opened",
    "read_access_file",
    "status_of",
    "unreadable",
    "write_access_file",
]
