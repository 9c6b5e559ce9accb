"""File names and encoding of a recorded run.
A stream is a file of JSON lines to which rows are appended. Other files are replaced as a whole.
``docs/reference.py`` makes a table of the files from the comments above their names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import from_json

from scalable.errors import RunError
from scalable.files import open_regular, read_regular

Row = dict[str, Any]

#: Names of a run's streams. Each stream is the file ``<name>.jsonl``.
STREAMS = (
    #: One row for each change of a task.
    "tasks",
    #: One row for each worker that was requested, started or removed, and the cost of machines.
    "workers",
    #: CPU and memory of each worker, every 5 s, and at most 20 rows a second.
    "resources",
    #: Failed tasks, lost workers, degraded pools, and the exception of the workflow.
    "failures",
    #: One row for each change of a pool's desired count, with the reason.
    "scaling",
    #: One row for each call of ``session.record_artifact``.
    "artifacts",
    #: Cache hits and misses.
    "remembered",
)

#: Status, times, process, host, exit code, number of failed tasks, versions, and the machine.
RUN_FILE = "run.json"
#: The numbers of the report.
SUMMARY_FILE = "summary.json"
#: Data for the next plan: counts, spans and running times of tasks.
MEASUREMENTS_FILE = "measurements.json"
#: The plan that the run started with.
PLAN_FILE = "plan.json"
#: Digest of the resolved manifest.
LOCK_FILE = "manifest.lock"
#: The resolved manifest, with variables expanded and the overlay merged.
MANIFEST_FILE = "manifest.yaml"
#: Output of worker processes.
LOGS = "logs"
#: Bytes that are read at once.
_BUFFERED = 1 << 18
#: Recorded numbers from here on are ignored.
_MOST = 1e18

# NaN and infinities are not JSON and would spoil every sum. They are read as null, so that users of
# the rows need not check for them.
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)


def stream_path(directory: Path, stream: str) -> Path:
    """Return the path of a stream's file."""
    return directory / f"{stream}.jsonl"


def encode_row(row: Mapping[str, Any]) -> str:
    """Return a row as JSON without a newline. Values of unsupported types become strings."""
    return json.dumps(row, separators=(",", ":"), default=str)


def decode_object(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object in ``data``, or None for anything else."""
    value: Any = None
    try:
        # Twice as fast as Python's decoder, but stricter.
        value = from_json(data, allow_inf_nan=False)
    except ValueError:
        with suppress(ValueError, RecursionError):
            value = _DECODER.decode(data.decode())
    return value if isinstance(value, dict) else None


def read_or_empty(path: Path) -> bytes:
    """Return the contents of a file of a run. They are empty if it is missing."""
    try:
        return read_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return b""


def number(value: object) -> float | None:
    """Return a recorded number. None for anything else, and for one whose products overflow."""
    if isinstance(value, (float, int)) and -_MOST < value < _MOST and value.__class__ is not bool:
        return float(value)
    return None


def text(value: object) -> str | None:
    """Return a recorded string, or None for anything else."""
    return value if isinstance(value, str) else None


def mapping(value: object) -> Mapping[str, Any]:
    """Return a recorded JSON object. It is empty for anything else."""
    return value if isinstance(value, Mapping) else {}


class StoredRows(Sequence[Row]):
    """Rows of a stream's file at one moment, decoded again in each iteration to save memory.
    An incomplete last line is neither a row nor malformed. ``begin`` is a byte offset. ``keep``
    selects rows. ``complete`` skips a last line without line feed even if it can be decoded.
    ``size`` is the number of bytes to read, ``end`` the offset after the last complete line. A
    missing file has no rows. An unreadable one raises RunError, at once or during iteration.
    """

    def __init__(
        self,
        directory: Path,
        stream: str,
        begin: int = 0,
        *,
        keep: Callable[[Row], bool] | None = None,
        complete: bool = False,
    ) -> None:
        path = self._path = stream_path(directory, stream)
        self.begin, self._keep = begin, keep
        self._malformed: int | None = None
        self.size = self.end = begin
        with self._reading(), suppress(FileNotFoundError), open_regular(path) as file:
            self.size = max(begin, file.seek(0, os.SEEK_END))
            self.end = _end_of_lines(file, begin, self.size)
        if complete:
            self.size = self.end

    @property
    def malformed(self) -> int:
        if self._malformed is None:
            for _ in self:
                pass
        return self._malformed or 0

    def __iter__(self) -> Iterator[Row]:
        malformed, keep = 0, self._keep
        for line in self._lines():
            row = decode_object(line)
            if row is None:
                malformed += line.endswith(b"\n") and not line.isspace()
            elif keep is None or keep(row):
                yield row
        self._malformed = malformed

    def _lines(self) -> Iterator[bytes]:
        left = self.size - self.begin
        if not left:
            return
        with self._reading(), open_regular(self._path, _BUFFERED) as file:
            file.seek(self.begin)
            for line in file:
                left -= len(line)
                if left <= 0:  # what follows was written later
                    yield line[:left] if left else line
                    return
                yield line

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(f"cannot read the run in {self._path.parent}: {error}") from error

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None

    def __getitem__(self, place: Any) -> Any:
        return list(self)[place]


def _end_of_lines(file: BinaryIO, begin: int, size: int) -> int:
    """Return the offset after the last line feed in a part of a file, or else ``begin``."""
    end = size
    while end > begin:
        start = max(begin, end - _BUFFERED)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return begin


def write_fully(descriptor: int, data: bytes) -> None:
    """Write all bytes, even if the system accepts only a part of them at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
