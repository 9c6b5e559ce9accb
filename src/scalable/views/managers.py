"""Sentences about the managers of a cluster."""

from __future__ import annotations

from collections.abc import Iterable

#: No manager is attached to the cluster.
NOBODY = "no manager is attached"
#: The managers that the cluster starts with have not attached yet.
NOT_YET = "its managers are not attached yet"


def words_of_lost(managers: Iterable[str]) -> str:
    """State that managers no longer send heartbeats."""
    return f"manager {', '.join(map(repr, managers))} no longer reports"
