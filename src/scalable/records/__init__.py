"""Clusters on disk: their records, addresses, credentials and reported status.

Files are read and written here. Talking to a cluster, and ending one, is ``lifecycle``.
"""

from scalable.records.access_file import (
    AccessFile,
    find_access,
    read_access_file,
    write_access_file,
)
from scalable.records.directory import RECORD, ClusterDirectory
from scalable.records.finding import all_directories, find, status_of

__all__ = [
    "RECORD",
    "AccessFile",
    "ClusterDirectory",
    "all_directories",
    "find",
    "find_access",
    "read_access_file",
    "status_of",
    "write_access_file",
]
