"""The line of the user's own code at which a call has failed, read from a traceback's text."""

from __future__ import annotations

import re
import sysconfig

_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<where>.+)$', re.MULTILINE)
#: Parts of paths of installed packages.
_INSTALLED = ("/site-packages/", "/dist-packages/")


def users_frame(traceback: str | None) -> str:
    """Return the innermost frame that is no library's, such as ``flow.py, line 3, in run``.

    Without such a frame it is the innermost one of all; "" for a text without frames.
    """
    frames = list(_FRAME.finditer(traceback or ""))
    own = [frame for frame in frames if not _is_library(frame["file"])]
    if not frames:
        return ""
    frame = (own or frames)[-1]
    return f"{frame['file']}, line {frame['line']}, in {frame['where']}"


def _is_library(file: str) -> bool:
    path = file.replace("\\", "/")
    standard = sysconfig.get_paths()["stdlib"].replace("\\", "/")
    if any(part in path for part in _INSTALLED) or path.startswith("<frozen"):
        return True
    return path.startswith(f"{standard}/") or "/scalable/worker/" in path
