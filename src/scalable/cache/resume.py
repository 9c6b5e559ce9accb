"""Results of a run, kept for the runs that resume it: they are the cache of the next run.

Results of equal tasks are numbered and used once, so a function that draws random numbers gives as
many samples as it has tasks. A process takes a number by adding its entry to the new run.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from types import FunctionType
from typing import Any, Final

from scalable.cache.calls import (
    Purpose,
    WrappedFunction,
    keys_of,
    listener,
    misses_of,
    warn_once,
)
from scalable.cache.entries import Unreadable
from scalable.cache.errors import UnfollowedReferencesError, UnstableValueError
from scalable.cache.key import CallKey, KeyOptions, digest_of, name_of
from scalable.cache.store import Found, ResultStore, Stored, path_of
from scalable.errors import ScalableError
from scalable.model.cache_outcomes import CacheOutcome, OutcomeKind

logger = logging.getLogger("scalable.cache")

#: Results of tasks, with ``keep_results``.
RESULTS: Final = "results"
#: Beginning of the reason of a task whose result is not kept.
NOT_KEPT: Final = "not kept: "
#: The rest of this reason if the task has ``cache=False``.
NOT_ASKED: Final = "cache=False"
#: Reason of a result that is used although the code of its function has changed.
DESPITE_CODE: Final = "its code has changed"
#: Groups of the parts of a key that do not depend on the function's code.
_NOT_CODE: Final = frozenset({"argument", "environment", "image", "python", "key"})


@dataclass(frozen=True)
class RunResults:
    """Results of one run. They pickle as paths, and are opened at the first use."""

    #: Directories of the run, and of the run that it resumes.
    run: str
    resumed: str | None = None
    #: Largest size of the results in bytes, or None.
    limit: int | None = None
    #: True if results of the resumed run count even if the code of their tasks has changed.
    despite_code: bool = False

    def __reduce__(self) -> tuple[Any, tuple[str, str | None, int | None, bool]]:
        return results_of, (self.run, self.resumed, self.limit, self.despite_code)

    @cached_property
    def store(self) -> ResultStore:
        return ResultStore(Path(self.run) / RESULTS, self.limit)

    @cached_property
    def earlier(self) -> ResultStore | None:
        return None if self.resumed is None else ResultStore(Path(self.resumed) / RESULTS)

    @cached_property
    def is_here(self) -> bool:
        """True if this process can read the run's directory. A container might lack it."""
        return Path(self.run).is_dir()

    @cached_property
    def _next(self) -> dict[str, int]:
        """Numbers to look at first, of keys with several results."""
        return {}

    def take(self, key: CallKey, function: Callable[..., Any]) -> Found | None:
        """Take over the resumed run's next result for a key, or return None if there is none."""
        if self.earlier is None:
            return None
        for number, one in self._numbered(key):
            try:
                self.store.adopt(one, self.earlier)
            except FileExistsError:  # another task has taken it
                continue
            except FileNotFoundError:
                return None
            except (OSError, ScalableError, Unreadable) as error:
                warn_once(f"results of the resumed run cannot be used: {error}")
                return None
            self._took(key, number)
            found = self.store.get(one, function=function)
            if found is None:  # it is damaged
                self.store.remove([Stored(path_of(one), 0, 0.0)])
            return found
        return None

    def take_despite_code(self, key: CallKey, function: Callable[..., Any]) -> Found | None:
        """Take over a result of the same arguments and environment, whatever the code is."""
        if not self.despite_code or self.earlier is None or not _has_own_name(function):
            return None
        newest = self.earlier.earlier(key, time.time())
        if newest is None or _without_code(newest.parts) != _without_code(key.parts):
            return None
        return self.take(CallKey(digest_of(newest.parts), newest.parts, key.function), function)

    def keep(self, key: CallKey, value: Any, cost_s: float, purpose: Purpose) -> bool:
        """Store a result, and return whether it is stored."""
        for number, one in self._numbered(key):
            try:
                stored = self.store.put(
                    one, value, cost_s=cost_s, task=purpose.task, tag=purpose.tag, replace=False
                )
            except FileExistsError:  # another task has this number
                continue
            self._took(key, number)
            return stored is not None
        return False

    def _numbered(self, key: CallKey) -> Iterator[tuple[int, CallKey]]:
        for number in itertools.count(self._next.get(key.digest, 1)):
            digest = key.digest if number == 1 else _numbered(key.digest, number)
            yield number, replace(key, digest=digest)

    def _took(self, key: CallKey, number: int) -> None:
        if number > 1:  # most tasks have no equal: nothing is stored for them
            self._next[key.digest] = number + 1


def _numbered(digest: str, number: int) -> str:
    """Return the digest of the n-th task with an equal key, counted from 1."""
    return blake2b(f"{digest} {number}".encode(), digest_size=32).hexdigest()


def _has_own_name(function: Callable[..., Any]) -> bool:
    """Return whether no other function of a module has a function's name."""
    is_plain = isinstance(function, FunctionType) and not function.__closure__
    return is_plain and "<" not in function.__qualname__


def _without_code(parts: Mapping[str, str]) -> dict[str, str]:
    return {name: part for name, part in parts.items() if name.partition(":")[0] in _NOT_CODE}


@lru_cache(maxsize=8)
def results_of(run: str, *others: Any) -> RunResults:
    """Return the results of a run. All callers in this process share the object."""
    return RunResults(run, *others)


@dataclass
class ResumableFunction(WrappedFunction):
    """Function that takes its result from the resumed run, or runs and stores its result.
    It runs in the task's process, which has the arguments. A task without a key runs.
    """

    results: RunResults
    #: Key parts of the function's code, or None if they are unknown, and of its component.
    code: Mapping[str, str] | None
    environment: Mapping[str, str] = field(default_factory=dict)
    purpose: Purpose = field(default_factory=Purpose)
    #: Why results are not stored, or empty.
    unkept: str = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.results.is_here:
            logger.debug("%s: this process cannot see the run's directory", self.__name__)
            return self.function(*args, **kwargs)
        key, reason = (None, self.unkept) if self.unkept else self._key(args, kwargs)
        if key is None:
            self._tell(CacheOutcome(OutcomeKind.MISSED, reason=NOT_KEPT + reason), always=True)
            return self.function(*args, **kwargs)
        found, despite = self.results.take(key, self.function), ""
        if found is None:
            found, despite = self.results.take_despite_code(key, self.function), DESPITE_CODE
        if found is not None:
            hit = CacheOutcome(OutcomeKind.FOUND, saved_s=found.entry.cost_s, reason=despite)
            self._tell(replace(hit, key=found.entry.key))
            return found.value()
        return self._run(key, args, kwargs)

    def _run(self, key: CallKey, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        asked_at, began = time.time(), time.monotonic()
        try:
            value = self.function(*args, **kwargs)
        finally:
            cost_s = time.monotonic() - began
            earlier = self.results.earlier
            if earlier is not None and listener() is not None:
                self._tell(misses_of(earlier).outcome(key, asked_at, cost_s))
        self.results.keep(key, value, cost_s, self.purpose)
        return value

    def _key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[CallKey | None, str]:
        """Return the key of a task, or None and the reason."""
        made_from = KeyOptions(), self.environment, self.code
        try:
            keys = keys_of(self.results.store, as_sent=True)
            return keys.key(self.function, args, kwargs, *made_from), ""
        except UnfollowedReferencesError as error:  # code that only an argument refers to
            reason = "; ".join(error.sentences)
        except UnstableValueError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - methods of the arguments' classes take part
            reason = repr(error)
        name = name_of(self.function)
        warn_once(f"results of {name} are not kept: {reason}")
        return None, reason

    def _tell(self, outcome: CacheOutcome, *, always: bool = False) -> None:
        """Report to the listener, if any, whether the resumed run had the result."""
        tell, resumed = listener(), self.results.resumed
        if tell is not None and (always or resumed is not None):
            tell(replace(outcome, resumed=Path(resumed).name if resumed else ""))


def remove_expired(runs: Path, age_s: float, *, except_for: Path | None = None) -> int:
    """Delete the results of runs whose last task is too old, and return the number of runs."""
    removed = 0
    for results in runs.glob(f"run-*/{RESULTS}"):
        if results.parent == except_for or results.is_symlink():
            continue
        try:
            written = max(p.stat().st_mtime for p in (results, *results.glob("*/*")))
            if time.time() - written > age_s:
                # Under its new name, no process takes what is left of it for results.
                aside = results.with_name(f".removed-{secrets.token_hex(4)}")
                shutil.rmtree(results.rename(aside))
                removed += 1
        except OSError as error:
            logger.debug("could not remove the old results in %s: %s", results, error)
    return removed
