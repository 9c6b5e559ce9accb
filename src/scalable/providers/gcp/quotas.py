"""Quotas of a region, and a machine's share of them, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scalable.spec.prices import Shape

#: Series with a quota of their own for cores; cores of others count for ``CPUS``.
_OWN = ("n2", "n2d", "c2", "c2d", "c3", "t2d", "a2", "m1", "m2")
_GPUS = {
    "t4": "NVIDIA_T4_GPUS",
    "l4": "NVIDIA_L4_GPUS",
    "a100": "NVIDIA_A100_GPUS",
    "v100": "NVIDIA_V100_GPUS",
}


def metrics_of(shape: Shape, *, public: bool) -> dict[str, float]:
    """Return the quotas and amounts for a machine, which has a public address if ``public``."""
    series = shape.name.partition("-")[0]
    found = {f"{series.upper()}_CPUS" if series in _OWN else "CPUS": shape.cpus, "INSTANCES": 1.0}
    if shape.gpus and shape.gpu_type in _GPUS:
        found[_GPUS[shape.gpu_type]] = float(shape.gpus)
    if public:
        found["IN_USE_ADDRESSES"] = 1.0
    return found


def left_of(quotas: Iterable[Mapping[str, Any]], metric: str) -> float | None:
    """Return the amount that a quota leaves, or None if the region does not have the quota."""
    for quota in quotas:
        if quota.get("metric") == metric:
            return float(quota.get("limit", 0)) - float(quota.get("usage", 0))
    return None
