"""`Objects`: entries as objects of a bucket, or of another store that fsspec supports.

There are no leases, and uses are not recorded, since an object only has the time of its writing.
The index of functions has an object for each entry.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from hashlib import sha256
from typing import Any

from scalable.cache.entries import Entry, is_key
from scalable.cache.folders import Known
from scalable.cache.payloads import Buffer
from scalable.cache.places import Opened, Stored
from scalable.storage import Storage

#: Size in bytes from which an entry is uploaded in parts, so that it is not copied as a whole.
LARGE = 64 << 20
#: Largest number of entries of a function that one search reads.
READ = 64
#: Names of an object's time in different file systems.
_TIMES = ("LastModified", "updated", "mtime", "created")


class Objects:
    """Entries below a prefix of an object store."""

    def __init__(self, url: str) -> None:
        self._storage = Storage(url)
        self.index = ObjectIndex(self._storage)

    def prepare(self) -> None:
        """Raise ProviderError if the library for the URL is missing."""
        _ = self._storage.fs

    @contextmanager
    def opened(self, key: str) -> Iterator[Opened]:
        """Read an object, or raise FileNotFoundError or another OSError."""
        with translated():
            data: bytes = self._storage.fs.cat_file(self._path(key))
        yield Opened(io.BytesIO(data), len(data), time.time())

    def exists(self, key: str) -> bool:
        with translated():
            return self._storage.exists(f"entries/{key[:2]}/{key}")

    def write(
        self, key: str, pieces: Sequence[Buffer], *, forced: bool = True, replace: bool = True
    ) -> None:
        """Write or replace an entry. An object appears as a whole.
        Unless ``replace``, an existing entry raises FileExistsError, but simultaneous writers may
        all succeed. Other failures raise OSError.
        """
        del forced
        if not replace and self.exists(key):
            raise FileExistsError(key)
        with translated():
            fs, path = self._storage.fs, self._path(key)
            if sum(memoryview(piece).nbytes for piece in pieces) < LARGE:
                fs.pipe_file(path, b"".join(pieces))
                return
            file = fs.open(path, "wb")
            try:
                for piece in pieces:
                    file.write(piece)
            except BaseException:
                with suppress(Exception):  # an incomplete upload is not an object
                    file.discard()
                raise
            file.close()

    def note_use(self, key: str) -> None:
        """Do nothing, since an object's time changes only when it is written."""

    def stored(self) -> Iterator[Stored]:
        with translated():
            fs = self._storage.fs
            fs.invalidate_cache()
            found: Mapping[str, Mapping[str, Any]] = fs.find(
                self._storage.path("entries"), detail=True
            )
        for path, facts in found.items():
            key = path.rpartition("/")[2]
            if is_key(key):
                yield Stored(key, int(facts.get("size") or 0), _time_of(facts))

    def remove(self, key: str) -> bool:
        try:
            with translated():
                if not self._storage.exists(f"entries/{key[:2]}/{key}"):
                    return False
                self._storage.fs.rm_file(self._path(key))
        except FileNotFoundError:
            return False
        return True

    def now(self) -> float:
        """Return seconds since the epoch by the clock of this machine."""
        return time.time()

    def read_note(self, name: str) -> str | None:
        with suppress(OSError, UnicodeDecodeError), translated():
            data: bytes = self._storage.fs.cat_file(self._storage.path(name))
            return data.decode()
        return None

    def write_note(self, name: str, text: str) -> None:
        with translated():
            self._storage.fs.pipe_file(self._storage.path(name), text.encode())

    def remove_leftovers(self, older_than_s: float, *, dry_run: bool = False) -> int:
        """Return 0: a killed writer leaves no object, and the bucket's rules abort its uploads."""
        del older_than_s, dry_run
        return 0

    def _path(self, key: str) -> str:
        return self._storage.path(f"entries/{key[:2]}/{key}")


class ObjectIndex:
    """Index with an object for each entry of a function. Object names start with the time."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[str, Known] = {}

    def add(self, entry: Entry) -> None:
        """Add an entry, ignoring errors."""
        name = f"{_prefix(entry.function)}/{int(entry.created * 1000):013d}-{entry.key}"
        text = json.dumps(dict(entry.parts), separators=(",", ":"))
        with suppress(OSError), translated():
            self._storage.fs.pipe_file(self._storage.path(name), text.encode())

    def nearest(
        self,
        function: str,
        parts: Mapping[str, str],
        entry_of: Callable[[str], Entry | None],
        *,
        before: float | None = None,
    ) -> Entry | None:
        """Return the nearest of a function's latest entries."""
        known = self._known.setdefault(function, Known())
        latest = [name for name in self._names(_prefix(function)) if name not in known.read][:READ]
        for name in reversed(latest):
            with suppress(OSError, ValueError, AttributeError):
                with translated():
                    data = self._storage.fs.cat_file(name)
                found = json.loads(data)
                if all(isinstance(text, str) for text in found.values()):
                    known.add(name[-64:], found, int(name[-78:-65]) / 1000)
            known.read[name] = (0, 0)
        return known.nearest_entry(function, parts, entry_of, before)

    def is_worn(self) -> bool:
        """Return False, since the index only needs the removal of deleted entries."""
        return False

    def rebuild(self, entries: Iterable[Entry]) -> None:
        """Delete the index objects of deleted entries."""
        keys = {entry.key for entry in entries}
        for name in self._names("functions"):
            if name[-64:] not in keys:
                with suppress(FileNotFoundError), translated():
                    self._storage.fs.rm_file(name)

    def _names(self, prefix: str) -> list[str]:
        """Return the names below a prefix, the latest of a function first."""
        with suppress(FileNotFoundError), translated():
            fs = self._storage.fs
            fs.invalidate_cache()
            found: list[str] = fs.find(self._storage.path(prefix))
            return sorted((name for name in found if is_key(name[-64:])), reverse=True)
        return []


@contextmanager
def translated() -> Iterator[None]:
    """Raise any error of a store's library as an OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _prefix(function: str) -> str:
    digest = sha256(function.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"functions/{digest}"


def _time_of(facts: Mapping[str, Any]) -> float:
    """Return an object's modification time in epoch seconds, or 0 if it is not reported."""
    for name in _TIMES:
        value = facts.get(name)
        if isinstance(value, str):
            with suppress(ValueError):
                value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return 0.0
