"""Modules of the workflow that this process has loaded, in the versions that it has loaded."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import psutil

from scalable.protocol.bundles import PROCESS
from scalable.protocol.code import (
    CodeTable,
    ModuleCode,
    digest_of,
    is_own,
    own_search_path,
    read_source,
)
from scalable.protocol.importing import here
from scalable.protocol.search_path import lasting

logger = logging.getLogger("scalable.client")

#: Seconds between two checks of the source files.
LOOK_S = 2.0
_EDITED = (
    "%s changed after this process had imported it, and before its version was noted: calls run "
    "the file as it is now; restart the process, or reload the module"
)
_NOT_RELOADED = (
    "%s was not reloaded completely: calls run the version from before, on every worker; mend the "
    "file and reload it, or call client.sync_code()"
)
#: Largest size in bytes of the sources that are sent. Beyond it, workers need the files.
MOST_SOURCES = 1 << 24


@dataclass
class _Loaded:
    """Module as it was when it was first found."""

    spec: Any
    stamp: tuple[int, int]
    code: ModuleCode
    source: bytes
    told: bool = False


class OwnCode:
    """Versions of the workflow's modules in this process.

    A module that is reloaded gets a new ``__spec__``. A module that is not reloaded keeps the
    version that it had when it was first found, whatever happens to its file.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, _Loaded] = {}
        self._table: CodeTable | None = None
        self._path: list[str] = []
        self._modules = 0
        self._looked_at = 0.0
        self._readings = 0
        self._lock = threading.Lock()

    def table(self) -> CodeTable:
        """Return the current table: the same object as long as nothing has changed."""
        if self._table is None or self._has_changed():
            with self._lock:
                self._scan()
        if time.monotonic() - self._looked_at > LOOK_S:
            self._warn_of_edits()
        assert self._table is not None
        return self._table

    def sources(self) -> dict[str, bytes]:
        """Return the sources of all modules by digest, or nothing if their total is too large."""
        found = {loaded.code.digest: loaded.source for loaded in self._loaded.values()}
        return found if sum(map(len, found.values())) <= MOST_SOURCES else {}

    def read_again(self) -> list[str]:
        """Read the files again, and return the names of the modules that differ."""
        with self._lock:
            before = {name: loaded.code for name, loaded in self._loaded.items()}
            self._loaded.clear()
            # Modules that only tasks import may have changed too, and need another code id.
            self._readings += 1
            self._scan(anew=True)
            return [
                n for n, known in self._loaded.items() if before.get(n, known.code) != known.code
            ]

    def _has_changed(self) -> bool:
        if len(sys.modules) != self._modules or sys.path != self._path:
            return True
        modules = sys.modules
        return any(
            getattr(modules.get(name), "__spec__", None) is not known.spec
            for name, known in self._loaded.items()
        )

    def _scan(self, *, anew: bool = False) -> None:
        """Read the modules that are new or were reloaded, or with ``anew``, all modules."""
        self._modules, self._path = len(sys.modules), list(sys.path)
        found = {}
        doubtful: dict[str, list[str]] = {_EDITED: [], _NOT_RELOADED: []}
        for name, module in list(sys.modules.items()):
            spec = _spec_of(module)
            known = self._loaded.get(name)
            if known is not None and known.spec is spec:
                found[name] = known
            elif spec is not None and (loaded := _loaded(name, spec)) is not None:
                found[name] = loaded
                path, source = spec.origin, loaded.source
                if anew or (known is not None and known.code == loaded.code):
                    continue
                if known is not None and not runs(module, path, source):
                    found[name] = replace(known, spec=spec, told=True)
                    doubtful[_NOT_RELOADED].append(name)
                elif known is None and was_edited(module, path, source):
                    doubtful[_EDITED].append(name)
        self._loaded = found
        for words, names in doubtful.items():
            if names:
                logger.warning(words, names_of(names))
        codes = {name: loaded.code for name, loaded in found.items()}
        path = own_search_path(entry or str(Path.cwd()) for entry in lasting(self._path))
        last = self._table
        if anew or last is None or (codes, path) != (last.modules, last.search_path):
            process = f"{PROCESS}-{self._readings}" if self._readings else PROCESS
            self._table = CodeTable(process, codes, path)
            logger.debug("code %s: %d modules of the workflow", self._table.id, len(codes))

    def _warn_of_edits(self) -> None:
        """Warn once of each module whose file is no longer what this process has loaded."""
        self._looked_at = time.monotonic()
        edited = []
        for name, known in list(self._loaded.items()):
            stamp = _stamp(known.code.path)
            if known.told or stamp is None or stamp == known.stamp:
                continue
            known.stamp = stamp
            if digest_of(read_source(known.code.path) or b"") != known.code.digest:
                known.told = True
                edited.append(name)
        if edited:
            logger.warning(
                "%s changed since this process imported it: calls run the version that was "
                "imported, on every worker; importlib.reload() or client.sync_code() changes that",
                names_of(edited),
            )


def names_of(modules: Iterable[str]) -> str:
    """Return the names of modules for a message, of many the first ones."""
    names = sorted(modules)
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"module {shown}" if len(names) == 1 else f"modules {shown}"


def _spec_of(module: ModuleType) -> Any:
    try:
        return vars(module).get("__spec__")
    except TypeError:  # sys.modules may contain any object
        return None


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _loaded(name: str, spec: Any) -> _Loaded | None:
    path = getattr(spec, "origin", None)
    if not isinstance(path, str) or not is_own(name, path):
        return None
    stamp, source = _stamp(path), read_source(path)
    if stamp is None or source is None:
        return None
    is_package = getattr(spec, "submodule_search_locations", None) is not None
    return _Loaded(
        spec, stamp, ModuleCode(str(Path(path).absolute()), digest_of(source), is_package), source
    )


#: The modules of this process.
own_code = OwnCode()


def note_code() -> None:
    """Note the versions of the modules that this process has loaded, before they are edited."""
    if here() is None:  # else a task submits tasks, with the modules of its client
        own_code.table()


# Imported -----------------------------------------------------------------------------------------

#: Seconds by which the start time of a process may be wrong.
_CLOCK_S = 2.0
#: Size in bytes of the header of a compiled file, and its parts with the kind of the file, and the
#: time and the size of the source.
_HEADER = 16
_KIND, _TIME, _SIZE = slice(4, 8), slice(8, 12), slice(12, 16)


@cache
def _process_started_at() -> float:
    return float(psutil.Process().create_time()) + _CLOCK_S


def was_edited(module: ModuleType, path: str, source: bytes) -> bool:
    """Return whether a module's file was edited after its import, as far as that is known."""
    try:
        status = Path(path).stat()
        if status.st_mtime < _process_started_at():
            return False
        if _is_compiled_from_another(module, int(status.st_mtime), status.st_size):
            return True
    except OSError:
        return False
    return not runs(module, path, source)


def _is_compiled_from_another(module: ModuleType, modified: int, size: int) -> bool:
    """Return whether this process has compiled the module from a source of other time or size."""
    cached = getattr(module.__spec__, "cached", None)
    try:
        # An older compiled file proves nothing: a process that cannot write it leaves it as it is.
        if not cached or Path(cached).stat().st_mtime < _process_started_at():
            return False
        with Path(cached).open("rb") as file:
            header = file.read(_HEADER)
    except OSError:
        return False
    if len(header) < _HEADER or any(header[_KIND]):
        return False
    stamp = [int.from_bytes(header[part], "little") for part in (_TIME, _SIZE)]
    return stamp != [modified & 0xFFFFFFFF, size & 0xFFFFFFFF]


def runs(module: ModuleType, path: str, source: bytes) -> bool:
    """Return whether the functions of a module are those of a source, as far as both have them."""
    try:
        compiled = compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    known: dict[str, list[CodeType]] = {}
    for code in _codes(compiled):
        known.setdefault(code.co_qualname, []).append(code)
    return all(
        function.__code__ in known.get(function.__code__.co_qualname, [function.__code__])
        for function in _functions(module)
        if function.__code__.co_filename == path
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Yield the functions of a module, and those of its classes."""
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        for each in [value, *vars(value).values()] if isinstance(value, type) else [value]:
            function = getattr(each, "__func__", each)  # of a static method or a class method
            if isinstance(function, FunctionType):
                yield function
