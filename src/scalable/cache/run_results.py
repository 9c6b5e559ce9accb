"""`RunResults`: the results of one run, stored for the runs that resume it.

Results of equal tasks are numbered and used once, so a function that draws random numbers gives as
many samples as it has calls. A process takes a number by adding its entry.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from scalable.cache.entries import Entry, Unreadable, pieces_of
from scalable.cache.folders import Folder
from scalable.cache.outcomes import Found
from scalable.cache.payloads import packed
from scalable.cache.run_calls import CallLog, EarlierCalls
from scalable.cache.store import FORCED_S, ResultStore
from scalable.cache.upkeep import Upkeep
from scalable.errors import ScalableError

logger = logging.getLogger("scalable.cache")

#: Results of tasks, with ``keep_results``.
RESULTS: Final = "results"


class RunResults:
    """Results of one run. They pickle as paths, and are opened at the first use."""

    def __init__(
        self,
        run: str,
        resumed: str | None = None,
        limit: int | None = None,
        despite_code: bool = False,
    ) -> None:
        # The limit is the largest size of the results in bytes, or None.
        self._made_of = run, resumed, limit, despite_code
        #: True if results of the resumed run count even if the code of their tasks has changed.
        self.despite_code = despite_code
        self._directory = Path(run) / RESULTS
        self.log = CallLog(self._directory / "calls")
        self._folder = Folder(self._directory)
        self._earlier = None if resumed is None else Folder(Path(resumed) / RESULTS)
        self._is_prepared = False
        self._number: dict[str, int] = {}
        self._told: set[str] = set()

    def __reduce__(self) -> tuple[Any, tuple[str, str | None, int | None, bool]]:
        return results_of, self._made_of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunResults) and self._made_of == other._made_of

    def __hash__(self) -> int:
        return hash(self._made_of)

    @cached_property
    def store(self) -> ResultStore:
        return ResultStore(self._directory)

    @cached_property
    def is_here(self) -> bool:
        """True if this process can read the run's directory. A container might lack it."""
        return self._directory.parent.is_dir()

    @property
    def resumes(self) -> bool:
        return self._earlier is not None

    @cached_property
    def earlier_calls(self) -> EarlierCalls:
        resumed = self._made_of[1]
        return EarlierCalls(() if resumed is None else results_of(resumed).log.calls())

    @cached_property
    def _upkeep(self) -> Upkeep:
        return Upkeep(self._folder, self.store)

    def take(self, digest: str, function: Callable[..., Any] | None = None) -> Found | None:
        """Take over the resumed run's next result for a key, or return None if there is none."""
        if self._earlier is None:
            return None
        for number, key in self._numbered(digest):
            try:
                self._adopt(key, self._earlier)
            except FileExistsError:  # another task has taken it
                continue
            except FileNotFoundError:
                return None
            except (OSError, ScalableError, Unreadable) as error:
                self.warn("take", f"results of the resumed run cannot be used: {error}")
                return None
            self._took(digest, number)
            found = self.store.get(key, function=function)
            if found is None:
                self.store.remove([key])
            return found
        return None

    def keep(self, digest: str, value: Any, described: Entry) -> bool:
        """Store a result, and set the entry's key and size. Return False if that fails."""
        try:
            payload = packed(value)
        except Exception as error:  # noqa: BLE001 - methods of the value's class take part
            self.warn(described.function, f"results of {described.function} are not kept: {error}")
            return False
        for number, key in self._numbered(digest):
            entry = replace(described, key=key, size=payload.size)
            forced = entry.cost_s >= FORCED_S
            try:
                self._prepare()
                self._folder.write(key, pieces_of(entry, payload), forced=forced, replace=False)
            except FileExistsError:
                continue
            except (OSError, ScalableError) as error:
                self.warn("keep", f"results are not kept in {self._directory}: {error}")
                return False
            self._took(digest, number)
            self._upkeep.after_store(self._made_of[2])
            return True
        return False

    def _adopt(self, key: str, earlier: Folder) -> None:
        """Add an entry of the resumed run as a hard link, or else as a copy."""
        try:
            self._prepare()
            self._folder.link(key, earlier)
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError as error:  # another file system, or one without links
            logger.debug("the result %s... is copied, not linked: %s", key[:12], error)
            with earlier.opened(key) as opened:
                data = opened.source.read(opened.size) or b""
                self._folder.write(key, [data], replace=False)

    def _prepare(self) -> None:
        if not self._is_prepared:
            self._folder.prepare()
            self._is_prepared = True

    def warn(self, about: str, sentence: str) -> None:
        """Log a warning, once in this process for each subject."""
        if about not in self._told:
            self._told.add(about)
            logger.warning("%s", sentence)

    def _numbered(self, digest: str) -> Iterator[tuple[int, str]]:
        for number in itertools.count(self._number.get(digest, 1)):
            yield number, key_of(digest, number)

    def _took(self, digest: str, number: int) -> None:
        if number > 1:  # most tasks have no equal: nothing is stored for them
            self._number[digest] = number + 1


@lru_cache(maxsize=8)
def results_of(run: str, *others: Any) -> RunResults:
    """Return the results of a run. All callers in this process share the object."""
    return RunResults(run, *others)


def remove_expired(runs: Path, age_s: float, *, except_for: Path | None = None) -> int:
    """Delete the results of runs whose last task is too old, and return the number of runs."""
    removed = 0
    for results in runs.glob(f"run-*/{RESULTS}"):
        if results.parent == except_for or results.is_symlink():
            continue
        try:
            written = max(p.stat().st_mtime for p in (results, *results.glob("calls/*.jsonl")))
            if time.time() - written > age_s:
                # Under its new name, no process takes what is left of it for results.
                aside = results.with_name(f".removed-{secrets.token_hex(4)}")
                shutil.rmtree(results.rename(aside))
                removed += 1
        except OSError as error:
            logger.debug("could not remove the old results in %s: %s", results, error)
    return removed


def key_of(digest: str, number: int) -> str:
    """Return the entry key of the n-th task with an equal key, counted from 1."""
    if number == 1:
        return digest
    return blake2b(f"{digest} {number}".encode(), digest_size=32).hexdigest()
