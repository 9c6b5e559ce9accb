"""`RememberedFunction`: a function that runs only where its result is not in the store."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from scalable.caching.checkpoints import running_remembered
from scalable.caching.errors import UnfollowedReferencesError
from scalable.caching.hearing import listener, unheard
from scalable.caching.key import CallKey, KeyMaker, KeyOptions
from scalable.caching.misses import NO_KEY, misses_of
from scalable.caching.store import ResultStore
from scalable.protocol.operations import CALLS_ARGUMENT
from scalable.spec.remembered import Kind, RememberedOutcome

logger = logging.getLogger("scalable.caching")


@lru_cache(maxsize=8)
def keys_of(store: ResultStore) -> KeyMaker:
    """Return what makes the keys of calls that only this process can make, for a store."""
    return KeyMaker(files=store.file_digests)


@dataclass(frozen=True)
class Purpose:
    """For whom a result is remembered.

    Attributes
    ----------
    task, tag
        Task and tag of the call, or "".
    run
        Id of the run, or "".
    """

    task: str = ""
    tag: str = ""
    run: str = ""


@dataclass
class RememberedFunction:
    """A function that is looked up in a store before it runs, and whose result is stored after.

    It runs where the call runs: on a worker, which has the result. Two processes that are given
    the same call at once run it once, where the store is a directory that both see: one of them
    waits for the other.

    Parameters
    ----------
    function
        Function of the user.
    store
        The store of results.
    key
        Key of the call; None to make it here, from the arguments' content, because an argument is
        the result of a call that has no key.
    options, environment, code
        As in :meth:`scalable.caching.key.KeyMaker.key`, where the key is made here.
    purpose
        Notes for the entry.
    asked_at
        Time of the call in seconds since 1970. The reason of a miss is told beside results that
        were stored before.
    """

    function: Callable[..., Any]
    store: ResultStore
    key: CallKey | None
    options: KeyOptions = field(default_factory=KeyOptions)
    environment: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, str] | None = None
    purpose: Purpose = field(default_factory=Purpose)
    asked_at: float = field(default_factory=time.time)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The user's function, for everything that shows a call."""
        return self.function

    @property
    def __name__(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the call, from the store or by running the function."""
        key, tell = self.key, listener()
        if key is None:
            made_from = self.options, self.environment, self.code
            try:
                key = keys_of(self.store).key(self.function, args, kwargs, *made_from)
            except UnfollowedReferencesError as error:  # code that only an argument refers to
                logger.warning("%s", error)
                if tell is not None:
                    tell(RememberedOutcome(Kind.MISSED, reason=NO_KEY))
                return self.function(*args, **kwargs)
        kind = Kind.FOUND
        while (found := self.store.get(key.digest, function=self.function)) is None:
            lease = self.store.lease(key.digest, f"{socket.gethostname()}:{os.getpid()}")
            if lease is None:
                logger.debug("%s %s: somebody else computes it", key.function, key.digest[:12])
                self.store.wait_for(key.digest, lambda: False)
                kind = Kind.WAITED
                continue
            with lease, running_remembered(key.digest, self.store.url):
                # It may have been stored between the first look and the lease.
                found = None
                if lease.excludes:
                    found = self.store.get(key.digest, function=self.function)
                if found is None:
                    return self._run(key, args, kwargs)
            break
        logger.debug("%s %s: found", key.function, key.digest[:12])
        if tell is not None:
            tell(RememberedOutcome(kind, saved_s=found.entry.cost_s, key=key.digest))
        return found.value()

    def _run(self, key: CallKey, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        tell, began = listener(), time.monotonic()
        try:
            with unheard():
                value = self.function(*args, **kwargs)
        finally:
            cost_s = time.monotonic() - began
            if tell is not None:
                tell(misses_of(self.store).outcome(key, self.asked_at, cost_s))
        self.store.put(
            key.digest,
            value,
            parts=key.parts,
            function=key.function,
            cost_s=cost_s,
            task=self.purpose.task,
            tag=self.purpose.tag,
            run=self.purpose.run,
        )
        return value


def call_remembered(remembered: RememberedFunction, *args: Any, **kwargs: Any) -> Any:
    """Call a remembered function; for ``map``, where each call has a key of its own."""
    return remembered(*args, **kwargs)


setattr(call_remembered, CALLS_ARGUMENT, True)
