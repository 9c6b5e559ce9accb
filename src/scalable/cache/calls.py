"""`CachedFunction`: a function that runs only if its result is not in the store."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from scalable.cache.checkpoints import running_cached
from scalable.cache.differences import CONTENT, differences, why_missed
from scalable.cache.errors import UnfollowedReferencesError, UnstableValueError
from scalable.cache.key import CallKey, KeyMaker, KeyOptions, digest_of
from scalable.cache.outcomes import Found, listener, unheard
from scalable.cache.store import ResultStore
from scalable.model.cache_outcomes import CacheOutcome, OutcomeKind
from scalable.protocol.operations import CALLS_ARGUMENT

logger = logging.getLogger("scalable.cache")


@lru_cache(maxsize=8)
def keys_of(store: ResultStore) -> KeyMaker:
    """Return a store's shared key maker, for keys made in this process."""
    return KeyMaker(files=store.file_digests)


@dataclass(frozen=True)
class Purpose:
    """Origin of a cached result: task name, tag and run id, empty if unknown."""

    task: str = ""
    tag: str = ""
    run: str = ""


@dataclass
class CachedFunction:
    """Function that looks up its result in a store before it runs, and stores it afterwards.
    It runs in the task's process. If several processes share the store's directory, equal tasks run
    once: the other processes wait.
    """

    function: Callable[..., Any]
    store: ResultStore
    #: None to make the key here, because an argument is the result of a task without a key.
    key: CallKey | None
    #: Arguments of :meth:`scalable.cache.key.KeyMaker.key`, used if ``key`` is None.
    options: KeyOptions = field(default_factory=KeyOptions)
    environment: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, str] | None = None
    purpose: Purpose = field(default_factory=Purpose)
    #: Seconds since 1970. A miss is explained by results that were stored before this time.
    asked_at: float = field(default_factory=time.time)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The user's function, for code that displays a task."""
        return self.function

    @property
    def __name__(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key, tell = self.key, listener()
        if key is None:
            made_from = self.options, self.environment, self.code
            try:
                key = keys_of(self.store).key(self.function, args, kwargs, *made_from)
            except UnfollowedReferencesError as error:  # code that only an argument refers to
                logger.warning("%s", error)
                if tell is not None:
                    tell(CacheOutcome(OutcomeKind.MISSED, reason=NO_KEY))
                return self.function(*args, **kwargs)
        kind = OutcomeKind.FOUND
        while (found := self.store.get(key.digest, function=self.function)) is None:
            lease = self.store.lease(key.digest, f"{socket.gethostname()}:{os.getpid()}")
            if lease is None:
                logger.debug(
                    "%s %s: another process is computing it", key.function, key.digest[:12]
                )
                self.store.wait_for(key.digest, lambda: False)
                kind = OutcomeKind.WAITED
                continue
            with lease, running_cached(key.digest, self.store.url):
                # Another process may have stored it between the first look and the lease.
                found = None
                if lease.excludes:
                    found = self.store.get(key.digest, function=self.function)
                if found is None:
                    content = self._content(key, args, kwargs)
                    found = self._with_content(key, content)
                if found is None:
                    return self._run(key, args, kwargs, content)
            break
        logger.debug("%s %s: cache hit", key.function, key.digest[:12])
        if tell is not None:
            tell(CacheOutcome(kind, saved_s=found.entry.cost_s, key=key.digest))
        return found.value()

    def _content(
        self, key: CallKey, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[str, str]:
        """Return the part with a digest of the task's code and of its arguments' content.
        It is empty if ``key`` covers the content already, or if the content is not stable.
        """
        if not key.of_results:
            return {}
        try:
            made = keys_of(self.store).key(self.function, args, kwargs, code={})
        except (UnstableValueError, UnfollowedReferencesError):
            return {}
        parts = {name: part for name, part in key.parts.items() if not _is_argument(name)}
        for name, part in made.parts.items():
            if name in key.parts or not _is_argument(name):  # else it is ignored
                parts[f"{CONTENT}:{name}"] = part
        return {CONTENT: digest_of(parts)}

    def _with_content(self, key: CallKey, content: Mapping[str, str]) -> Found | None:
        """Return the result of a task with the same code and argument content, or None."""
        near = self.store.nearest(key.function, content) if content else None
        if near is None or not content.items() <= near.parts.items():
            return None
        found = self.store.get(near.key, function=self.function)
        if found is None or not content.items() <= found.entry.parts.items():  # replaced since
            return None
        self._store(key, found.value(), found.entry.cost_s, content)
        return found

    def _run(
        self,
        key: CallKey,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        content: Mapping[str, str],
    ) -> Any:
        tell, began = listener(), time.monotonic()
        try:
            with unheard():
                value = self.function(*args, **kwargs)
        finally:
            cost_s = time.monotonic() - began
            if tell is not None:
                tell(misses_of(self.store).outcome(key, self.asked_at, cost_s))
        self._store(key, value, cost_s, content)
        return value

    def _store(self, key: CallKey, value: Any, cost_s: float, content: Mapping[str, str]) -> None:
        self.store.put(
            key.digest,
            value,
            parts={**key.parts, **content},
            function=key.function,
            cost_s=cost_s,
            task=self.purpose.task,
            tag=self.purpose.tag,
            run=self.purpose.run,
        )


def _is_argument(part: str) -> bool:
    return part.startswith("argument:")


def call_cached(remembered: CachedFunction, *args: Any, **kwargs: Any) -> Any:
    """Call a ``CachedFunction``. Used for ``map``, where each task has its own key."""
    return remembered(*args, **kwargs)


setattr(call_cached, CALLS_ARGUMENT, True)


# Misses -------------------------------------------------------------------------------------------

#: Number of misses of each function that are always compared with earlier results.
ALWAYS: Final = 100
#: Largest share of a function's running time that is spent on comparing more of them.
SHARE: Final = 0.01
#: Reason of a miss that was not compared.
NOT_COMPARED: Final = "not compared with earlier results: the tasks are too short for that"
#: Reason of a task without a cache key.
NO_KEY: Final = "the code refers to something that cannot be followed, so the task has no key"
#: Largest number of parts that an outcome names.
NAMED: Final = 16


@dataclass
class _Spent:
    """Number of a function's misses in this process, and the seconds spent on them."""

    misses: int = 0
    comparing_s: float = 0.0
    running_s: float = 0.0

    def may_compare(self) -> bool:
        return self.misses <= ALWAYS or self.comparing_s <= SHARE * self.running_s


class Misses:
    """Finds reasons for cache misses, within a share of each function's running time."""

    def __init__(self, store: ResultStore) -> None:
        self._store = store
        self._spent: dict[str, _Spent] = {}
        self._lock = threading.Lock()

    def outcome(self, key: CallKey, asked_at: float, running_s: float) -> CacheOutcome:
        """Return the outcome of a task that ran. Must be called before its result is stored.
        Ignores results stored after ``asked_at`` (seconds since 1970) by concurrent tasks.
        """
        with self._lock:
            spent = self._spent.setdefault(key.function, _Spent())
            spent.misses += 1
            spent.running_s += running_s
            if not spent.may_compare():
                return CacheOutcome(OutcomeKind.MISSED, reason=NOT_COMPARED, key=key.digest)
        began = time.perf_counter()
        found = self._compared(key, asked_at)
        with self._lock:
            spent.comparing_s += time.perf_counter() - began
        return found

    def _compared(self, key: CallKey, asked_at: float) -> CacheOutcome:
        fault = self._store.reports.latest_about(key.digest)
        if fault is not None:
            reason = f"the stored result {fault.reason}"
            return CacheOutcome(OutcomeKind.MISSED, reason=reason, key=key.digest)
        nearest = self._store.nearest(key.function, key.parts, before=asked_at)
        parts = None if nearest is None else nearest.parts
        changed = () if parts is None else differences(key.function, key.parts, parts)
        return CacheOutcome(
            OutcomeKind.MISSED,
            reason=why_missed(key.function, key.parts, parts),
            changed=tuple(each.part for each in changed[:NAMED]),
            key=key.digest,
            nearest="" if nearest is None else nearest.key,
        )


@lru_cache(maxsize=8)
def misses_of(store: ResultStore) -> Misses:
    """Return this process's finder of miss reasons for a store."""
    return Misses(store)
