"""Quantities in the form of Kubernetes: ``500m``, ``2Gi``, ``1e3``, without I/O."""

from __future__ import annotations

import re

_SUFFIXES = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "": 1.0,
    **{letter: 1000.0**power for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)},
}
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)")


def amount(written: object) -> float:
    """Return the number for a quantity. Raises ValueError if it is not one."""
    found = _QUANTITY.fullmatch(str(written).strip())
    if found is None or found[2] not in _SUFFIXES:
        raise ValueError(f"{written!r} is not a quantity of Kubernetes")
    return float(found[1]) * _SUFFIXES[found[2]]
