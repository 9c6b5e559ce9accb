"""`ResultStore`: results of earlier tasks by their cache keys."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from scalable.cache.entries import (
    Entry,
    Unreadable,
    is_key,
    pieces_of,
    read_header,
    read_result,
)
from scalable.cache.file_digests import FileDigests
from scalable.cache.folders import NOTED_S, Folder
from scalable.cache.inventory import Item, inventory, verified
from scalable.cache.leases import UNWRITABLE, Holder, Lease, Leases
from scalable.cache.objects import Objects
from scalable.cache.outcomes import Collected, Found, Usage, Verified, Waited
from scalable.cache.payloads import Function, packed
from scalable.cache.places import EntryBackend, Opened, Stored
from scalable.cache.reports import Report, Reports
from scalable.cache.upkeep import Upkeep
from scalable.errors import ManifestError, ScalableError
from scalable.storage import absolute_url, scheme_of, url_fault

_T = TypeVar("_T")

#: Largest number of keys whose last use this process keeps in memory.
_REMEMBERED = 100_000
#: Shortest running time in seconds of a task whose result is forced to the disk: after a power
#: loss, other tasks run again sooner than a busy disk confirms their results.
FORCED_S = 1.0


class ResultStore:
    """Results of earlier tasks by their cache keys.
    A damaged entry is a miss, and an unusable store leaves results unwritten. Neither raises an
    error, and ``reports`` counts both. The store pickles as its URL, and is opened at the first
    use. In a directory, results are read only from files that only this user can change. In a
    bucket, the bucket's permissions decide: keep it private, since reading a result can run code of
    its writer.
    """

    def __init__(self, url: str | os.PathLike[str], limit: int | None = None) -> None:
        text = os.fspath(url)
        fault = url_fault(text)
        if fault is not None:
            raise ManifestError(f"the URL of the results store {fault.problem}", hint=fault.hint)
        #: Absolute URL of the store.
        self.url = absolute_url(text, Path.cwd())
        #: Largest size in bytes. Processes that store results enforce it once an hour. With None,
        #: only ``collect`` removes results.
        self.limit = limit
        self.reports = Reports()
        directory = _directory_of(self.url)
        self._place: EntryBackend = Folder(directory) if directory else Objects(self.url)
        self._leases = Leases(directory) if directory else None
        #: Digests of files, stored next to the results if the store is a directory.
        self.file_digests = FileDigests(directory)
        self._is_prepared = False
        self._upkeep = Upkeep(self._place, self)
        self._noted: dict[str, float] = {}
        self._lock = threading.Lock()

    @classmethod
    def open(cls, url: str | os.PathLike[str], limit: int | None = None) -> ResultStore:
        """Return a store that is usable now, creating a missing directory.
        Raises ManifestError for an invalid URL, ClusterError for a directory that belongs to
        another user or cannot be created, and ProviderError if the library for the URL's scheme is
        missing.
        """
        store = cls(url, limit)
        store._prepare()
        return store

    def __repr__(self) -> str:
        return f"ResultStore({self.url!r})"

    def __reduce__(self) -> tuple[Any, tuple[str, int | None]]:
        return shared, (self.url, self.limit)

    def get(self, key: str, at_most: int | None = None, function: Function = None) -> Found | None:
        """Return a key's result, or None if missing, unreadable or larger than ``at_most`` bytes.
        ``function`` provides the classes of the script on a worker. ValueError for an invalid key.
        """
        found = self._read(key, lambda opened: self._load(key, opened, at_most, function))
        self.reports.count("misses" if found is None else "hits")
        return found

    def entry(self, key: str) -> Entry | None:
        """Return the description of a result, or None. The result itself may be damaged."""
        return self._read(key, lambda opened: read_header(opened.source, opened.size, key)[0].entry)

    def entries(self) -> Iterator[Entry]:
        """Iterate over the descriptions of all results that can be read."""
        for stored in self._place.stored():
            entry = self.entry(stored.key)
            if entry is not None:
                yield entry

    def put(
        self,
        key: str,
        value: Any,
        *,
        parts: Mapping[str, str],
        function: str,
        cost_s: float,
        task: str = "",
        tag: str = "",
        run: str = "",
    ) -> Entry | None:
        """Store a result that took ``cost_s`` s. Return its entry, or warn and return None."""
        _check_key(key)
        try:
            payload = packed(value)
        except Exception as error:  # noqa: BLE001 - methods of the user's classes take part
            self._unpicklable(function, value, error)
            return None
        entry = Entry(
            key=key,
            parts=dict(parts),
            function=function,
            created=time.time(),
            cost_s=float(cost_s),
            size=payload.size,
            task=task,
            tag=tag,
            run=run,
            host=socket.gethostname(),
        )
        try:
            self._prepare()
            self._place.write(key, pieces_of(entry, payload), forced=cost_s >= FORCED_S)
        except (OSError, ScalableError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            self.reports.add(
                Report("unwritten", key, reason),
                f"results are not cached in {self.url}: {reason}; tasks continue",
                times=1,
            )
            return None
        self._place.index.add(entry)
        self.reports.count("stored")
        self._upkeep.after_store(self.limit)
        return entry

    def nearest(
        self, function: str, parts: Mapping[str, str], *, before: float | None = None
    ) -> Entry | None:
        """Return the function's result with the nearest key, stored no later than ``before``."""
        return self._place.index.nearest(function, parts, self.entry, before=before)

    def lease(self, key: str, owner: str) -> Lease | None:
        """Return the right to compute a result, or None if another process computes it.
        Call :meth:`get` again before the task starts, since the result may have been stored before
        the lease was free. Where leases are impossible (in a bucket or a read-only directory), the
        returned lease does not exclude other processes (``lease.excludes``), and each cluster
        avoids duplicates by its own means. Raises ValueError for an invalid key.
        """
        _check_key(key)
        if self._leases is None:
            return Lease(key)
        try:
            self._prepare()
            return self._leases.take(key, owner)
        except (OSError, ScalableError) as error:
            self.reports.add(
                Report("unleased", key, str(error)),
                f"cannot create leases in {self.url}: {error}; a result may be computed twice",
                # If nothing can be written, storing the result reports that.
                times=0 if getattr(error, "errno", None) in UNWRITABLE else 1,
            )
            return Lease(key)

    def holder(self, key: str) -> Holder | None:
        """Return the process that computes a result, or None if it is unknown."""
        _check_key(key)
        return self._leases.holder(key) if self._leases else None

    def wait_for(
        self, key: str, cancelled: Callable[[], bool], *, timeout_s: float | None = None
    ) -> Waited:
        """Wait until a result is stored, or no process computes it any more.
        ``cancelled`` is called at intervals of up to 2 seconds. Without ``timeout_s``, the wait
        lasts as long as the computation. Raises ValueError for an invalid key.
        """
        _check_key(key)
        return wait(
            is_free=lambda: self._is_free(key),
            exists=lambda: self._exists(key),
            cancelled=cancelled,
            timeout_s=timeout_s,
        )

    def inventory(self) -> Iterator[Item]:
        """Iterate over all entries, even unreadable ones, with the time of their last use."""
        return inventory(self._place)

    def collect(
        self, *, limit: int | None = None, max_age_s: float | None = None, dry_run: bool = False
    ) -> Collected:
        """Remove results until the store is within its limits, and files of killed processes.
        ``limit`` is in bytes, ``max_age_s`` in seconds since the last use. Results are chosen by
        last use, computing time and size, and their readers are not interrupted. A dry run removes
        nothing and reports what would be removed. Raises OSError if the store cannot be changed.
        """
        try:
            collected = collect(self._place, self.entry, limit, max_age_s, dry_run=dry_run)
        except FileNotFoundError:  # the store was never used
            return Collected(0, 0, 0, Usage(0, 0))
        if self._leases is None:
            return collected
        more = self._leases.remove_leftovers(dry_run=dry_run)
        return replace(collected, leftovers=collected.leftovers + more)

    def remove(self, keys: Iterable[str]) -> int:
        """Remove results and return their number. Raises ValueError for a bad key, or OSError."""
        removed = 0
        for key in keys:
            _check_key(key)
            removed += self._place.remove(key)
        return removed

    def usage(self) -> Usage:
        """Return the number and size of the entries, without reading them."""
        sizes = [stored.size for stored in self._place.stored()]
        return Usage(len(sizes), sum(sizes))

    def verify(self) -> Verified:
        """Read all entries and compare them with their digests, without unpickling results."""
        return verified(self._place)

    def _is_free(self, key: str) -> bool:
        with suppress(OSError):
            return self._leases is None or self._leases.is_free(key)
        return True  # the attempt to get the lease reports why

    def _exists(self, key: str) -> bool:
        with suppress(OSError, ScalableError):
            return self._place.exists(key)
        return False

    def _prepare(self) -> None:
        if not self._is_prepared:
            self._place.prepare()
            self._is_prepared = True

    def _read(self, key: str, read: Callable[[Opened], _T]) -> _T | None:
        """Return the result of ``read`` for an opened entry, or None. Report any failed read."""
        _check_key(key)
        try:
            with self._place.opened(key) as opened:
                return read(opened)
        except FileNotFoundError:
            return None
        except Unreadable as error:
            fault = error
        except (OSError, ScalableError) as error:
            fault = Unreadable("unusable", f"cannot be read: {error}")
        self.reports.add(
            Report(fault.kind, key, fault.reason),
            f"the cached result {key[:12]}... in {self.url} {fault.reason}; it is not used",
        )
        return None

    def _load(
        self, key: str, opened: Opened, at_most: int | None, function: Function
    ) -> Found | None:
        header, begun = read_header(opened.source, opened.size, key)
        if at_most is not None and header.entry.size > at_most:
            return None
        found = Found(header.entry, read_result(opened.source, header, begun, function))
        self._note_use(key, opened)
        return found

    def _note_use(self, key: str, opened: Opened) -> None:
        """Record a use, at most once every ``NOTED_S`` seconds (monotonic)."""
        now = time.monotonic()
        with self._lock:
            if now - self._noted.get(key, -NOTED_S) < NOTED_S:
                return
            if len(self._noted) >= _REMEMBERED:
                self._noted.clear()
            self._noted[key] = now
        if not 0 <= time.time() - opened.used < NOTED_S:
            self._place.note_use(key)

    def _unpicklable(self, function: str, value: Any, error: Exception) -> None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        reason = f"a result of type {kind} cannot be pickled: {type(error).__name__}: {error}"
        self.reports.add(
            Report("unpicklable", function, reason),
            f"results of {function} are not cached: {reason}; tasks continue",
        )


_opened: dict[str, ResultStore] = {}
_opening = threading.Lock()


def shared(url: str, limit: int | None = None) -> ResultStore:
    """Return the store shared by all unpickled stores of a URL in this process."""
    with _opening:
        if url not in _opened:
            _opened[url] = ResultStore(url)
        store = _opened[url]
        store.limit = store.limit if limit is None else limit
        return store


def _directory_of(url: str) -> Path | None:
    return Path(url.removeprefix("file://")) if scheme_of(url) == "file" else None


def _check_key(key: str) -> None:
    if not is_key(key):
        raise ValueError(f"{key!r} is not a task key: a key has 64 hexadecimal digits")


# Collection ---------------------------------------------------------------------------------------

logger = logging.getLogger("scalable.cache")

#: Seconds after its last write for which a temporary file may still be in use.
LEFT_S = 3600.0
_LEVELS = "levels.json"


def collect(
    place: EntryBackend,
    entry_of: Callable[[str], Entry | None],
    limit: int | None,
    max_age_s: float | None,
    *,
    dry_run: bool = False,
) -> Collected:
    """Remove results until a store is within its limits, and old temporary files.
    ``limit`` is in bytes, ``max_age_s`` in seconds since the last use. Entries that ``entry_of``
    cannot read are removed first. A dry run only counts. Raises OSError if the store cannot be
    changed.
    """
    now = place.now()
    leftovers = place.remove_leftovers(LEFT_S, dry_run=dry_run)
    stored = list(place.stored())
    old = [one for one in stored if max_age_s is not None and now - one.used > max_age_s]
    gone = {one.key for one in old if dry_run or _removed(place, one)}
    stored = [one for one in stored if one.key not in gone]
    if limit is not None and sum(one.size for one in stored) > limit:
        keys, levels = _of_least_value(place, entry_of, limit, now, stored)
        gone |= {one.key for one in keys if dry_run or _removed(place, one)}
        if not dry_run:
            document = {"times": levels.times, "values": levels.values}
            place.write_note(_LEVELS, json.dumps(document))
    before = {one.key: one.size for one in (*old, *stored)}
    stored = [one for one in stored if one.key not in gone]
    if not dry_run and (gone or place.index.is_worn()):
        kept = (entry_of(one.key) for one in stored)
        place.index.rebuild(entry for entry in kept if entry is not None)
    return Collected(
        removed=len(gone),
        size=sum(before[key] for key in gone),
        keys=tuple(sorted(gone)),
        leftovers=leftovers,
        left=Usage(len(stored), sum(one.size for one in stored)),
    )


def _of_least_value(
    place: EntryBackend,
    entry_of: Callable[[str], Entry | None],
    limit: int,
    now: float,
    stored: Sequence[Stored],
) -> tuple[Sequence[Candidate], Levels]:
    """Return the results of least value, and the levels after their removal."""
    levels = _levels(place)
    candidates = []
    for one in stored:
        entry = entry_of(one.key)
        # An unreadable entry has no value: it counts as never used.
        cost_s, used = (0.0, 0.0) if entry is None else (entry.cost_s, one.used)
        candidates.append(Candidate(one.key, one.size, cost_s, used))
    gone, level = chosen(candidates, limit, levels)
    return gone, levels.raised(now, level)


def _removed(place: EntryBackend, one: Stored | Candidate) -> bool:
    try:
        return place.remove(one.key)
    except OSError as error:
        logger.warning("the result %s... cannot be removed: %s", one.key[:12], error)
        return False


def _levels(place: EntryBackend) -> Levels:
    with suppress(ValueError, TypeError, KeyError):
        document = json.loads(place.read_note(_LEVELS) or "")
        times, values = (tuple(map(float, document[name])) for name in ("times", "values"))
        if len(times) == len(values) and list(times) == sorted(times):
            return Levels(times, values)
    return Levels()


# Eviction -----------------------------------------------------------------------------------------

#: Largest number of levels that are kept.
KEPT = 500
#: Size in bytes of the blocks in which file systems allocate space.
BLOCK = 4096


@dataclass(frozen=True)
class Candidate:
    """Result that may be removed."""

    key: str
    #: Size of the result in bytes.
    size: int
    #: Seconds that the result took to compute.
    cost_s: float
    #: Time of the last use in seconds since the epoch.
    used: float


@dataclass(frozen=True)
class Levels:
    """Level in seconds per byte, which :func:`value_of` adds to the value of recently used results.
    It rises to the value of each removed result, so unused results are removed eventually. Earlier
    levels are kept, so a read only has to record its time.
    """

    #: Seconds since the epoch, ascending.
    times: tuple[float, ...] = ()
    #: The level from each of these times on. It is 0 before the first.
    values: tuple[float, ...] = ()

    def at(self, time: float) -> float:
        position = bisect_right(self.times, time)
        return self.values[position - 1] if position else 0.0

    def raised(self, time: float, value: float) -> Levels:
        """Add a level, and return at most the ``KEPT`` newest ones."""
        last = self.times[-1] if self.times else time
        value = max(value, self.values[-1] if self.values else 0.0)
        return Levels(
            (*self.times, max(time, last))[-KEPT:],
            (*self.values, value)[-KEPT:],
        )


def value_of(candidate: Candidate, levels: Levels) -> float:
    """Return a result's value: the level at its last use plus its computing time per byte."""
    blocks = -(-max(candidate.size, 1) // BLOCK)
    return levels.at(candidate.used) + max(candidate.cost_s, 0.0) / (blocks * BLOCK)


def chosen(
    candidates: Iterable[Candidate], limit: int, levels: Levels
) -> tuple[Sequence[Candidate], float]:
    """Return the least valuable results beyond ``limit`` bytes, and the level after removal."""
    valued = sorted(
        ((value_of(one, levels), one.used, one.key, one) for one in candidates), key=_order
    )
    excess = sum(one.size for *_, one in valued) - limit
    gone: list[Candidate] = []
    level = levels.values[-1] if levels.values else 0.0
    for value, *_, one in valued:
        if excess <= 0:
            break
        gone.append(one)
        excess -= one.size
        level = max(level, value)
    return gone, level


def _order(valued: tuple[float, float, str, Candidate]) -> tuple[float, float, str]:
    return valued[:3]


# Waiting ------------------------------------------------------------------------------------------

#: Seconds between the first two checks.
FIRST_S = 0.02
#: Factor by which the intervals grow.
LONGER = 1.5
#: Largest number of seconds between two checks.
LAST_S = 2.0


def wait(
    *,
    is_free: Callable[[], bool],
    exists: Callable[[], bool],
    cancelled: Callable[[], bool],
    timeout_s: float | None,
) -> Waited:
    """Block until a result exists, no process computes it, or the caller cancels the wait."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    pause = FIRST_S
    while True:
        # Checked first, since a process stores its result before it releases the lease.
        was_free = is_free()
        if exists():
            return Waited.STORED
        if was_free:
            return Waited.FREE
        if cancelled():
            return Waited.CANCELLED
        left = LAST_S if end is None else end - time.monotonic()
        if left <= 0:
            return Waited.LATE
        time.sleep(min(pause, left))
        pause = min(pause * LONGER, LAST_S)
