"""Lazy import of ``kubernetes-asyncio``.

The library imports 750 modules of kinds, which takes a second in every process and is not used
here. The bodies of its packages therefore run only when a missing name is requested from them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

#: Packages whose bodies import all others.
LAZY = (
    "kubernetes_asyncio",
    "kubernetes_asyncio.client",
    "kubernetes_asyncio.client.models",
)
_LOCK = threading.RLock()


def load() -> tuple[ModuleType, ModuleType]:
    """Import the library, and return its modules ``client``, with lazy names, and ``config``."""
    with _LOCK:
        if not any(name in sys.modules for name in LAZY):
            for name in LAZY:
                _add(name)
            client = sys.modules["kubernetes_asyncio.client"]
            for module, name in (("configuration", "Configuration"), ("api_client", "ApiClient")):
                found = import_module(f"kubernetes_asyncio.client.{module}")
                setattr(client, name, getattr(found, name))
        client = import_module("kubernetes_asyncio.client")
        return client, import_module("kubernetes_asyncio.config")


def _add(name: str) -> None:
    """Put a package into ``sys.modules`` without running its body."""
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = module_from_spec(spec)
    sys.modules[name] = module
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], own, module)
    vars(module)["__getattr__"] = _body_of(module, spec.loader.exec_module)


def _body_of(module: ModuleType, run: Callable[[ModuleType], None]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` that runs the module's body before it looks up the name."""

    def attribute(name: str) -> Any:
        with _LOCK:
            if "__getattr__" in vars(module):
                if find_spec(f"{module.__name__}.{name}") is not None:
                    return import_module(f"{module.__name__}.{name}")
                del vars(module)["__getattr__"]
                run(module)
        try:
            return vars(module)[name]
        except KeyError:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}") from None

    return attribute
