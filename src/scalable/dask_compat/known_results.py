"""Seams of futures whose results a client has without a worker."""

from __future__ import annotations

import contextvars
import pickle
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from dask import annotate  # type: ignore[attr-defined]
from dask._expr import Expr
from dask._task_spec import GraphNode
from distributed import Client, Future
from distributed.client import FutureState
from distributed.utils_comm import pack_data, unpack_remotedata

from scalable.dask_compat.facts import Seams, accepts, contains, has, mentions
from scalable.protocol.operations import KNOWN_ANNOTATION

seams = Seams("known_results")

_CLIENT = "distributed.client:Client"
#: States of the known futures that are still referenced, by client and key.
_known: WeakKeyDictionary[Client, WeakValueDictionary[Any, KnownState]] = WeakKeyDictionary()


class KnownState(FutureState):
    """State of a finished future whose result this client has."""

    __slots__ = ("__weakref__", "_pickled", "_value", "sent")

    def __init__(self, key: Any, value: Any) -> None:
        super().__init__(key)
        self._value, self._pickled = value, b""
        #: Future of the task that provides the result to other tasks, once one needs it.
        self.sent: Future[Any] | None = None
        self.finish(type(value))

    def take(self) -> Any:
        """Return the result: another copy each time, as from a worker."""
        if not self._pickled:
            value, self._value = self._value, None
            self._pickled = pickle.dumps(value, protocol=5)
            return value
        return pickle.loads(self._pickled)  # noqa: S301 - this process has pickled it


class KnownFuture(Future[Any]):
    """A finished future whose result the client sends only for tasks that need it."""

    def __reduce__(self) -> Any:
        client, state = self.client, self._state
        if client is not None and isinstance(state, KnownState):
            _give(client, state)
        return super().__reduce__()


@seams.relies_on(
    mentions("distributed.client:Future._bind_late", "futures", "FutureState"),
    mentions(f"{_CLIENT}._release_key", "futures", "pop"),
    mentions(f"{_CLIENT}._inc_ref", "_refcount_lock"),
)
def known_future(client: Client, key: str, value: Any) -> KnownFuture:
    """Return a finished future of a key that is new to the client and the scheduler."""
    with client._refcount_lock:  # noqa: SLF001
        state = client.futures[key] = _known_of(client)[key] = KnownState(key, value)
        future = KnownFuture(key, client)
        del state
        return future


def _known_of(client: Client) -> WeakValueDictionary[Any, KnownState]:
    known = _known.get(client)
    if known is None:
        known = _known[client] = WeakValueDictionary()
    return known


@seams.relies_on(
    mentions(f"{_CLIENT}.submit", "futures", "_graph_to_futures"),
    mentions(f"{_CLIENT}._graph_to_futures", "_refcount_lock", "_send_to_scheduler"),
    accepts("distributed.client:FutureState.__init__", 2),
    contains("dask._expr:LLGExpr._parameters", "dsk"),
    contains("dask._expr:HLGExpr._parameters", "dsk"),
    has("dask._task_spec:GraphNode", "dependencies"),
    has("dask._expr:Expr", "walk"),
    mentions("dask._expr:Expr.dependencies", "operands"),
)
def give_to_scheduler(client: Client, expr: Any) -> None:
    """Send the known results that an expression needs, as tasks, before the expression."""
    known = _known.get(client)
    if not known:
        return
    for key in {key for node in expr.walk() for key in _needed(node)}:
        state = known.get(key)
        if state is not None:
            _give(client, state)


def _needed(value: Any) -> Iterator[Any]:
    """Yield the keys of the tasks that a part of an expression depends on."""
    if isinstance(value, Future):
        yield value.key
    elif isinstance(value, GraphNode):
        yield from value.dependencies
    elif isinstance(value, Expr):
        yield from _needed(value.operands)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _needed(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _needed(item)


def _give(client: Client, state: KnownState) -> None:
    with client._refcount_lock:  # noqa: SLF001
        if state.sent is None:
            client.futures.pop(state.key, None)
            # In a separate context: this task must not get the annotations, such as the pool, of
            # the graph that is being sent.
            state.sent = contextvars.Context().run(_send, client, state.key, state.take())


def _send(client: Client, key: Any, value: Any) -> Future[Any]:
    with annotate(**{KNOWN_ANNOTATION: True}):
        return Client.submit(client, _itself, value, key=key, pure=False)


def _itself(value: Any) -> Any:
    return value


@seams.relies_on(
    accepts("distributed.utils_comm:unpack_remotedata", 1, "byte_keys"),
    accepts("distributed.utils_comm:pack_data", 2),
    mentions(f"{_CLIENT}._gather", "unpack_remotedata", "pack_data"),
    accepts(f"{_CLIENT}._gather", 2, "errors", "direct"),
)
async def gather_known(
    gather: Callable[..., Any],
    futures: Any,
    errors: str,
    options: dict[str, Any],
    in_place: Callable[[Iterable[Future[Any]]], Awaitable[dict[Any, Any]]],
) -> Any:
    """Gather futures, the known ones of which need no request to the scheduler.

    ``gather`` is Dask's coroutine function, whose arguments follow. ``in_place`` returns values by
    key for futures that have a value without a result.
    """
    unpacked, found = unpack_remotedata(futures, byte_keys=True)
    known: dict[Any, Callable[[], Any]] = {
        f.key: f._state.take  # noqa: SLF001
        for f in found
        if isinstance(f._state, KnownState)  # noqa: SLF001
    }
    known |= {key: partial(_itself, v) for key, v in (await in_place(found)).items()}
    if not known:
        return await gather(futures, errors=errors, **options)
    rest = {f.key: f for f in found if f.key not in known}
    values = dict(await gather(rest, errors=errors, **options)) if rest else {}
    if errors == "skip" and isinstance(unpacked, list):
        lost = {key for key, future in rest.items() if future.status in ("error", "cancelled")}
        unpacked = [item for item in unpacked if item not in lost]
    return pack_data(unpacked, values | {key: take() for key, take in known.items()})
