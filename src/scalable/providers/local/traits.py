"""Traits of the local provider, and default values of its options."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from scalable.model import Starting, Traits

TRAITS = Traits(
    on_this_machine=True,
    shares_files=True,
    asks_first=False,
    counts_startup=False,
    starting=Starting(startup_s=1.0, billed_least_s=0.0),
)


# Defaults -----------------------------------------------------------------------------------------


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
