"""`ResultStore`: results of earlier calls by their keys."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from scalable.caching.collection import collect
from scalable.caching.entries import (
    Entry,
    Unreadable,
    is_key,
    pieces_of,
    read_header,
    read_result,
)
from scalable.caching.file_digests import FileDigests
from scalable.caching.folders import NOTED_S, Folder
from scalable.caching.inventory import Item, inventory, verified
from scalable.caching.leases import UNWRITABLE, Holder, Lease, Leases
from scalable.caching.objects import Objects
from scalable.caching.outcomes import Collected, Found, Usage, Verified, Waited
from scalable.caching.payloads import Function, packed
from scalable.caching.places import Opened, Place
from scalable.caching.reports import Report, Reports
from scalable.caching.upkeep import Upkeep
from scalable.caching.waiting import wait
from scalable.errors import ManifestError, ScalableError
from scalable.storage import absolute_url, scheme_of, url_fault

_T = TypeVar("_T")

#: Largest number of keys whose last use this process remembers.
_REMEMBERED = 100_000
#: Smallest running time in seconds of a call whose result is forced to the disk when it is stored:
#: others are computed again sooner than a busy disk confirms them, if power is lost.
FORCED_S = 1.0


class ResultStore:
    """Results of earlier calls by their keys.

    Anything that is wrong with an entry makes it a miss, and anything that is wrong with the place
    leaves a result unwritten: neither raises an error. ``reports`` tells how often that happened.
    The store pickles as its URL: another process opens it when it first uses it.

    In a directory, results are read only from files that belong to this user and that nobody else
    can change. In a bucket, the permissions of the bucket decide who can write results: keep them
    to yourself, since reading a result can run code of whoever wrote it.

    Parameters
    ----------
    url
        URL of a directory (``file:``), a bucket with a prefix (``s3://``, ``gs://``), or
        ``memory://``; or the path of a directory.
    limit
        Largest size in bytes, to which processes that store results reduce it once an hour; None
        leaves that to :meth:`collect`.

    Attributes
    ----------
    url
        URL without relative parts.
    reports
        Counts of this process, and what could not be read or written.
    file_digests
        Digests of files, kept beside the results of a directory.
    """

    def __init__(self, url: str | os.PathLike[str], limit: int | None = None) -> None:
        text = os.fspath(url)
        fault = url_fault(text)
        if fault is not None:
            raise ManifestError(f"the URL of a store of results {fault.problem}", hint=fault.hint)
        self.url = absolute_url(text, Path.cwd())
        self.limit = limit
        self.reports = Reports()
        directory = _directory_of(self.url)
        self._place: Place = Folder(directory) if directory else Objects(self.url)
        self._leases = Leases(directory) if directory else None
        self.file_digests = FileDigests(directory)
        self._is_prepared = False
        self._upkeep = Upkeep(self._place, self)
        self._noted: dict[str, float] = {}
        self._lock = threading.Lock()

    @classmethod
    def open(cls, url: str | os.PathLike[str], limit: int | None = None) -> ResultStore:
        """Return a store whose place is known to be usable.

        Parameters
        ----------
        url, limit
            See :class:`ResultStore`. A missing directory is made.

        Raises
        ------
        ManifestError
            When the URL is none.
        ClusterError
            When a directory belongs to another user, or cannot be made.
        ProviderError
            When the library for the URL's scheme is not installed.
        """
        store = cls(url, limit)
        store._prepare()
        return store

    def __repr__(self) -> str:
        return f"ResultStore({self.url!r})"

    def __reduce__(self) -> tuple[Any, tuple[str, int | None]]:
        return shared, (self.url, self.limit)

    def get(self, key: str, at_most: int | None = None, function: Function = None) -> Found | None:
        """Return the result of a key; None if there is none that can be read.

        Parameters
        ----------
        key
            Key of a call.
        at_most
            Largest size in bytes that is read; None for any.
        function
            Function of the call, which brings the classes of the script to a worker.

        Raises
        ------
        ValueError
            When the text is not a key.
        """
        found = self._read(key, lambda opened: self._load(key, opened, at_most, function))
        self.reports.count("misses" if found is None else "hits")
        return found

    def entry(self, key: str) -> Entry | None:
        """Return the description of a result; None if there is none that can be read.

        The result itself is not read: :meth:`get` may still find that it is not whole.
        """
        return self._read(key, lambda opened: read_header(opened.source, opened.size, key)[0].entry)

    def entries(self) -> Iterator[Entry]:
        """Iterate over the descriptions of all results. What cannot be read is left out."""
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
        """Store a result; None if that cannot be done, for which there is one warning.

        Parameters
        ----------
        key
            Key of the call.
        value
            Its result.
        parts
            Name of a part of the key to its digest or text.
        function
            Qualified name of the function.
        cost_s
            Seconds that the call ran.
        task, tag, run
            Task, tag and run of the call.

        Raises
        ------
        ValueError
            When the text is not a key.
        """
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
                f"results are not remembered in {self.url}: {reason}; calls go on",
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
        """Return the result of a function whose key has most equal parts; None if there is none.

        A result for equal arguments is nearer than others. Of several the latest is returned.

        Parameters
        ----------
        function, parts
            Qualified name of the function, and parts of the key of a call.
        before
            Time in seconds since 1970; later results are left out.
        """
        return self._place.index.nearest(function, parts, self.entry, before=before)

    def lease(self, key: str, owner: str) -> Lease | None:
        """Return the right to compute a result; None if somebody else is computing it.

        Look again with :meth:`get` before the call begins: the result may have been stored before
        the lease was free. Where there can be no leases (in a bucket, or in a directory that cannot
        be written), the lease that is returned excludes nobody (``lease.excludes``): each cluster
        then computes a result at most once by its own means.

        Parameters
        ----------
        key
            Key of the call.
        owner
            Name of whoever computes, for those who wait.

        Raises
        ------
        ValueError
            When the text is not a key.
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
                f"there are no leases in {self.url}: {error}; a result may be computed twice",
                # Where nothing can be written, storing the result says so.
                times=0 if getattr(error, "errno", None) in UNWRITABLE else 1,
            )
            return Lease(key)

    def holder(self, key: str) -> Holder | None:
        """Return who computes a result at the moment; None if that is not known."""
        _check_key(key)
        return self._leases.holder(key) if self._leases else None

    def wait_for(
        self, key: str, cancelled: Callable[[], bool], *, timeout_s: float | None = None
    ) -> Waited:
        """Wait until a result is stored, or nobody computes it any more.

        Parameters
        ----------
        key
            Key of the call.
        cancelled
            Whether to give up; asked at intervals of up to 2 seconds.
        timeout_s
            Seconds after which to give up; None waits as long as somebody computes.

        Raises
        ------
        ValueError
            When the text is not a key.
        """
        _check_key(key)
        return wait(
            is_free=lambda: self._is_free(key),
            exists=lambda: self._exists(key),
            cancelled=cancelled,
            timeout_s=timeout_s,
        )

    def inventory(self) -> Iterator[Item]:
        """Iterate over all entries with their last use, also over those that cannot be read."""
        return inventory(self._place)

    def collect(
        self, *, limit: int | None = None, max_age_s: float | None = None, dry_run: bool = False
    ) -> Collected:
        """Remove results until the store is within its limits, and what killed processes left.

        Results go by last use, by the time that they took to compute, and by size. Who reads one
        at the moment goes on.

        Parameters
        ----------
        limit
            Largest size in bytes of all results; None for any.
        max_age_s
            Largest time in seconds since the last use; None for any.
        dry_run
            Whether nothing is removed: the answer tells what would be, without leftovers.

        Raises
        ------
        OSError
            When the store cannot be changed.
        """
        collected = collect(self._place, self.entry, limit, max_age_s, dry_run=dry_run)
        if self._leases is None or dry_run:
            return collected
        more = self._leases.remove_leftovers()
        return replace(collected, leftovers=collected.leftovers + more)

    def remove(self, keys: Iterable[str]) -> int:
        """Remove results; return how many there were. Who reads one at the moment goes on.

        Raises
        ------
        ValueError
            When a text is not a key.
        OSError
            When a result cannot be removed.
        """
        removed = 0
        for key in keys:
            _check_key(key)
            removed += self._place.remove(key)
        return removed

    def usage(self) -> Usage:
        """Return the number and the size of the entries. They are not read."""
        sizes = [stored.size for stored in self._place.stored()]
        return Usage(len(sizes), sum(sizes))

    def verify(self) -> Verified:
        """Read all entries, and compare them with their digests. Results are not unpickled."""
        return verified(self._place)

    def _is_free(self, key: str) -> bool:
        with suppress(OSError):
            return self._leases is None or self._leases.is_free(key)
        return True  # whoever tries to get the lease learns why

    def _exists(self, key: str) -> bool:
        with suppress(OSError, ScalableError):
            return self._place.exists(key)
        return False

    def _prepare(self) -> None:
        if not self._is_prepared:
            self._place.prepare()
            self._is_prepared = True

    def _read(self, key: str, read: Callable[[Opened], _T]) -> _T | None:
        """Return the outcome of reading an opened entry; None, with a report, if it is none."""
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
            f"the remembered result {key[:12]}... in {self.url} {fault.reason}: it is not used",
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
        """Note a use, at most once in a while, whatever the clocks say."""
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
            f"results of {function} are not remembered: {reason}; calls go on",
        )


_opened: dict[str, ResultStore] = {}
_opening = threading.Lock()


def shared(url: str, limit: int | None = None) -> ResultStore:
    """Return the store of a URL that all unpickled stores of this process are."""
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
        raise ValueError(f"{key!r} is not the key of a call: 64 hexadecimal digits")
