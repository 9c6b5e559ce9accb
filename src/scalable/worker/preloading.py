"""Import of a worker's modules into the fork server, without numpy.

numpy is left out because it reads environment variables that a worker may set differently. This
dependence on Dask is not in :mod:`scalable.protocol.dask_seams`, which imports ``distributed``.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

#: Modules that a worker loads while it starts, where Dask has them.
MODULES = (
    "distributed.http.health",
    "distributed.http.statics",
    "distributed.http.worker.prometheus",
    "tornado.platform.asyncio",
)
#: Smallest size in bytes of messages whose memory comes from numpy, which uses large pages.
LARGE_BYTES = 4 * 2**20


class NumpyLater(ModuleType):
    """Stand-in for numpy while ``distributed`` is loaded.

    Numerical libraries start threads when they are loaded, and read the environment variables for
    the number of threads. So each worker has to load them itself. ``distributed.protocol.utils``
    needs numpy only for the memory of messages.
    """

    def __init__(self) -> None:
        super().__init__("numpy")
        #: Name of another attribute that a module tried to read from numpy.
        self.missed: str | None = None

    def empty(self, shape: tuple[int], dtype: str) -> Any:
        """Return memory for a message, from numpy if it is loaded or the message is large."""
        if "numpy" in sys.modules or shape[0] >= LARGE_BYTES:
            with suppress(ImportError):
                return importlib.import_module("numpy").empty(shape, dtype=dtype)
        return SimpleNamespace(data=memoryview(bytearray(shape[0])))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            self.missed = name
        raise AttributeError(f"numpy is not loaded yet, and its stand-in has no {name!r}")


def preload() -> str | None:
    """Load a worker's modules. Return why a fork would differ from a new process, or None."""
    stand_in = NumpyLater() if "numpy" not in sys.modules and find_spec("numpy") else None
    if stand_in is not None:
        sys.modules["numpy"] = stand_in
    try:
        importlib.import_module("distributed")
    finally:
        if stand_in is not None:
            del sys.modules["numpy"]
    if stand_in is not None and stand_in.missed is not None:
        return f"a module that distributed loads needs numpy.{stand_in.missed}"
    importlib.import_module("scalable.worker.program")
    for name in MODULES:
        with suppress(ImportError):
            importlib.import_module(name)
    # Dask reads the versions of packages from their metadata, and keeps them.
    with suppress(ImportError):
        from distributed.versions import get_versions

        get_versions()
    if "numpy" in sys.modules:
        return "numpy is loaded with distributed"
    return None
