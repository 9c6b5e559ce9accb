"""`CachedFunction` and `cached`: functions that run only if their results are not in the store."""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from types import MethodType
from typing import Any, Final, ParamSpec, TypeVar, overload

from scalable.cache.checkpoints import running_cached
from scalable.cache.code import OPTIONS, options_of
from scalable.cache.differences import differences, why_missed
from scalable.cache.errors import UnfollowedReferencesError
from scalable.cache.key import CallKey, KeyMaker, KeyOptions
from scalable.cache.store import ResultStore
from scalable.model.cache_outcomes import CacheOutcome, OutcomeKind
from scalable.model.deployment import CACHE_LIMIT
from scalable.protocol.operations import CALLS_ARGUMENT
from scalable.settings import results_dir

logger = logging.getLogger("scalable.cache")

_P = ParamSpec("_P")
_R = TypeVar("_R")


@lru_cache(maxsize=8)
def keys_of(store: ResultStore, *, as_sent: bool) -> KeyMaker:
    """Return a store's shared key maker, for keys of tasks or of calls in this process."""
    return KeyMaker(files=store.file_digests, as_sent=as_sent)


@dataclass(frozen=True)
class Purpose:
    """Origin of a cached result: task name, tag and run id, empty if unknown."""

    task: str = ""
    tag: str = ""
    run: str = ""


@dataclass
class WrappedFunction:
    """Function that is sent in place of the user's, and shown as the user's."""

    function: Callable[..., Any]

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The user's function, for code that displays a task."""
        return self.function

    @property
    def __name__(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))


@dataclass
class CachedFunction(WrappedFunction):
    """Function that looks up its result in a store before it runs, and stores it afterwards.
    It runs in the task's process. If several processes run equal tasks at the same time, each
    computes the result, and the last one to store it replaces the others'.
    """

    store: ResultStore
    #: None to make the key here, because an argument is the result of another task.
    key: CallKey | None
    #: Arguments of :meth:`scalable.cache.key.KeyMaker.key`, used if ``key`` is None.
    options: KeyOptions = field(default_factory=KeyOptions)
    environment: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, str] | None = None
    purpose: Purpose = field(default_factory=Purpose)
    #: Seconds since 1970. A miss is explained by results that were stored before this time.
    asked_at: float = field(default_factory=time.time)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key, tell = self.key, listener()
        if key is None:
            made_from = self.options, self.environment, self.code
            try:
                key = keys_of(self.store, as_sent=True).key(self.function, args, kwargs, *made_from)
            except UnfollowedReferencesError as error:  # code that only an argument refers to
                logger.warning("%s", error)
                if tell is not None:
                    tell(CacheOutcome(OutcomeKind.MISSED, reason=NO_KEY))
                return self.function(*args, **kwargs)
        found = self.store.get(key, function=self.function)
        if found is None:
            return self._run(key, args, kwargs)
        logger.debug("%s %s: cache hit", key.function, key.digest[:12])
        if tell is not None:
            tell(CacheOutcome(OutcomeKind.FOUND, saved_s=found.entry.cost_s, key=key.digest))
        return found.value()

    def _run(self, key: CallKey, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        with running_cached(key.digest, self.store.url):
            tell, began = listener(), time.monotonic()
            try:
                with unheard():
                    value = self.function(*args, **kwargs)
            finally:
                cost_s = time.monotonic() - began
                if tell is not None:
                    tell(misses_of(self.store).outcome(key, self.asked_at, cost_s))
            purpose = self.purpose
            self.store.put(
                key, value, cost_s=cost_s, task=purpose.task, tag=purpose.tag, run=purpose.run
            )
            return value


def call_cached(remembered: CachedFunction, *args: Any, **kwargs: Any) -> Any:
    """Call a ``CachedFunction``. Used for ``map``, where each task has its own key."""
    return remembered(*args, **kwargs)


setattr(call_cached, CALLS_ARGUMENT, True)


# The decorator ------------------------------------------------------------------------------------


@overload
def cached(function: Callable[_P, _R], /) -> Callable[_P, _R]: ...
@overload
def cached(
    *,
    version: Any = None,
    ignore: Iterable[str] = (),
    depends_on: Iterable[Any] = (),
    store: str | os.PathLike[str] | None = None,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...
def cached(
    function: Callable[..., Any] | None = None,
    /,
    *,
    version: Any = None,
    ignore: Iterable[str] = (),
    depends_on: Iterable[Any] = (),
    store: str | os.PathLike[str] | None = None,
) -> Callable[..., Any]:
    """Cache the results of a function across processes, including outside a session.

    For tasks, a client caches the results in its own store, as with ``cache=True``.

    Parameters
    ----------
    version
        Any value. A different value invalidates all earlier results.
    ignore
        Names of parameters that do not affect the result, such as a logger.
    depends_on
        Values, functions and :class:`scalable.File` objects that the result depends on, but that do
        not appear in the code. If given, references that cannot be followed are accepted.
    store
        Path or URL of the store for calls outside a client. The default is the user's own
        directory, ``$XDG_CACHE_HOME/scalable/results``.

    Raises
    ------
    UnstableArgumentError
        When the function is called with an argument whose content cannot be determined.

    Examples
    --------
    >>> @cached(version=2)
    ... def fit(data, order): ...
    """
    options = KeyOptions(version, tuple(ignore), tuple(depends_on))

    def decorate(own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        def remembered(*args: Any, **kwargs: Any) -> Any:
            opened = _opened(os.fspath(store or results_dir()))
            try:
                key = keys_of(opened, as_sent=False).key(own, args, kwargs, options)
            except UnfollowedReferencesError as error:
                warn_once(str(error))
                return own(*args, **kwargs)
            with unheard():
                return CachedFunction(own, opened, key)(*args, **kwargs)

        setattr(remembered, OPTIONS, (options, remembered))
        return remembered

    return decorate if function is None else decorate(function)


def own_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function decorated by ``scalable.cached``, or the function itself."""
    if isinstance(function, MethodType):
        return MethodType(own_function(function.__func__), function.__self__)
    if options_of(function) is None:
        return function
    own: Callable[..., Any] = vars(function)["__wrapped__"]
    return own


@functools.cache
def _opened(url: str) -> ResultStore:
    store = ResultStore.open(url)
    store.limit = store.limit or CACHE_LIMIT  # a client of this process may have set another
    return store


@lru_cache(maxsize=1024)
def warn_once(sentence: str) -> None:
    """Log a warning, once in this process."""
    logger.warning("%s", sentence)


# Outcomes -----------------------------------------------------------------------------------------

outcome_listener: ContextVar[Callable[[CacheOutcome], None] | None] = ContextVar(
    "scalable_remembered_outcomes", default=None
)


@contextmanager
def heard_by(listener: Callable[[CacheOutcome], None]) -> Iterator[None]:
    """Pass the outcomes of the cached tasks of a ``with`` block to a function."""
    token = outcome_listener.set(listener)
    try:
        yield
    finally:
        outcome_listener.reset(token)


@contextmanager
def unheard() -> Iterator[None]:
    """Suppress the outcomes of cached tasks in a block that runs within another task."""
    token = outcome_listener.set(None)
    try:
        yield
    finally:
        outcome_listener.reset(token)


def listener() -> Callable[[CacheOutcome], None] | None:
    """Return the current listener for outcomes, or None."""
    return outcome_listener.get()


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
        fault = self._store.fault_of(key)
        if fault is not None:
            reason = f"the stored result {fault}"
            return CacheOutcome(OutcomeKind.MISSED, reason=reason, key=key.digest)
        nearest = self._store.earlier(key, asked_at)
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
