"""Failures of a run, grouped by their cause. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scalable.frames import own_frame_in
from scalable.report.spans import mapping, number, text

#: Maximum number of causes, and of characters of a string.
CAUSES, CHARACTERS = 50, 4000
#: Maximum number of tasks and workers that are named for a cause.
_NAMED = 5
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
#: Keys of ``details`` that are shown in another form than as a row.
_SHOWN_APART = frozenset({"traceback", "frame", "phase", "task_id", "worker", "task_name"})


@dataclass
class Cause:
    """Failures of one exception class, code location, and message apart from its numbers.
    Fields that are not counts or lists come from the first failure.
    """

    failure_class: str
    message: str
    #: ``file:line in function``, empty if unknown.
    frame: str
    count: int = 0
    #: Some ids of failed tasks, workers and task names.
    calls: list[str] = field(default_factory=list)
    workers: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    traceback: str = ""
    #: Other facts by name.
    details: dict[str, str] = field(default_factory=dict)


def causes_of(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Cause], int]:
    """Return the most frequent causes, and the number of failures of all others.
    The failure of the script is left out of the rows of ``failures.jsonl``.
    """
    found: dict[tuple[str, str, str], Cause] = {}
    for row in rows:
        details = mapping(row.get("details"))
        if details.get("phase") == "workflow":
            continue
        named, message = text(row.get("failure_class")) or "unknown", text(row.get("message"))
        traceback = text(details.get("traceback"))
        frame = text(details.get("frame")) or (own_frame_in(traceback) or "")
        kind = _NUMBERS.sub("0", message.strip().partition("\n")[0])
        cause = found.get((named, frame, kind))
        if cause is None:
            cause = found[named, frame, kind] = Cause(
                named,
                message[:CHARACTERS],
                frame,
                traceback=traceback[-CHARACTERS:],
                details=_details(details),
            )
        count = number(row.get("count"))
        cause.count += int(count) if count is not None and count >= 1 else 1
        for key, values in (
            ("task_id", cause.calls),
            ("worker", cause.workers),
            ("task_name", cause.names),
        ):
            value = text(details.get(key))
            if value and value not in values and len(values) < _NAMED:
                values.append(value)
    ordered = sorted(found.values(), key=lambda cause: -cause.count)
    return ordered[:CAUSES], sum(cause.count for cause in ordered[CAUSES:])


def _details(details: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for key, value in details.items():
        if key not in _SHOWN_APART and value not in (None, "", [], {}):
            written = value if isinstance(value, str) else json.dumps(value, default=str)
            found[str(key)] = written[-CHARACTERS:]
    return found
