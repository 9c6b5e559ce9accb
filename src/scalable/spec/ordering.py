"""Rules for the order in which queued tasks run."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

#: ``critical-path``: tasks with long remaining paths first. ``submitted``: Dask's own order, by
#: submission, and within a graph an order that releases results early.
Order: TypeAlias = Literal["critical-path", "submitted"]
CRITICAL_PATH: Final = "critical-path"
SUBMITTED: Final = "submitted"
