"""The files of a run: JSON lines that are appended to, and JSON values that are replaced."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: The append-only records of a run; each is a file ``<stream>.jsonl``.
STREAMS = ("tasks", "workers", "resources", "failures", "scaling", "artifacts")

RUN_FILE = "run.json"
SUMMARY_FILE = "summary.json"
PLAN_FILE = "plan.json"
LOCK_FILE = "manifest.lock"
MANIFEST_FILE = "manifest.yaml"
LINES_AT_ONCE = 1000

# NaN and the infinities are not JSON: readers in other languages stop at them, and no sum survives
# them. They are read as null, so that no code behind the reader has to ask.
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)


def stream_path(directory: Path, stream: str) -> Path:
    """The file of one stream."""
    return directory / f"{stream}.jsonl"


def encode_row(row: Mapping[str, Any]) -> str:
    """One row as a JSON line, without the newline; what JSON does not know becomes its text."""
    return json.dumps(row, separators=(",", ":"), default=str)


def decode_object(data: bytes) -> dict[str, Any] | None:
    """The JSON object that the bytes hold, or None where they hold anything else."""
    try:
        value = _DECODER.decode(data.decode())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_rows(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Read one stream.

    Parameters
    ----------
    path
        The stream's file; one that does not exist has no rows.

    Returns
    -------
    tuple
        The rows in the order of the file, and how many lines could not be read. A torn last line
        (its writer was killed, or has not finished) is neither.

    Raises
    ------
    OSError
        When the file exists and cannot be read.
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
    """The objects of some lines, decoded in one go; None where a line is anything else.

    Decoding one by one takes half as long again, which counts at the end of a large run.
    """
    try:
        values = _DECODER.decode((b"[" + b",".join(lines) + b"]").decode())
    except (ValueError, RecursionError):
        return None
    whole = len(values) == len(lines) and all(type(value) is dict for value in values)
    return values if whole else None


def write_fully(descriptor: int, data: bytes) -> None:
    """Append bytes with one write; a second one only where the disk took the first in part."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
