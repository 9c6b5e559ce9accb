"""`RememberedFunction`: a function that runs only if its result is not in the store."""

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
    """Return the cached key maker of a store, for keys that are made in this process."""
    return KeyMaker(files=store.file_digests)


@dataclass(frozen=True)
class Purpose:
    """Origin of a cached result: task name, tag and run id, each empty if unknown."""

    task: str = ""
    tag: str = ""
    run: str = ""


@dataclass
class RememberedFunction:
    """Function that looks up its result in a store before it runs, and stores it afterwards.

    It runs in the process of the task. Equal tasks in several processes run once if the store is a
    directory that all of them share: the others wait.
    """

    function: Callable[..., Any]
    store: ResultStore
    #: None to make the key here, because an argument is the result of a task without a key.
    key: CallKey | None
    #: These three make the key here; see :meth:`scalable.caching.key.KeyMaker.key`.
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
                # Another process may have stored it between the first look and the lease.
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
    """Call a ``RememberedFunction``, for ``map``, where each task has a key of its own."""
    return remembered(*args, **kwargs)


setattr(call_remembered, CALLS_ARGUMENT, True)
