"""Comparison of an imported module with its source file, which may have been edited since."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import psutil

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
