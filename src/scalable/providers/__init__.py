"""Providers: the interface (``base``), the registry, and one folder for each built-in provider.

A provider's class is importable from here, and its folder is loaded on first use. Providers
validate offline, and import Dask only when they build or scale a cluster.
"""

import importlib
from pathlib import Path
from typing import Any


def _classes() -> dict[str, str]:
    """Map the class name of each built-in provider to the name of its folder."""
    folders = sorted(file.parent.name for file in Path(__file__).parent.glob("*/provider.py"))
    exported = {f: importlib.import_module(f"{__name__}.{f}").__all__ for f in folders}
    return {c: f for f, names in exported.items() for c in names if c.endswith("Provider")}


def __getattr__(name: str) -> Any:
    folder = _classes().get(name) if name.endswith("Provider") else None
    if folder is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{folder}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_classes()})
