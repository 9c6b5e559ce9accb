"""`ResumableFunction`: a function with results stored for runs that resume this one."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

from scalable.cache.calls import Purpose, keys_of
from scalable.cache.entries import Entry
from scalable.cache.errors import UnfollowedReferencesError, UnstableValueError
from scalable.cache.key import CallKey, KeyOptions, digest_of, name_of
from scalable.cache.outcomes import listener
from scalable.cache.run_calls import Ended, RunCall
from scalable.cache.run_results import RunResults
from scalable.model.cache_outcomes import CacheOutcome, OutcomeKind

logger = logging.getLogger("scalable.cache")


@dataclass(frozen=True)
class SharedParts:
    """Key parts shared by all tasks of a function."""

    #: Parts of the function's code, or None if they are unknown.
    code: Mapping[str, str] | None
    #: Parts of its component: image and environment variables.
    environment: Mapping[str, str] = field(default_factory=dict)
    code_digest: str = ""
    environment_digest: str = ""


@dataclass
class ResumableFunction:
    """Function that takes its result from the resumed run, or runs and stores its result.
    It runs in the task's process, which has the arguments. In the key, results of other tasks count
    by their content, since equal tasks may return different results. A task without a key runs.
    """

    function: Callable[..., Any]
    results: RunResults
    shared: SharedParts
    purpose: Purpose = field(default_factory=Purpose)
    #: Why results are not stored, or empty.
    unkept: str = ""

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The user's function, for code that displays a task."""
        return self.function

    @property
    def __name__(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.results.is_here:
            logger.debug("%s: this process cannot see the run's directory", self.__name__)
            return self.function(*args, **kwargs)
        key, reason = (None, self.unkept) if self.unkept else self._key(args, kwargs)
        found = None if key is None else self.results.take(key.digest, self.function)
        if found is not None:
            self._note(Ended.ANSWERED, key, found.entry.cost_s)
            return found.value()
        if key is not None and self.results.despite_code:
            other = self.results.earlier_calls.key_despite_code(self._inputs(key))
            found = None if other is None else self.results.take(other, self.function)
            if other is not None and found is not None:
                # It stays the result of the code that it has run: a later run has to ask again.
                self._note(Ended.ANSWERED, replace(key, digest=other), found.entry.cost_s, code="")
                return found.value()
        began = time.monotonic()
        try:
            value = self.function(*args, **kwargs)
        except Exception:
            self._note(Ended.FAILED, key, time.monotonic() - began)
            raise
        self._keep(value, key, reason, time.monotonic() - began)
        return value

    def _key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[CallKey | None, str]:
        """Return the key of a task, or None and the reason."""
        made_from = KeyOptions(), self.shared.environment, self.shared.code
        try:
            return keys_of(self.results.store).key(self.function, args, kwargs, *made_from), ""
        except UnfollowedReferencesError as error:  # code that only an argument refers to
            reason = "; ".join(error.sentences)
        except UnstableValueError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - methods of the arguments' classes take part
            reason = repr(error)
        name = name_of(self.function)
        self.results.warn(name, f"results of {name} are not kept: {reason}")
        return None, reason

    def _keep(self, value: Any, key: CallKey | None, reason: str, cost_s: float) -> None:
        if key is None:
            self._note(Ended.UNKEPT, None, cost_s, reason)
            return
        described = Entry(
            key=key.digest,
            parts=dict(key.parts),
            function=key.function,
            created=time.time(),
            cost_s=cost_s,
            size=0,
            task=self.purpose.task,
            tag=self.purpose.tag,
            host=socket.gethostname(),
        )
        if self.results.keep(key.digest, value, described):
            self._note(Ended.KEPT, key, cost_s)
        else:
            self._note(Ended.UNKEPT, key, cost_s, "the result cannot be stored")

    def _inputs(self, key: CallKey) -> str:
        """Return a digest of a named function's arguments and environment, or an empty string."""
        own = self.function
        if not isinstance(own, FunctionType) or own.__closure__ or "<lambda>" in own.__qualname__:
            return ""
        same = {*self.shared.environment, "python", "key"}
        parts = {n: p for n, p in key.parts.items() if n in same or n.startswith("argument:")}
        return digest_of({**parts, "name": key.function})

    def _note(
        self,
        end: Ended,
        key: CallKey | None,
        cost_s: float,
        reason: str = "",
        *,
        code: str | None = None,
    ) -> None:
        call = RunCall(
            name_of(self.function),
            end,
            code=self.shared.code_digest if code is None else code,
            environment=self.shared.environment_digest,
            cost_s=round(cost_s, 6),
            reason=reason,
        )
        if key is not None:
            call = replace(call, key=key.digest, inputs=self._inputs(key))
        self.results.log.add(call)
        self._tell(call)

    def _tell(self, call: RunCall) -> None:
        """Report to the listener, if any, whether the resumed run had the result."""
        tell = listener()
        if tell is None or not self.results.resumes:
            return
        if call.end is Ended.ANSWERED:
            tell(CacheOutcome(OutcomeKind.FOUND, saved_s=call.cost_s, key=call.key))
        else:
            reason = f"{self.results.earlier_calls.cause(call)}, compared with the resumed run"
            tell(CacheOutcome(OutcomeKind.MISSED, reason=reason, key=call.key))
