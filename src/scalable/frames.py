"""Search for the frame of the user's code in which a task failed, in errors or tracebacks."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from types import TracebackType

#: Maximum number of chained errors that are examined, and of frames of each error.
_MOST_CAUSES = 20
_MOST_FRAMES = 5000
_OURS = str(Path(__file__).parent) + os.sep
_STANDARD = tuple(
    {os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")}
)
#: Pattern of the standard library's path in a traceback from another machine.
_STANDARD_ELSEWHERE = re.compile(r"/lib(64)?/python3\.\d+t?/")
_INSTALLED = "-packages/"
_NOT_THE_USERS = tuple(
    f"{_INSTALLED}{name}/" for name in ("scalable", "dask", "distributed", "cloudpickle")
)
_FRAME = re.compile(r'(?m)^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>.+)$')

_Place = tuple[str, int | str | None, str]


def own_frame(error: BaseException) -> str | None:
    """Return the innermost frame of the user's own code, or else of another installed package."""
    return _innermost(_places(each.__traceback__) for each in causes(error))


def own_frame_in(traceback: str) -> str | None:
    """Return :func:`own_frame` for a traceback string, or else its innermost frame."""
    places: list[_Place] = [
        (found["file"], found["line"], found["name"].strip())
        for found in _FRAME.finditer(traceback)
    ]
    if not places:
        return None
    return _innermost([places]) or _frame_line(places[-1])


def _innermost(tracebacks: Iterable[Iterable[_Place]]) -> str | None:
    installed = None
    for places in tracebacks:
        for place in reversed(list(places)):
            owner = _owner(place[0])
            if owner == "user":
                return _frame_line(place)
            if owner == "package" and installed is None:
                installed = _frame_line(place)
    return installed


def _frame_line(place: _Place) -> str:
    file, line, name = place
    return f"{file}:{line} in {name}"


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    each: BaseException | None = error
    seen: set[int] = set()
    while each is not None and id(each) not in seen and len(seen) < _MOST_CAUSES:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


def _places(trace: TracebackType | None) -> Iterator[_Place]:
    count = 0
    while trace is not None and count < _MOST_FRAMES:
        code = trace.tb_frame.f_code
        yield code.co_filename, trace.tb_lineno, code.co_name
        trace, count = trace.tb_next, count + 1


@lru_cache(maxsize=10_000)
def _owner(file: str) -> str:
    """Return the owner of a file: "user", "package", or "ours" (scalable, Dask, Python itself)."""
    path = file.replace("\\", "/")
    if file.startswith(("<frozen", _OURS)) or any(part in path for part in _NOT_THE_USERS):
        return "ours"
    if _INSTALLED in path:
        return "package"
    if _STANDARD_ELSEWHERE.search(path) or os.path.realpath(file).startswith(_STANDARD):
        return "ours"
    return "user"
