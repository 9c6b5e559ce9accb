"""`ResumableCalls`: the functions of one client whose results are stored for resumed runs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

from scalable.caching.calls import Purpose
from scalable.caching.errors import UnfollowedReferencesError, UnstableValueError
from scalable.caching.key import KeyMaker, KeyOptions, digest_of, name_of
from scalable.caching.packages import python_version
from scalable.caching.resumable import ResumableFunction, SharedParts
from scalable.caching.run_results import results_of
from scalable.spec.remembering import Remembering

logger = logging.getLogger("scalable.client")


class ResumableCalls:
    """Replacement of the user's functions by functions whose results are stored."""

    def __init__(
        self, remembering: Callable[[], Remembering], is_remote: Callable[[], bool]
    ) -> None:
        # ``remembering`` returns the cache settings of the cluster's manifest. ``is_remote``
        # returns whether there are workers without the client's file system.
        self._remembering, self._is_remote = remembering, is_remote
        self._keys = KeyMaker()
        self._told: set[str] = set()
        #: Last function that was sent for each purpose.
        self._functions: dict[Purpose, ResumableFunction] = {}

    @property
    def keeps(self) -> bool:
        """True if results are stored."""
        return self._remembering().keeping is not None

    def function(
        self, function: Callable[..., Any], purpose: Purpose, options: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """Return the function to send: the same object until code changes that it reaches."""
        keeping = self._remembering().keeping
        if keeping is None or options.get("actor") or options.get("actors"):
            return function
        if inspect.iscoroutinefunction(function) or isinstance(function, ResumableFunction):
            return function
        if self._is_remote():
            self._warn(
                "", "results are not kept for resuming: there are workers without this file system"
            )
            return function
        environment = self._remembering().environments.get(purpose.tag, {})
        shared, unkept = self._shared(function, environment)
        last = self._functions.get(purpose)
        if last is not None and last.function is function and last.shared == shared:
            return last
        results = results_of(keeping.run, keeping.resumed, keeping.limit)
        made = ResumableFunction(function, results, shared, purpose, unkept)
        self._functions[purpose] = made
        return made

    def _shared(
        self, function: Callable[..., Any], environment: Mapping[str, str]
    ) -> tuple[SharedParts, str]:
        """Return the parts of the keys, and why results are not stored."""
        try:
            code = self._keys.code(function, KeyOptions()).parts
        except UnfollowedReferencesError as error:
            reason = "; ".join(error.sentences)
        except UnstableValueError as error:
            reason = f"it holds {error.reason}"
        else:
            around = digest_of({**environment, "python": python_version()})
            return SharedParts(code, environment, digest_of(code), around), ""
        self._warn(name_of(function), f"results of {name_of(function)} are not kept: {reason}")
        return SharedParts(None, environment), reason

    def _warn(self, about: str, sentence: str) -> None:
        if about not in self._told:
            self._told.add(about)
            logger.warning("%s", sentence)
