"""Seams of Dask's client."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import logging
import os
import pickle
import sys
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import FunctionType, TracebackType
from typing import Any
from weakref import WeakValueDictionary

import tblib  # type: ignore[import-untyped]
from dask import annotate  # type: ignore[attr-defined]
from dask._expr import Expr, HLGExpr, LLGExpr
from dask._task_spec import GraphNode
from dask.highlevelgraph import HighLevelGraph
from distributed import Client, Future, get_client
from distributed.client import FutureState, _MapExpr, _wait, futures_of
from distributed.comm.core import CommClosedError
from distributed.protocol.pickle import dumps, loads
from distributed.protocol.serialize import (
    ToPickle,
    families,
    pickle_dumps,
    pickle_loads,
    register_serialization_family,
)
from distributed.scheduler import KilledWorker
from distributed.utils import set_thread_state
from distributed.utils_comm import pack_data, unpack_remotedata

from scalable.errors import ClusterError
from scalable.harmless import is_sendable
from scalable.liveness import refuse_in_child
from scalable.protocol.operations import CLUSTER, KNOWN_ANNOTATION
from scalable.protocol.synchronous import caller_executors

logger = logging.getLogger("scalable.client")

#: Names of coroutine functions that wait until tasks have finished: Dask's, and ours.
WAITS = frozenset(
    {
        *("_gather", "_result", "_exception", "_traceback", "_wait", "_get_dependencies"),
        "wait_until_done",
    }
)
#: Coroutine function of ``distributed.wait``.
wait_for_futures: Callable[..., Any] = _wait


def waits_for_ended(coroutine: Callable[..., Any]) -> bool:
    """Return whether a wait (see :data:`WAITS`) is a method of a future that has finished."""
    future = getattr(coroutine, "__self__", None)
    return isinstance(future, Future) and bool(future.done())


def send_to_scheduler(client: Client, message: dict[str, Any]) -> None:
    """Send a message over the client's connection to the scheduler."""
    client._send_to_scheduler(message)  # noqa: SLF001


def submitted_by(key: Any) -> AbstractContextManager[None]:
    """Attribute tasks submitted in the block to a parent task, so that they start earlier."""
    block: AbstractContextManager[None] = nullcontext()
    return block if key is None else set_thread_state(key=key)


def facts_of(client: Client) -> Mapping[str, Any]:
    """Return the facts that the scheduler has reported. Empty before the connection."""
    facts: Mapping[str, Any] = client._scheduler_identity  # noqa: SLF001
    return facts


def why_closed(client: Client) -> str:
    """Return the reason why a client takes no more tasks."""
    return str(getattr(client, "_ended", None) or "the client is closed")


async def wait_until_done(futures: Iterable[Future[Any]]) -> None:
    """Wait until tasks have finished, failed or been cancelled."""
    await asyncio.gather(*(state_of(future).wait() for future in futures))


async def gather(client: Client, futures: list[Future[Any]], direct: bool | None) -> list[Any]:
    """Return the results of futures. Runs in the client's event loop."""
    return list(await client._gather(futures, direct=direct))  # noqa: SLF001


def state_of(future: Future[Any]) -> FutureState:
    """Return the state of a future. It contains the error if the task has failed."""
    state = future._state  # noqa: SLF001
    assert state is not None
    return state


def keep_copy(error: Exception, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Keep a copy without local frames in the future whose error is about to be raised."""
    owner = getattr(func, "__self__", None)
    for future in [owner] if isinstance(owner, Future) else futures_of(args[:1]):
        state = future._state  # noqa: SLF001
        if state is None or state.exception is not error:
            continue
        try:
            kept = copy.copy(error)
        except Exception as problem:  # noqa: BLE001 - whatever the object's own code raises
            logger.debug("could not copy the error of %s: %r", future.key, problem)
            continue
        if type(kept) is type(error):
            kept.__cause__, kept.__context__ = error.__cause__, error.__context__
            kept.__suppress_context__ = error.__suppress_context__
            state.exception = kept.with_traceback(state.traceback)


class _SharedRequest(asyncio.Task[Any]):
    """Request whose answer several coroutines await. None of them can cancel it."""

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.shield(self).__await__()

    __iter__ = __await__


#: Pending requests. They are kept here because the event loop holds only weak references.
_requests: set[asyncio.Task[Any]] = set()


class ClientHere:
    """Stand-in for a pickled client. Acts as the client of the task or process that loads it."""

    # A client cannot be made while it is unpickled, which happens in the scheduler and in event
    # loops too. `kind` is the class of the client, for `isinstance`.
    def __init__(self, kind: type[Client]) -> None:
        self._kind = kind
        self._found: Client | None = None

    @property  # type: ignore[misc]  # not set
    def __class__(self) -> type[Any]:
        return self._kind

    def __reduce__(self) -> Any:
        return ClientHere, (self._kind,)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._found is None or self._found.status != "running":
            try:
                self._found = get_client()
            except ValueError:
                raise ClusterError(
                    "an unpickled client works only in a process that has another client",
                    hint="use it within a task, or connect with scalable.connect()",
                ) from None
        return getattr(self._found, name)


@dataclass(frozen=True)
class ClientHooks:
    """Functions that a :class:`HookedClient` calls when something happens to it or to its tasks."""

    #: Handlers of the scheduler's messages by operation.
    handlers: Mapping[str, Callable[..., None]]
    #: Keys of the tasks for which the next three functions are called.
    followed: Collection[Any]
    #: Called with the key of a task that has succeeded.
    in_memory: Callable[[Any], None]
    #: Called with the key and the error of a task that has failed.
    erred: Callable[[Any, Any], None]
    #: Called with a task that the scheduler has lost. ``with_all``: it has lost all tasks.
    lost: Callable[..., None]
    #: Called before the client registers with the scheduler, whose facts are known. If this or
    #: ``connected`` raises an error, the client is closed, and its constructor raises the error.
    scheduler_known: Callable[[], None]
    #: Called once before the first task.
    connected: Callable[[], Awaitable[None]]
    #: Called when the client has registered again with a scheduler that had removed it.
    reconnected: Callable[[], Awaitable[None]]
    #: Called with keys before Dask cancels the tasks.
    before_cancel: Callable[[list[Any]], Awaitable[None]]
    #: Called with the error of all tasks if the cluster has stopped or is lost.
    before_close: Callable[[Exception | None], None]
    #: Returns additional annotations of the graph that is about to be sent.
    graph_annotations: Callable[[], Mapping[str, Any]]
    #: Returns the annotations for a layer of a graph, given its current annotations.
    layer_annotations: Callable[[dict[str, Any]], dict[str, Any]]
    #: Called before a graph with resource annotations is sent, but not for single tasks.
    before_tagged_graph: Callable[[], None]
    #: Returns the error to show instead of a task's error.
    explained: Callable[[Any], Any]
    #: Returns a lost task's error with the reasons for the losses, given its error and key.
    with_reasons: Callable[[KilledWorker, Any], Awaitable[KilledWorker]]
    #: Returns the error for results of tasks that cannot be fetched, or None to keep the original.
    unreadable: Callable[[TypeError, list[Any]], TypeError | None]
    #: Maps the keys of some futures to values to gather instead of their results.
    values_in_place: Callable[[Iterable[Future[Any]]], Awaitable[dict[Any, Any]]]


class HookedClient(Client):
    """A client that calls hooks when its tasks finish, and when graphs are sent.

    Relies on the message handlers that the client registers in its constructor, the coroutines
    behind ``cancel`` and ``close``, and ``_graph_to_futures``, which sends each graph with the
    context's annotations.
    """

    def __init__(self, hooks: ClientHooks, *args: Any, **kwargs: Any) -> None:
        self._hooks, self._process = hooks, os.getpid()
        #: Error of all tasks once the cluster has stopped. The client does not reconnect then.
        self._ended: Exception | None = None
        #: Task that connects to the scheduler again.
        self._reconnecting: asyncio.Task[Any] | None = None
        #: States of the known futures that are still referenced.
        self._known: WeakValueDictionary[Any, KnownState] = WeakValueDictionary()
        super().__init__(*args, **kwargs)

    def __reduce__(self) -> Any:
        return ClientHere, (type(self),)

    def _check_open(self, func: Any = None) -> None:
        """Raise an error if the client is closed, or belongs to another process.
        ``func`` may be a coroutine method of a future. One that has failed keeps its error.
        """
        loop: Any = self.loop
        failed = getattr(getattr(func, "__self__", None), "status", "") == "error"
        if failed and loop is not None and loop.asyncio_loop.is_running():
            return
        refuse_in_child(self._process)
        if self.status == "closed" or (loop is not None and loop.asyncio_loop.is_closed()):
            raise self._why_closed()

    def _why_closed(self) -> Exception:
        return self._ended or ClusterError(
            "this client is closed: its session, or its connection to a cluster, was closed",
            hint="submit tasks within the `with` block of a session, or open it again",
        )

    def close(self, *args: Any, **kwargs: Any) -> Any:
        """Close the client. Does nothing in a fork of its process."""
        if os.getpid() == self._process:
            return super().close(*args, **kwargs)
        self.status = "closed"
        return None

    def _graph_to_futures(self, expr: Any, keys: Any, *args: Any, **kwargs: Any) -> Any:
        if self._ended is not None:
            raise self._ended
        loop: Any = self.loop
        if (
            self.status != "running"
            or os.getpid() != self._process
            or loop.asyncio_loop.is_closed()
        ):
            self._check_open()
        keys = list(keys)
        for key in keys:
            if not (type(key) is str and key.isascii()) and not is_sendable(key):
                raise ClusterError(f"the key {key!r} cannot be encoded as UTF-8")
        annotations = self._hooks.graph_annotations()
        routed = "resources" in annotations
        if isinstance(expr, dict):
            # Dask's replay of a task sends an empty dictionary, at which its scheduler fails
            # (2026.6), to get the futures of existing tasks.
            expr = LLGExpr(expr)
        elif not isinstance(expr, LLGExpr | _MapExpr):  # it may have layers with annotations
            routed |= "resources" in annotate_layers(expr, self._hooks.layer_annotations)
        if routed:
            self._hooks.before_tagged_graph()
        if self._known:
            give_to_scheduler(self, expr)
        with annotate(**annotations):
            futures = super()._graph_to_futures(expr, keys, *args, **kwargs)
        if caller_executors and not self.asynchronous:
            self.sync(wait_until_done, futures.values())  # runs them in this thread
        return futures

    # Ends of tasks --------------------------------------------------------------------------------

    def _handle_key_in_memory(
        self,
        key: Any = None,
        type: Any = None,  # noqa: A002 - Dask's name
        workers: Any = None,
    ) -> None:
        try:
            super()._handle_key_in_memory(key, type, workers)
        except BaseException as ended:  # noqa: BLE001 - it would end the event loop
            logger.debug("the type of the result of %s cannot be loaded: %r", key, ended)
            super()._handle_key_in_memory(key, None, workers)
        if key in self._hooks.followed:
            self._hooks.in_memory(key)

    def _handle_task_erred(
        self, key: Any = None, exception: Any = None, traceback: Any = None
    ) -> None:
        lost = isinstance(exception, bytes) and b"KilledWorker" in exception
        if lost and key not in self._hooks.followed:
            assert self.loop is not None
            self.loop.add_callback(self._explain_and_end, key, exception, traceback)
        else:
            self._end_with_error(key, exception, traceback)

    async def _explain_and_end(self, key: Any, exception: Any, traceback: Any) -> None:
        state, error = self.futures.get(key), loads(exception)
        if isinstance(error, KilledWorker):
            exception = dumps(await self._hooks.with_reasons(error, key))
        # The future may have been released or resolved during the wait.
        is_same = self.futures.get(key) is state
        if is_same and state is not None and state.status == "pending":
            self._end_with_error(key, exception, traceback)

    def _end_with_error(self, key: Any, exception: Any, traceback: Any) -> None:
        traceback, text = load_traceback(traceback)
        super()._handle_task_erred(key, _load_error(exception), traceback)
        if key in self.futures:
            state = self.futures[key]
            if text and state.exception is not None:
                state.exception.add_note(text)
            state.exception = self._hooks.explained(state.exception)
            if key in self._hooks.followed:
                self._hooks.erred(key, state.exception)

    def _handle_cancelled_keys(self, keys: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        super()._handle_cancelled_keys(keys, *args, **kwargs)
        self._lose(keys, with_all=False)

    def _handle_restart(self) -> None:
        super()._handle_restart()
        self._lose(list(self._hooks.followed), with_all=True)

    def _lose(self, keys: Iterable[Any], *, with_all: bool) -> None:
        for key in keys:
            if key in self._hooks.followed:
                self._hooks.lost(key, with_all=with_all)

    # Connection -----------------------------------------------------------------------------------

    async def _update_scheduler_info(self, *args: Any, **kwargs: Any) -> Any:
        await super()._update_scheduler_info(*args, **kwargs)
        if self.status == "connecting":
            self._hooks.scheduler_known()
        return self._scheduler_identity

    def scheduler_info(self, n_workers: int = -1, **kwargs: Any) -> Any:
        """Return the scheduler's answer to this request.
        Dask would return the latest answer, which may be to one of its periodic requests: these
        answers contain no workers.
        """
        if self.asynchronous:
            return super().scheduler_info(n_workers, **kwargs)
        return self.sync(self._update_scheduler_info, n_workers=n_workers)

    async def _start(self, *args: Any, **kwargs: Any) -> Any:
        try:
            started = await super()._start(*args, **kwargs)
            self._stream_handlers |= self._hooks.handlers
            await self._hooks.connected()
        except BaseException:
            await self._close()
            raise
        return started

    async def _reconnect(self) -> None:
        if self._ended is not None:
            await self._close_ended(self._ended)
            return
        known = list(self._hooks.followed)  # Dask forgets its futures while it reconnects
        logger, quiet = logging.getLogger(Client.__module__), self._is_connecting
        logger.addFilter(quiet)
        self._reconnecting = asyncio.current_task()
        try:
            await super()._reconnect()
        finally:
            self._reconnecting = None
            logger.removeFilter(quiet)
        self._lose(known, with_all=True)
        if self.status == "running":
            await self._hooks.reconnected()

    def _is_connecting(self, record: logging.LogRecord) -> bool:
        """Return False once the client is closed, and for a failure that tasks have as an error."""
        failed = str(record.msg).startswith("Failed to reconnect")
        return self.status == "connecting" and not failed

    def _lost_scheduler(self) -> ClusterError:
        """Return the error of a client that could not connect again."""
        name, failed = self._scheduler_identity.get(CLUSTER), sys.exc_info()[1]
        which = f"cluster {name!r} is lost: its scheduler" if name else "the scheduler"
        why = f"has not answered for {self._timeout:g} s"
        if isinstance(failed, ImportError):
            why = f"does not accept this client again: {failed}"
        hint = "start a cluster, and submit the tasks again"
        return ClusterError(
            f"{which} at {getattr(self.scheduler, 'address', '')} {why}",
            hint=f"`scalable status {name}` shows its state; {hint}" if name else hint,
        )

    def _fail_all(self, error: Exception) -> None:
        """Fail all pending tasks with an error, which also explains the broken connection later."""
        self._ended = error
        for key, state in list(self.futures.items()):
            if state.status == "pending":
                self._end_with_error(key, error, None)

    async def _close_ended(self, error: Exception) -> None:
        """Close a client whose cluster has stopped. Results not fetched yet are lost."""
        self._ended = error
        for key, state in list(self.futures.items()):
            if state.status != "error":
                self._end_with_error(key, error, None)
        self.futures.clear()  # or closing would cancel them
        await self._close(fast=True)

    async def _cancel(self, futures: Any, *args: Any, **kwargs: Any) -> None:
        await self._hooks.before_cancel([future.key for future in futures_of(futures)])
        await super()._cancel(futures, *args, **kwargs)

    async def _close(self, fast: bool = False) -> None:
        # Dask closes a client that cannot connect again, which the user has not closed.
        if self.status == "connecting" and self._reconnecting is asyncio.current_task():
            self._ended, fast = self._lost_scheduler(), True
        self._hooks.before_close(self._ended)
        await super()._close(fast)

    # Results --------------------------------------------------------------------------------------

    async def _gather(  # type: ignore[override]  # Dask passes the others by keyword
        self, futures: Any, errors: str = "raise", **kwargs: Any
    ) -> Any:
        try:
            if not self._known and type(futures) is list and {*map(type, futures)} == {Future}:
                return await super()._gather(futures, errors, **kwargs)
            gather = super()._gather
            return await gather_known(self, gather, futures, errors, kwargs)
        except TypeError as error:
            told = self._hooks.unreadable(error, [future.key for future in futures_of(futures)])
            if told is None:
                raise
            raise told from None
        except (AttributeError, CommClosedError) as error:  # it was closed during the request
            if self.status not in ("closing", "closed"):
                raise
            raise self._why_closed() from error

    def _gather_remote(self, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        is_closed = not self._gather_keys and self.status in ("closing", "closed")
        request = _SharedRequest(
            _nothing() if is_closed else super()._gather_remote(*args, **kwargs)
        )
        _requests.add(request)
        request.add_done_callback(_requests.discard)
        return request


async def _nothing() -> dict[str, Any]:
    """Return the answer to a request of no results."""
    return {"status": "OK", "data": {}}


async def close_clients_of(cluster: Any, error: Exception) -> None:
    """Close the clients of a cluster that stops. Their unfinished tasks fail with the error."""
    for client in list(Client._instances):  # noqa: SLF001
        if not isinstance(client, HookedClient) or client.cluster is not cluster:
            continue
        if client.status == "running":
            await client._close_ended(error)  # noqa: SLF001


async def close_at_once(client: Client) -> None:
    """Close a client in its event loop, without waiting for the scheduler's answer."""
    await client._close(fast=True)  # noqa: SLF001


def retry_soon(client: Client, futures: list[Future[Any]]) -> None:
    """Retry an asynchronous client's failed tasks, without waiting for the scheduler."""
    assert client.loop is not None
    client.loop.add_callback(client._retry, futures)  # noqa: SLF001


def failed_task(client: Client, future: Any) -> tuple[Any, Any]:
    """Return the node that caused a future's failure, and its inputs. May raise ValueError."""
    replay = client.extensions["replay-tasks"]
    key = client.sync(replay._get_errored_future, future)  # noqa: SLF001
    node = client.sync(replay._get_task_runspec, key)  # noqa: SLF001
    if isinstance(node, ToPickle):  # nothing is pickled between threads of one process
        node = node.data
    return node, client.sync(replay._get_dependencies, node.dependencies)  # noqa: SLF001


def survive_unpickling() -> None:
    """Make unpickling raise RuntimeError where SystemExit would stop the event loop.
    Dask's log does not show errors of unpickling, because reading the value raises them.
    """
    if families["pickle"][1] is pickle_loads:
        register_serialization_family("pickle", pickle_dumps, _pickle_loads)
        logging.getLogger("distributed.protocol.core").addFilter(_is_not_of_value)


def forget_callers() -> None:
    """Make unpickled tracebacks refer to nothing of this process.
    tblib raises an error to make each frame. It then refers to all frames of its thread, and an
    error that you keep keeps their data: bundles, and the arguments that were uploaded for them.
    """
    tblib.Traceback.as_traceback = _without_callers


def _without_callers(made: Any) -> TracebackType | None:
    rows = []
    while made:
        rows.append(made)
        made = made.tb_next
    traceback = None
    for row in reversed(rows):
        function = row.tb_frame.f_code
        code = _not_started.__code__.replace(
            co_filename=function.co_filename,
            co_name=function.co_name,
            co_firstlineno=row.tb_lineno,
        )
        # The frame of a generator that has not started has no callers. The traceback points to its
        # first instruction, whose columns are unknown: no part of the line is underlined.
        frame = FunctionType(code, dict(row.tb_frame.f_globals))().gi_frame
        traceback = TracebackType(traceback, frame, 0, row.tb_lineno)
    return traceback


def _not_started() -> Iterator[None]:
    yield


def _is_not_of_value(record: logging.LogRecord) -> bool:
    """Return False for a record with an error that was raised while a value was unpickled."""
    trace = record.exc_info[2] if record.exc_info else None
    while trace is not None and trace.tb_frame.f_code is not _pickle_loads.__code__:
        trace = trace.tb_next
    return trace is None


def _pickle_loads(header: dict[str, Any], frames: list[Any]) -> Any:
    try:
        return pickle_loads(header, frames)
    except Exception:
        raise
    except BaseException as ended:
        raise not_loaded("a value", ended) from ended


def not_loaded(what: str, ended: BaseException) -> RuntimeError:
    """Return the error to raise instead of one that would stop the event loop."""
    return RuntimeError(f"{what} cannot be loaded here: unpickling it raised {ended!r}")


def _load_error(data: Any) -> Any:
    """Load a task's error that Dask has pickled, or return one that describes the problem."""
    if not isinstance(data, bytes | bytearray):
        return data
    try:
        error = loads(data)
    except Exception:  # noqa: BLE001 - whatever the object's own code raises
        return data  # Dask describes it
    except BaseException as ended:  # noqa: BLE001 - it would end the event loop
        return not_loaded("the error of the task", ended)
    if isinstance(error, BaseException):
        return error
    return RuntimeError(
        f"the error of the task was unpickled as {error!r}, which is not an exception"
    )


#: Lines that are kept of a long traceback: the first ones, and the last ones.
_FIRST_LINES, _LAST_LINES = 20, 40


def load_traceback(data: Any) -> tuple[TracebackType | None, str]:
    """Load a pickled traceback. Return it and "", or None and at most 61 lines of text.
    Dask sends text if a traceback cannot be pickled. Its ``clean_exception`` fails for text.
    """
    if not isinstance(data, bytes | bytearray):
        return data, ""
    try:
        found = pickle.loads(data)  # noqa: S301 - from a worker of this cluster
    except Exception:  # noqa: BLE001 - whatever loading the code of a frame raises
        return None, ""
    if isinstance(found, TracebackType) or found is None:
        return found, ""
    lines = str(found).splitlines()
    if (left_out := len(lines) - _FIRST_LINES - _LAST_LINES) > 0:
        lines[_FIRST_LINES:-_LAST_LINES] = [f"  ... {left_out} lines ..."]
    return None, "\n".join(["Traceback in the worker:", *lines])


# Graphs -------------------------------------------------------------------------------------------


def annotate_layers(expr: Any, annotate: Callable[[dict[str, Any]], dict[str, Any]]) -> set[str]:
    """Replace an expression's layers by annotated copies, and return the annotations' names."""
    names: set[str] = set()
    nodes = list(expr.find_operations(HLGExpr))
    for node in nodes:
        graph = node.operand("dsk")
        if not isinstance(graph, HighLevelGraph):
            continue
        new = {
            name: _with(layer, annotate(dict(layer.annotations)))
            for name, layer in graph.layers.items()
            if layer.annotations
        }
        names.update(*(layer.annotations for layer in new.values()))
        if new:
            graph = HighLevelGraph(
                {**graph.layers, **new}, graph.dependencies, graph.key_dependencies
            )
            _set(node, "dsk", graph)
    if "resources" in names:
        for node in nodes:
            if node.low_level_optimizer is not None:
                _set(node, "low_level_optimizer", _keeping_resources(node.low_level_optimizer))
    return names


def _set(node: Any, parameter: str, value: Any) -> None:
    node.operands[node._parameters.index(parameter)] = value  # noqa: SLF001
    node.__dict__.pop("_optimized_dsk", None)


def _with(layer: Any, annotations: dict[str, Any]) -> Any:
    if annotations == layer.annotations:
        return layer
    routed = copy.copy(layer)
    routed.annotations = annotations
    return routed


def _keeping_resources(optimize: Callable[..., Any]) -> Callable[..., Any]:
    """Return an optimizer that skips graphs whose layers would lose their resources."""

    # A nested function is pickled by value, so that the scheduler need not import this package.
    def optimized(graph: Any, keys: Any, **options: Any) -> Any:
        import dask
        from dask.core import flatten

        def resources(graph: Any) -> set[str]:
            layers = getattr(graph, "layers", {}).values()
            return {repr((layer.annotations or {}).get("resources")) for layer in layers}

        with dask.config.set({"optimization.fuse.active": False}):
            better = optimize(graph, keys, **options)
        return better if resources(graph) <= resources(better) else graph.cull(set(flatten(keys)))

    return optimized


# Futures whose results the client has -------------------------------------------------------------


class KnownState(FutureState):
    """State of a finished future whose result is in this client."""

    __slots__ = ("__weakref__", "_pickled", "_value", "sent")

    def __init__(self, key: Any, value: Any) -> None:
        super().__init__(key)
        self._value, self._pickled = value, b""
        #: Future of the task that provides the result to other tasks, once one needs it.
        self.sent: Future[Any] | None = None
        self.finish(type(value))

    def take(self) -> Any:
        """Return a new copy of the result at each call, as a worker would."""
        if not self._pickled:
            value, self._value = self._value, None
            self._pickled = pickle.dumps(value, protocol=5)
            return value
        return pickle.loads(self._pickled)  # noqa: S301 - this process has pickled it


class KnownFuture(Future[Any]):
    """A finished future whose result is sent only for tasks that need it."""

    def __reduce__(self) -> Any:
        client, state = self.client, self._state
        if client is not None and isinstance(state, KnownState):
            _give(client, state)
        return super().__reduce__()


def known_future(client: HookedClient, key: str, value: Any) -> KnownFuture:
    """Return a finished future for a key unknown to the client and the scheduler."""
    with client._refcount_lock:  # noqa: SLF001
        state = client.futures[key] = client._known[key] = KnownState(key, value)  # noqa: SLF001
        future = KnownFuture(key, client)
        del state
        return future


def is_known(future: Future[Any]) -> bool:
    """Return whether the result of a finished future is in this client."""
    return isinstance(future._state, KnownState)  # noqa: SLF001


def known_result(future: Future[Any]) -> Any:
    """Return a new copy of the result of a future for which :func:`is_known` is true."""
    state: Any = future._state  # noqa: SLF001
    return state.take()


def give_to_scheduler(client: HookedClient, expr: Any) -> None:
    """Send known results to the scheduler as tasks if an expression needs them."""
    for key in {key for node in expr.walk() for key in _needed(node)}:
        state = client._known.get(key)  # noqa: SLF001
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


async def gather_known(
    client: HookedClient,
    gather: Callable[..., Any],
    futures: Any,
    errors: str,
    options: dict[str, Any],
) -> Any:
    """Gather futures. Known results and the hooks' values in place need no request."""
    in_place = client._hooks.values_in_place  # noqa: SLF001
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
