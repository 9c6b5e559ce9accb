"""The calls of a run whose remembered results would be found again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from scalable.caching.code import options_of
from scalable.caching.decorator import own_function
from scalable.caching.entries import Entry, is_key
from scalable.caching.errors import (
    MovableImageError,
    UnfollowedReferencesError,
    UnstableValueError,
)
from scalable.caching.file_digests import digest_of_file
from scalable.caching.images import image_identity
from scalable.caching.key import KeyMaker, KeyOptions
from scalable.caching.store import ResultStore
from scalable.providers.registry import provider_traits
from scalable.session.compared import Compared
from scalable.settings import results_dir
from scalable.spec import DeploymentSpec
from scalable.spec.remembering import Remembering
from scalable.telemetry.remembered import KeyedCalls, keyed_calls
from scalable.units import counted

_ARGUMENT: Final = "argument:"
_ENVIRONMENT: Final = "environment:"
_IMAGE: Final = "image"
#: Number of entries that are read at once: a bucket takes its time for each.
_READERS: Final = 16


@dataclass(frozen=True)
class RememberedAgain:
    """The calls of a run's tasks with ``cache: true``.

    Attributes
    ----------
    spec
        What the manifest says.
    store
        Where the results are remembered. It need not exist.
    calls
        Task -> its calls by their keys.
    """

    spec: DeploymentSpec
    store: ResultStore
    calls: Mapping[str, KeyedCalls]

    @classmethod
    def of(cls, spec: DeploymentSpec, rows: Sequence[Mapping[str, Any]]) -> RememberedAgain:
        """Return the calls of a run.

        Parameters
        ----------
        spec
            What the manifest says.
        rows
            Rows of the run's remembered.jsonl.
        """
        says = Remembering.of(spec)
        calls = {task: keyed_calls(rows, task) for task in sorted(says.tasks)}
        return cls(spec, ResultStore(says.url or results_dir()), calls)

    @cached_property
    def _entries(self) -> Mapping[str, Entry]:
        """Key -> description of the result; of those that are stored."""
        told = {key for calls in self.calls.values() for key in calls.numbers}
        keys = sorted(filter(is_key, told))
        with ThreadPoolExecutor(_READERS) as readers:
            found = readers.map(self.store.entry, keys)
            return {entry.key: entry for entry in found if entry is not None}

    @property
    def functions(self) -> set[str]:
        """Names of the functions of the stored results."""
        return {entry.function for entry in self._entries.values()}

    def compared(self, functions: Mapping[str, Any]) -> Compared:
        """Return the calls whose results are stored, compared with functions as they are now.

        Parameters
        ----------
        functions
            Name with the module -> function, without those that are not found.
        """
        found, keys = Compared(), KeyMaker(files=self.store.file_digests)
        for task, calls in self.calls.items():
            environment = self._environment(self.spec.tasks[task].component)
            parts: dict[str, Mapping[str, str] | None] = {}
            for key, number in calls.numbers.items():
                if (entry := self._entries.get(key)) is None:
                    continue
                name = entry.function
                if name not in parts:
                    parts[name] = _parts(keys, functions.get(name), environment)
                now = parts[name]
                if now is None:
                    found.incomparable.add(name)
                if now is not None and is_same(now, entry.parts):
                    found.same[task] += number
                else:
                    found.differs(task, name)
        return found

    def about_unknown(self, run: str) -> Iterator[str]:
        """Yield a sentence about each task with calls whose keys the run's record does not have."""
        for task, calls in self.calls.items():
            if calls.unknown:
                yield (
                    f"{task}: {counted(calls.unknown, 'call')} expected to run, because the record "
                    f"of {run} does not have the keys."
                )

    def _environment(self, tag: str) -> Mapping[str, str] | None:
        """Return the parts of the keys of a tag; None if its results cannot be remembered."""
        parts = Remembering.of(self.spec).environments.get(tag, {})
        if _IMAGE not in parts:
            return parts
        here = provider_traits(self.spec.provider_name).on_this_machine
        digests = self.store.file_digests
        try:
            image = image_identity(
                parts[_IMAGE], lambda file: digest_of_file(file, digests), here=here
            )
        except (MovableImageError, OSError):
            return None
        return {**parts, _IMAGE: image}


def _parts(
    keys: KeyMaker, function: Any, environment: Mapping[str, str] | None
) -> Mapping[str, str] | None:
    """Return the parts that the keys of a function's calls share; None if they have no keys."""
    if function is None or environment is None:
        return None
    options = options_of(function) or KeyOptions()
    try:
        made = keys.key(own_function(function), (), {}, options, environment)
    except (UnfollowedReferencesError, UnstableValueError, OSError):
        return None
    return {name: part for name, part in made.parts.items() if not name.startswith(_ARGUMENT)}


def is_same(now: Mapping[str, str], before: Mapping[str, str]) -> bool:
    """Return whether the parts of a stored key are those of now, except for arguments.

    Arguments may bring code of their own, and a call its own ``cache=KeyOptions(...)``: neither is
    compared.
    """
    return now.items() <= before.items() and _around(now) == _around(before)


def _around(parts: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return {
        (name, part)
        for name, part in parts.items()
        if name == _IMAGE or name.startswith(_ENVIRONMENT)
    }
