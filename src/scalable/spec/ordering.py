"""Rules for the order in which waiting calls run."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

#: ``critical-path``: calls with long remaining paths first. ``submitted``: Dask's own order, which
#: is that of submission, and within a graph one that releases results early.
Order: TypeAlias = Literal["critical-path", "submitted"]
CRITICAL_PATH: Final = "critical-path"
SUBMITTED: Final = "submitted"
