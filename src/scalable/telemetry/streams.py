"""File names and encoding of a recorded run.

A stream is a file of JSON lines to which rows are appended. Other files are replaced as a whole.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Names of a run's streams; each stream is the file ``<name>.jsonl``.
STREAMS = ("tasks", "workers", "resources", "failures", "scaling", "artifacts", "remembered")

RUN_FILE = "run.json"
SUMMARY_FILE = "summary.json"
PLAN_FILE = "plan.json"
LOCK_FILE = "manifest.lock"
MANIFEST_FILE = "manifest.yaml"
LINES_AT_ONCE = 1000

# NaN and infinities are not JSON and would spoil every sum. They are read as null, so that users of
# the rows need not check for them.
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)


def stream_path(directory: Path, stream: str) -> Path:
    """Return the path of the file of one stream."""
    return directory / f"{stream}.jsonl"


def encode_row(row: Mapping[str, Any]) -> str:
    """Return a row as JSON without a newline; values of unsupported types become strings."""
    return json.dumps(row, separators=(",", ":"), default=str)


def decode_object(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object in ``data``, or None if ``data`` is anything else."""
    try:
        value = _DECODER.decode(data.decode())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_rows(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of one stream and the number of its unreadable lines.

    Parameters
    ----------
    path
        Path of the stream's file. A missing file counts as a file without rows.

    Returns
    -------
    tuple
        Rows in the order of the file, and the number of unreadable lines. An incomplete last line
        is neither a row nor an unreadable line: its writer was killed or has not finished.

    Raises
    ------
    OSError
        If the file exists but cannot be read.
    """
    rows: list[dict[str, Any]] = []
    malformed = 0
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return rows, malformed
    with file:
        while lines := list(itertools.islice(file, LINES_AT_ONCE)):
            found = _decode_together(lines)
            if found is not None:
                rows += found
                continue
            for line in lines:
                row = decode_object(line)
                if row is not None:
                    rows.append(row)
                elif line.endswith(b"\n") and not line.isspace():
                    malformed += 1
    return rows, malformed


def _decode_together(lines: Sequence[bytes]) -> list[dict[str, Any]] | None:
    """Return the JSON objects of some lines, or None if a line is not a JSON object.

    The lines are decoded together. Decoding them one by one would take 1.5 times as long, which is
    noticeable for large runs.
    """
    try:
        values = _DECODER.decode((b"[" + b",".join(lines) + b"]").decode())
    except (ValueError, RecursionError):
        return None
    whole = len(values) == len(lines) and all(type(value) is dict for value in values)
    return values if whole else None


def write_fully(descriptor: int, data: bytes) -> None:
    """Write all bytes; repeat only if the system accepts a part of them at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
