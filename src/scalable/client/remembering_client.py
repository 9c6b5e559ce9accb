"""`RememberingClient`: a client that answers calls with remembered results, and counts them."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from dask.utils import funcname, key_split
from distributed import Future
from distributed.comm.core import CommClosedError

from scalable.caching.calls import Purpose, call_remembered
from scalable.caching.key import KeyOptions
from scalable.caching.outcomes import Found
from scalable.client.kept_failures import FailureKeepingClient
from scalable.client.remembering import RememberedCall, RememberedCalls
from scalable.client.resuming import ResumableCalls
from scalable.client.routing import Routing, refuse_hidden
from scalable.protocol.dask_seams.client import send_to_scheduler
from scalable.protocol.dask_seams.known_results import known_future
from scalable.protocol.operations import CARRIES, FOUND, REMEMBERING
from scalable.spec.remembering import Remembering

#: Seconds for which cache hits are counted before a message to the scheduler.
TELL_AFTER_S: Final = 1.0
#: Number of task names and tags that one message distinguishes. More are reported as others.
TOLD_NAMES: Final = 200
OTHERS: Final = ("(other names)", "")


@dataclass
class _Group:
    """Cache hits of one task name and tag: their number, and seconds saved."""

    calls: int = 0
    saved_s: float = 0.0


class FoundCalls:
    """Counter of a client's cache hits, which are sent to the scheduler once a second at most."""

    def __init__(
        self,
        later: Callable[[float, Callable[[], None]], None],
        send: Callable[[dict[str, Any]], None],
    ) -> None:
        self._later, self._send = later, send
        self._lock = threading.Lock()
        self._groups: dict[tuple[str, str], _Group] = {}

    def add(self, name: str, tag: str, saved_s: float) -> None:
        """Count a cache hit. The ``tag`` may be ""."""
        with self._lock:
            is_first = not self._groups
            group = self._groups.get((name, tag))
            if group is None:
                told_as = (name, tag) if len(self._groups) < TOLD_NAMES else OTHERS
                group = self._groups.setdefault(told_as, _Group())
            group.calls += 1
            group.saved_s += saved_s
        if is_first:
            self._later(TELL_AFTER_S, self.tell)

    def tell(self) -> None:
        """Send the counted hits to the scheduler. Runs in the client's event loop."""
        with self._lock:
            groups, self._groups = self._groups, {}
        if groups:
            calls = [[*place, *vars(group).values()] for place, group in groups.items()]
            self._send({"op": FOUND, "calls": calls})


class RememberingClient(FailureKeepingClient):
    """A client whose tasks may be cached: found in a store, or put there by their worker.

    Parameters
    ----------
    routing, *args, **kwargs
        As in :class:`FailureKeepingClient`.
    remembering
        Settings of the cache in the manifest, or None to fetch them from the scheduler.
    """

    def __init__(
        self,
        routing: Routing,
        *args: Any,
        remembering: Remembering | None = None,
        **kwargs: Any,
    ) -> None:
        self._manifest_says = remembering
        self._remembered = RememberedCalls(
            self._remembering, lambda: bool(self.scheduler_facts.get(CARRIES))
        )
        self._found_calls = FoundCalls(self._call_later, self._tell_found)
        self._resumable = ResumableCalls(
            self._remembering, lambda: bool(self.scheduler_facts.get(CARRIES))
        )
        super().__init__(routing, *args, **kwargs)

    def _call_later(self, seconds: float, function: Callable[[], None]) -> None:
        loop: Any = self.loop
        loop.add_callback(loop.call_later, seconds, function)

    def _tell_found(self, message: dict[str, Any]) -> None:
        # A scheduler of another kind, or of an earlier version, cannot handle the message.
        if self.scheduler_facts.get(FOUND):
            with suppress(CommClosedError):  # between two connections: it would not be read
                send_to_scheduler(self, message)

    def before_close(self) -> None:
        """Report the results that were found last to the scheduler."""
        self._found_calls.tell()
        super().before_close()

    def _remembering(self) -> Remembering:
        if self._manifest_says is None:
            told = self.scheduler_facts.get(REMEMBERING)
            self._manifest_says = Remembering.from_message(told) if told else Remembering()
        return self._manifest_says

    def _remembered_call(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        asked: tuple[str | None, str | None, bool | KeyOptions | None],
    ) -> RememberedCall | None:
        """Return a task with its cache key, or None if its result is not cached."""
        tag, task, cache = asked
        if cache is not None:
            refuse_hidden(func, ["cache"])
        options = self._remembered.options(func, task, cache)
        if options is None or kwargs.get("actor") or kwargs.get("actors"):
            return None
        purpose = Purpose(task=task or "", tag=tag or "")
        return self._remembered.call(func, args, kwargs, options, purpose)

    def _resumable_function(
        self,
        func: Callable[..., Any],
        kwargs: Mapping[str, Any],
        asked: tuple[str | None, str | None, bool | KeyOptions | None],
    ) -> Callable[..., Any]:
        """Return the function to send for one that is not cached, to keep results for resuming."""
        tag, task, cache = asked
        if cache is False or not self._resumable.keeps:
            return func
        return self._resumable.function(func, Purpose(task=task or "", tag=tag or ""), kwargs)

    def _known(self, key: Any, found: Found, tag: str | None, task: str | None) -> Future[Any]:
        """Return the future of a result that was found."""
        if key in self.futures:
            return Future(key, self)
        name = task or key_split(key)
        self._found_calls.add(name, tag or "", found.entry.cost_s)
        return known_future(self, key, found.value())

    def _map_remembered(
        self,
        func: Callable[..., Any],
        iterables: Iterable[Iterable[Any]],
        kwargs: Mapping[str, Any],
        asked: tuple[str | None, str | None, bool | KeyOptions | None],
        send: Callable[..., list[Future[Any]]],
    ) -> list[Future[Any]]:
        """Return the futures of many tasks, of which only those without a result are sent."""
        # Most maps are not cached: they do not pay for each row.
        if self._remembered.options(func, asked[1], asked[2]) is None:
            own = self._resumable_function(func, kwargs, asked)
            return send(own, *iterables, key=asked[1])
        rows = list(zip(*iterables, strict=False))
        futures: list[Future[Any] | None] = []
        missing: list[RememberedCall] = []
        for row in rows:
            call = self._remembered_call(func, row, kwargs, asked)
            if call is None:
                return send(func, *zip(*rows, strict=True), key=asked[1])
            futures.append(
                None if call.found is None else self._known(call.key, call.found, *asked[:2])
            )
            if call.found is None:
                missing.append(call)
        if not missing:
            return [future for future in futures if future is not None]
        name = asked[1] or funcname(func)
        keys = [call.key or f"{name}-{uuid.uuid4()}" for call in missing]
        sent_rows = [row for row, future in zip(rows, futures, strict=True) if future is None]
        columns = zip(*sent_rows, strict=True)
        sent = iter(send(call_remembered, [c.function for c in missing], *columns, key=keys))
        return [next(sent) if future is None else future for future in futures]

    def _remembered_function(
        self,
        func: Callable[..., Any],
        *,
        tag: str | None,
        task: str | None,
        cache: bool | KeyOptions | None,
    ) -> Callable[..., Any]:
        """Return a function to send in place of another, for which the workers make the keys."""
        options = self._remembered.options(func, task, cache)
        if options is None:
            return self._resumable_function(func, {}, (tag, task, cache))
        return self._remembered.function(func, options, Purpose(task=task or "", tag=tag or ""))

    def _remembered_nodes(
        self,
        graph: Mapping[Any, Any],
        tags: Mapping[Any, str | None],
        asked: tuple[str | None, str | None, bool | KeyOptions | None],
    ) -> Mapping[Any, Any]:
        """Return a plain graph whose tasks are cached, if that was requested."""
        tag, task, cache = asked

        def node(name: Any, raw: Any) -> Any:
            if not (type(raw) is tuple and raw and callable(raw[0])):
                return raw
            own = tags.get(name, tag)
            return (self._remembered_function(raw[0], tag=own, task=task, cache=cache), *raw[1:])

        return {name: node(name, raw) for name, raw in graph.items()}
