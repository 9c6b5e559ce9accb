"""Clusters that were disconnected from the sidebar, and are shown again."""

from __future__ import annotations

import os
import time

from scalable.records import ClusterDirectory, find

SHOWN = "shown-in-lab"


def show(name: str) -> None:
    """Show a cluster in JupyterLab's sidebar again, after it was disconnected there.

    ``name`` is the name, ``provider/name``, the id, or a prefix of the id. Raises ClusterError if
    no cluster or several clusters match.
    """
    path = find(name).path / SHOWN
    path.touch(mode=0o600)
    # The time that touch sets is that of the kernel's last tick, some milliseconds ago.
    os.utime(path, ns=(now := time.time_ns(), now))


def shown_at(directory: ClusterDirectory) -> float:
    """Return the time of the last :func:`show` of a cluster, in epoch seconds, or 0 for none."""
    try:
        return (directory.path / SHOWN).stat().st_mtime
    except OSError:
        return 0.0
