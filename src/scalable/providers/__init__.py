"""Places to run: the contract (``base``), the registry, and one folder for each provider.

A provider validates offline and imports Dask only when it builds or scales.

The classes of the built-in providers can be imported from here; a class, and its folder, is loaded
when it is first used.
"""

import importlib
import pkgutil
from typing import Any


def _classes() -> dict[str, str]:
    """Return name of the class -> name of the folder, for each built-in provider."""
    folders = [module.name for module in pkgutil.iter_modules(__path__) if module.ispkg]
    exported = {f: importlib.import_module(f"{__name__}.{f}").__all__ for f in folders}
    return {c: f for f, names in exported.items() for c in names if c.endswith("Provider")}


def __getattr__(name: str) -> Any:
    folder = _classes().get(name) if name.endswith("Provider") else None
    if folder is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{folder}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_classes()})
