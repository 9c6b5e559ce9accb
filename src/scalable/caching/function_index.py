"""`FunctionIndex`: the results of each function, to find the one with the nearest key.

Each process appends lines to its own files. Lines may be missing or outlive their entries: the
index only serves explanations, and an entry's header is read before the entry is reported.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count, islice
from pathlib import Path

from scalable.caching.differences import nearness
from scalable.caching.entries import Entry, Unreadable, is_key
from scalable.caching.own_files import READING, check_own, make_private, touched

logger = logging.getLogger("scalable.caching")

#: Largest number of results of one function that are compared with a task.
COMPARED = 128
#: Largest number of results of one function that a process keeps in memory.
REMEMBERED = 100_000
#: Largest number of missing results that are skipped in one search.
SKIPPED = 32
#: Number of files of a function above which they are merged.
MANY_FILES = 32
#: Seconds without a new line after which the writer of a file is assumed to have exited.
QUIET_S = 600.0

_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass
class Known:
    """Results of one function, in the order in which they became known."""

    #: Parts of each key.
    parts: dict[str, Mapping[str, str]] = field(default_factory=dict)
    #: Position of each key in the order.
    places: dict[str, int] = field(default_factory=dict)
    #: Time at which each result was stored, in seconds since 1970.
    created: dict[str, float] = field(default_factory=dict)
    #: Keys that contain a part, by its name and its string.
    holders: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    #: Inode, and number of bytes that were read, by name of the file.
    read: dict[str, tuple[int, int]] = field(default_factory=dict)
    counter: Iterator[int] = field(default_factory=count)

    def add(self, key: str, parts: Mapping[str, str], created: float = 0.0) -> None:
        """Add a result, unless there are too many. A time of 0 is earlier than all others."""
        if key not in self.parts and len(self.parts) < REMEMBERED:
            self.parts[key] = parts
            self.places[key] = next(self.counter)
            self.created[key] = created
            for item in parts.items():
                self.holders[item].append(key)

    def nearest(self, parts: Mapping[str, str], before: float | None = None) -> list[str]:
        """Return the nearest keys: equal arguments, then most equal parts, then the latest first.

        A result for the same arguments shows best what else has changed since.
        """
        wanted = parts.items()
        lists = sorted((self.holders[item] for item in wanted if item in self.holders), key=len)
        keys: dict[str, None] = {}
        for holders in lists:  # the rarest parts are the most specific
            left = COMPARED - len(keys)
            if left <= 0:
                break
            keys.update(
                dict.fromkeys(key for key in holders[-left:] if self._is_there(key, before))
            )
        if not keys:
            latest = (key for key in reversed(self.parts) if self._is_there(key, before))
            keys.update(dict.fromkeys(islice(latest, 1)))
        order = {key: (nearness(parts, self.parts[key]), self.places[key]) for key in keys}
        return sorted(order, key=order.__getitem__, reverse=True)

    def _is_there(self, key: str, before: float | None) -> bool:
        return key in self.parts and (before is None or self.created[key] < before)

    def nearest_entry(
        self,
        function: str,
        parts: Mapping[str, str],
        entry_of: Callable[[str], Entry | None],
        before: float | None = None,
    ) -> Entry | None:
        """Return the nearest entry that still exists, and drop those that do not."""
        for _ in range(SKIPPED):
            key = next(iter(self.nearest(parts, before)), None)
            if key is None:
                break
            entry = entry_of(key)
            if entry is not None and entry.function == function:
                return entry
            del self.parts[key], self.places[key], self.created[key]
        return None


class FunctionIndex:
    """Results of each function in one store directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "functions"
        self._clock = directory / "clock"
        self._name = ""
        self._process = 0
        self._is_torn = False
        self._known: dict[str, Known] = {}
        self._lock = threading.Lock()

    def add(self, entry: Entry) -> None:
        """Add a result. An error is ignored: an explanation may then use a less similar one."""
        line = _line_of(entry)
        directory = self._directory_of(entry.function)
        with self._lock:
            if self._process != os.getpid():
                self._name, self._process = f"{secrets.token_hex(8)}.lines", os.getpid()
            data = b"\n" * self._is_torn + line.encode() + b"\n"
            try:
                try:
                    descriptor = os.open(directory / self._name, _APPENDING, 0o600)
                except FileNotFoundError:
                    make_private(directory)
                    descriptor = os.open(directory / self._name, _APPENDING, 0o600)
                try:
                    self._is_torn = os.write(descriptor, data) != len(data)
                finally:
                    os.close(descriptor)
            except OSError as error:
                logger.debug("the index of %s is not written: %s", entry.function, error)

    def nearest(
        self,
        function: str,
        parts: Mapping[str, str],
        entry_of: Callable[[str], Entry | None],
        *,
        before: float | None = None,
    ) -> Entry | None:
        with self._lock:
            known = self._known.setdefault(function, Known())
            self._read_new_lines(self._directory_of(function), known)
            return known.nearest_entry(function, parts, entry_of, before)

    def rebuild(self, entries: Iterable[Entry]) -> None:
        """Rewrite the index from all entries, or raise OSError. Drop files of exited processes."""
        before = touched(self._clock) - QUIET_S
        old = [
            (path, status.st_size)
            for path in self._directory.glob("*/*.lines")
            if (status := path.stat()).st_mtime < before
        ]
        lines: dict[str, list[str]] = defaultdict(list)
        for entry in entries:
            lines[entry.function].append(_line_of(entry))
        for function, texts in lines.items():
            directory = self._directory_of(function)
            make_private(directory)
            path = directory / f"{secrets.token_hex(8)}.lines"
            descriptor = os.open(path, _APPENDING | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
                file.write("\n".join(texts) + "\n")
        for path, size in old:
            with suppress(OSError):
                if path.stat().st_size == size:
                    path.unlink()
                    path.parent.rmdir()  # if it is empty

    def is_worn(self) -> bool:
        """Return whether a function has so many files that reading them is slow."""
        counts: dict[Path, int] = defaultdict(int)
        for path in self._directory.glob("*/*.lines"):
            counts[path.parent] += 1
        return max(counts.values(), default=0) > MANY_FILES

    def _directory_of(self, function: str) -> Path:
        name = sha256(function.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return self._directory / name

    def _read_new_lines(self, directory: Path, known: Known) -> None:
        with suppress(OSError), os.scandir(directory) as items:
            for item in sorted(items, key=lambda item: item.name):
                with suppress(OSError, Unreadable):
                    self._read_new_lines_of(item, known)

    def _read_new_lines_of(self, item: os.DirEntry[str], known: Known) -> None:
        descriptor = os.open(item.path, READING)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
            status = os.fstat(descriptor)
            check_own(status)
            inode, read = known.read.get(item.name, (status.st_ino, 0))
            if inode != status.st_ino or read > status.st_size:
                read = 0
            if read == status.st_size:
                return
            file.seek(read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        known.read[item.name] = (status.st_ino, read + len(whole))
        same: dict[str, str] = {}  # most strings occur in all lines: one object for each
        for line in whole.splitlines():
            # A killed process or a full disk leaves a part of a line.
            with suppress(ValueError, TypeError, KeyError, AttributeError):
                document = json.loads(line)
                key, parts = document["key"], document["parts"]
                if is_key(key) and all(isinstance(text, str) for text in parts.values()):
                    parts = {same.setdefault(n, n): same.setdefault(t, t) for n, t in parts.items()}
                    known.add(key, parts, float(document.get("created", 0.0)))


def _line_of(entry: Entry) -> str:
    document = {"key": entry.key, "parts": dict(entry.parts), "created": entry.created}
    return json.dumps(document, separators=(",", ":"))
