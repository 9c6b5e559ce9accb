"""Default values of the local options.
They are separate from the option model, so that a session without a manifest need not load it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "max_workers": None,
        "threads_per_worker": 1,
        "processes": False,
        "interface": None,
        "containers": "none",
        "dashboard_address": None,
    }
)
