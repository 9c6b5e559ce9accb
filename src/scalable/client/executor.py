"""An executor whose tasks run on the workers of a pool."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sized
from concurrent.futures import Executor
from functools import partial
from itertools import chain
from types import FunctionType
from typing import Any, Self, TypeVar

from dask.sizeof import sizeof
from distributed import Future
from distributed.utils_comm import pack_data

from scalable.client.backlog import MOST_UNTAKEN, MappedCalls, Raised, SingleCalls
from scalable.client.dispatcher import Dispatcher
from scalable.client.executor_connection import ExecutorConnection
from scalable.client.futures import CallFuture, OwnCondition, call_futures_of, settle
from scalable.client.task_output import display
from scalable.errors import ClusterError
from scalable.liveness import refuse_in_child
from scalable.model.overview import Overview
from scalable.protocol.lending import slot_lent
from scalable.protocol.messages import LARGE, Pickled, Reference
from scalable.protocol.synchronous import caller_executors, in_place, run_next, runs_here
from scalable.units import format_duration, seconds_of
from scalable.views.notebooks import render_executor

logger = logging.getLogger("scalable.client")
_Result = TypeVar("_Result")
Callback = Callable[[Any], Any]
ErrorCallback = Callable[[BaseException], Any]

#: Seconds between two checks for running tasks while ``shutdown()`` waits.
IDLE_CHECK_S = 0.02
#: Message of ``concurrent.futures`` for tasks that are submitted too late.
AFTER_SHUTDOWN = "cannot schedule new futures after shutdown"
#: Number of attempts to get a result whose workers are lost.
ATTEMPTS = 3
Call = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]
#: Keyword arguments of all tasks that have none. They are never changed.
NO_NAMES: dict[str, Any] = {}


class PoolExecutor(Executor):
    """Executor for the workers of one tag, with the methods of ``multiprocessing.Pool``."""

    def __init__(
        self,
        line: ExecutorConnection,
        dispatcher: Dispatcher,
        overview: Callable[[], Overview | None] = lambda: None,
        remembered: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function,
    ) -> None:
        # ``remembered`` returns the function to send: one that looks up the cache first, or the
        # same.
        self._line, self._dispatcher, self._overview = line, dispatcher, overview
        self._remembered = remembered
        #: Function of the last task, if it is sent as it is.
        self._uncached: Callable[..., Any] | None = None
        self._condition = OwnCondition()
        self._single = SingleCalls(self._condition)
        dispatcher.backlog.append(self._single)
        self._many: weakref.WeakSet[MappedCalls] = weakref.WeakSet()
        self._uploads = Uploads(self._upload, partial(line.upload_again, tag=dispatcher.tag))
        self._incomplete = dispatcher.incomplete
        self._is_shut_down = False
        self._process = os.getpid()

    # As in concurrent.futures -------------------------------------------------------------------

    def submit(
        self, fn: Callable[..., _Result], /, *args: Any, **kwargs: Any
    ) -> CallFuture[_Result]:
        """Submit a task that can be cancelled while it runs. RuntimeError after a shutdown."""
        self._check_open()
        if not kwargs and PLAIN.issuperset(map(type, args)):
            future = CallFuture(self._condition, (self._sent(fn), args, NO_NAMES), self)
            self._begin(future)
            return self._run_now(future)
        args, named = self._uploads.replaced([args, tuple(kwargs.values())])
        call = self._sent(fn), args, dict(zip(kwargs, named, strict=True))
        future = CallFuture(self._condition, call, self)
        self._begin_when_complete(future)
        return self._run_now(future)

    def _run_now(self, future: CallFuture[_Result]) -> CallFuture[_Result]:
        if runs_here():
            future.wait()
        return future

    def _sent(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function to send, which may look up the cache first."""
        if function is self._uncached and not caller_executors:
            return function
        sent = in_place(self._remembered(function))
        self._uncached = sent if sent is function and type(sent) is FunctionType else None
        return sent

    def map(
        self,
        fn: Callable[..., _Result],
        *iterables: Iterable[Any],
        timeout: str | float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[_Result]:
        """Return an iterator over the results of a function, in the order of the arguments.
        The iterables are read to their end first, unless ``buffersize`` (as in Python 3.14) limits
        how far ahead they are read. ``timeout`` is in seconds, or a string such as ``"5 min"``.
        ``chunksize`` is ignored.
        """
        del chunksize
        if not all(hasattr(each, "__iter__") or hasattr(each, "__getitem__") for each in iterables):
            raise TypeError(
                "map() takes iterables after the function, as in concurrent.futures; "
                "give chunksize by its name"
            )
        rows = zip(*iterables, strict=False)
        if buffersize is not None:
            if not isinstance(buffersize, int):
                raise TypeError("buffersize must be an integer or None")
            if buffersize < 1:
                raise ValueError("buffersize must be None or > 0")
            many = self._read(fn, rows, lambda: (buffersize, buffersize))
        elif len(iterables) == 1 and not isinstance(iterables[0], Sized):
            many = self._read(fn, rows)
        else:
            many = self._start(fn, list(rows))
        deadline = None if timeout is None else time.monotonic() + seconds_of("timeout", timeout)
        results = many.outcomes(deadline, raises=True)
        weakref.finalize(results, many.stop_reading)
        return results

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop accepting tasks. Arguments are as in ``concurrent.futures.Executor``."""
        logger.debug("%r is shut down (cancel_futures=%s)", self, cancel_futures)
        self._is_shut_down = True
        if cancel_futures:
            self._single.cancel_all()
            for many in list(self._many):
                many.cancel()
            for future in list(self._incomplete):
                future.cancel()
            self._line.call_soon(self._dispatcher.cancel_held)
        if wait:
            for many in list(self._many):
                many.end(RuntimeError(AFTER_SHUTDOWN))
            self._wait()

    def _wait(self) -> None:
        """Wait until all tasks have finished. Does nothing in a fork of the process."""
        if os.getpid() != self._process:
            return
        over = threading.Event()
        with slot_lent(), display.waiting():
            if not self._dispatcher.closed:
                self._line.call_soon(self._set_when_idle, over)
            while not self._dispatcher.closed and not over.wait(IDLE_CHECK_S):
                if runs_here():
                    run_next()

    # As in multiprocessing.Pool, without chunksize -----------------------------------------------

    def apply(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
    ) -> Any:
        return _result_of(self.submit(fn, *args, **(kwds or {})))

    def apply_async(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callback | None = None,
        error_callback: ErrorCallback | None = None,
    ) -> CallFuture:
        future = self.submit(fn, *args, **(kwds or {}))
        _add_callbacks(future, callback, error_callback)
        return future

    def map_async(
        self,
        fn: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callback | None = None,
        error_callback: ErrorCallback | None = None,
    ) -> CallFuture:
        return self.starmap_async(
            fn, ((item,) for item in iterable), chunksize, callback, error_callback
        )

    def starmap(
        self,
        fn: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
    ) -> list[Any]:
        return _result_of(self.starmap_async(fn, iterable, chunksize))  # type: ignore[no-any-return]

    def starmap_async(
        self,
        fn: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callback | None = None,
        error_callback: ErrorCallback | None = None,
    ) -> CallFuture:
        """Return a future of all results. Cancelling it cancels the tasks that have not started."""
        del chunksize
        future = self._collect(fn, [tuple(item) for item in iterable])
        _add_callbacks(future, callback, error_callback)
        return future

    def imap(
        self, fn: Callable[..., _Result], iterable: Iterable[Any], chunksize: int = 1
    ) -> Iterator[_Result]:
        """Iterate over results in the order of the elements."""
        del chunksize
        return self._results_of(fn, iterable, ordered=True)

    def imap_unordered(
        self, fn: Callable[..., _Result], iterable: Iterable[Any], chunksize: int = 1
    ) -> Iterator[_Result]:
        """Iterate over results in the order in which they arrive."""
        del chunksize
        return self._results_of(fn, iterable, ordered=False)

    def _results_of(
        self, fn: Callable[..., Any], iterable: Iterable[Any], *, ordered: bool
    ) -> Iterator[Any]:
        if isinstance(iterable, Sized) and not isinstance(iterable, range):
            many = self._start(fn, [(item,) for item in iterable], ordered=ordered)
            return _Results(many.outcomes())
        streamed = self._read(fn, zip(iterable), self._most_ahead, ordered=ordered)
        results = _Results(streamed.outcomes())
        weakref.finalize(results, streamed.stop_reading)
        return results

    # As in multiprocessing, lifecycle methods ---------------------------------------------------

    def close(self) -> None:
        """Stop accepting tasks. Submitted tasks still run."""
        self.shutdown(wait=False)

    def join(self) -> None:
        """Wait for the submitted tasks. Raises ValueError unless :meth:`close` was called."""
        if not self._is_shut_down:
            raise ValueError("the executor still accepts tasks: call close() before join()")
        self._wait()

    def terminate(self) -> None:
        """Stop accepting tasks, and cancel waiting and running tasks."""
        self.shutdown(wait=False, cancel_futures=True)
        self._line.call_soon(self._dispatcher.cancel_all)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the submitted tasks, or cancel them after an interrupt such as Ctrl-C."""
        if kind is None or issubclass(kind, Exception):
            self.shutdown()
        else:
            self.terminate()

    def __repr__(self) -> str:
        tag = self._dispatcher.tag
        return f"<PoolExecutor {f'tag={tag!r}' if tag else 'of any worker'}>"

    def _repr_html_(self) -> str:
        asked = self._dispatcher.options
        state = "shut down" if self._is_shut_down or self._dispatcher.closed else "running"
        overview = self._overview() if state == "running" else None
        told = [("Task", asked.task), ("Slots of a task", asked.slots_per_call)]
        if asked.timeout_s is not None:
            told.append(("Time limit of a task", format_duration(asked.timeout_s)))
        return render_executor(
            asked.tag,
            state,
            overview,
            unfinished=self._dispatcher.unfinished,
            asked=[(title, value) for title, value in told if value is not None],
        )

    # Single tasks -------------------------------------------------------------------------------

    def _check_open(self) -> None:
        refuse_in_child(self._process)
        if self._is_shut_down:
            raise RuntimeError(AFTER_SHUTDOWN)
        if self._dispatcher.closed:
            raise RuntimeError(f"cannot schedule new futures: {self._line.why_closed}")

    def _upload(self, value: Any) -> Future[Any] | None:
        # The event loop (which runs callbacks) cannot wait for an upload, and without a worker
        # there is no target for it. The value is then sent within its task.
        at_once = self._line.in_event_loop or not self._line.slots_of("")
        return None if at_once else self._line.upload(value, self._dispatcher.tag)

    def _begin(self, future: CallFuture) -> None:
        """Put a task whose arguments are complete into the backlog."""
        self._made_calls()
        self._single.add(future)
        self._dispatcher.wake()

    def _made_calls(self) -> None:
        parent = self._line.made_calls()
        if parent is not None:
            self._dispatcher.parent = parent

    def _end_call(self, future: CallFuture) -> None:
        self._line.call_soon(self._dispatcher.cancel, future)

    def _set_when_idle(self, over: threading.Event) -> None:
        if self._dispatcher.idle:
            over.set()
        else:
            self._line.call_later(IDLE_CHECK_S, partial(self._set_when_idle, over))

    # Mapped tasks -------------------------------------------------------------------------------

    def _start(
        self,
        fn: Callable[..., Any],
        rows: list[tuple[Any, ...]] | None,
        *,
        ordered: bool = True,
        on_end: Callable[[MappedCalls], None] | None = None,
    ) -> MappedCalls:
        """Start the tasks of a function. If ``rows`` is None, they are read later."""
        self._check_open()
        replaced = None if rows is None else self._uploads.replaced(rows)
        many = MappedCalls(self._condition, self._sent(fn), replaced, ordered=ordered)
        many.on_end = on_end
        if rows is None or rows:
            self._made_calls()
            self._many.add(many)
            self._dispatcher.offer(many)
        return many

    def _most_ahead(self) -> tuple[float, float]:
        """Return the limits for waiting tasks and for outcomes not yet taken."""
        enough = self._dispatcher.lookahead
        return enough, MOST_UNTAKEN * enough

    def _read(
        self,
        fn: Callable[..., Any],
        rows: Iterator[tuple[Any, ...]],
        most: Callable[[], tuple[float, float]] | None = None,
        *,
        ordered: bool = True,
    ) -> MappedCalls:
        """Read arguments while their tasks already start.
        Another thread reads as far ahead as ``most`` allows. If it is None, this thread reads all.
        """
        streamed = self._start(fn, None, ordered=ordered)
        arguments = (self._uploads.replaced([row])[0] for row in rows)
        wake = self._dispatcher.wake
        if most is None:
            streamed.read(arguments, lambda: (math.inf, math.inf), wake)
            if (error := streamed.read_error) is not None:
                streamed.cancel()
                raise error
            return streamed

        def most_while_open() -> tuple[float, float]:
            if self._dispatcher.closed:
                raise ClusterError(f"not all arguments were read: {self._line.why_closed}")
            return most()

        reading = arguments, most_while_open, wake
        threading.Thread(
            target=streamed.read, args=reading, name="scalable reader", daemon=True
        ).start()
        return streamed

    def _collect(self, fn: Callable[..., Any], arguments: list[Any]) -> CallFuture:
        future = CallFuture(self._condition)

        def end(many: MappedCalls) -> None:
            if many.cancelled:
                future.cancel()
                return
            try:
                settle(self._condition, [(future, many.collect(), None)])
            except Exception as error:  # noqa: BLE001 - the error of a task
                settle(self._condition, [(future, None, error)])

        def ended(_: Any) -> None:
            if future.cancelled():
                many.cancel()
                self._line.call_soon(self._dispatcher.withdraw_calls_of, many)

        many = self._start(fn, arguments, on_end=end)
        future.add_done_callback(ended)
        if not arguments:
            end(many)
        return future

    # Dependent tasks ----------------------------------------------------------------------------

    def _begin_when_complete(self, future: CallFuture) -> None:
        """Put a task into the backlog when all futures among its arguments are done."""
        _, args, kwargs = future.call or (None, (), {})
        needed = call_futures_of([*args, *kwargs.values()])
        if not needed:
            self._begin(future)
            return
        self._incomplete.add(future)
        self._dispatcher.wake()  # a script does not end before it
        left, lock = itertools.count(len(needed) - 1, -1), threading.Lock()

        def ended(_: Any) -> None:
            with lock:
                if next(left):
                    return
            try:
                self._begin_with_results(future)
            finally:
                self._incomplete.discard(future)

        for other in needed:
            # First the callback: it counts as a user of the result here, until the task is a taker.
            other.add_done_callback(ended)
            if other.is_near(self):
                other.takers += 1

    def _begin_with_results(self, future: CallFuture) -> None:
        if future.call is None:
            return  # already cancelled
        function, args, kwargs = future.call
        try:
            named = {name: self._value(value) for name, value in kwargs.items()}
            future.call = function, tuple(map(self._value, args)), named
        except BaseException as error:  # noqa: BLE001 - the error of the task that it waited for
            settle(self._condition, [(future, None, error)])
            return
        self._begin(future)

    def _value(self, argument: Any) -> Any:
        """Return an argument with its futures replaced by their results."""
        if isinstance(argument, CallFuture):
            return self._uploads.replaced([(self._result(argument),)])[0][0]
        found = call_futures_of(argument)
        return pack_data(argument, {f: self._result(f) for f in found}) if found else argument

    def _result(self, future: CallFuture) -> Any:
        kept = future.kept
        return kept if kept is not None and future.is_near(self) else future.result()

    # Results on workers -------------------------------------------------------------------------

    def _fetch_kept(self, reference: Reference) -> Any:
        """Return a result. If it is lost, run its task again. May raise ClusterError."""
        if self._line.in_event_loop:
            raise ClusterError(
                "the result is on a worker, and a callback cannot wait for it",
                hint="call result() in another thread",
            )
        if self._dispatcher.closed:
            raise ClusterError(
                "the result was on a worker when the client was closed",
                hint="call result() before the client is closed",
            )
        return self._line.wait_for(self._fetch, reference)

    async def _fetch(self, reference: Reference) -> Any:
        for attempt in range(ATTEMPTS):
            if reference.future.status in ("cancelled", "lost"):
                await reference.restore()
            try:
                found = await self._line.fetch(reference.future)
            except Exception:
                if attempt == ATTEMPTS - 1 or reference.future.status == "finished":
                    raise
                continue
            if reference.position is None:
                return found
            return await asyncio.to_thread(found[reference.position].load)
        raise ClusterError(f"the result was lost with its worker {ATTEMPTS} times")

    async def _run_again(self, call: Call, reference: Reference) -> None:
        """Run the task of a lost result again, and refer to its new result."""
        logger.debug("the result %s was lost: its task runs again", reference.future.key)
        ended, future = asyncio.Event(), CallFuture(self._condition, call, self)
        future.takers = 1
        future.add_done_callback(lambda _: self._line.call_soon(ended.set))
        self._begin(future)
        await ended.wait()
        if (error := future.exception(0)) is not None:
            raise error
        if future.kept is not None:
            reference.future, reference.position = future.kept.future, future.kept.position
        else:  # it is small this time
            reference.value, reference.position = future.result(0), None
            await self._line.upload_again(reference)


class _Results(Iterator[Any]):
    """Iterator over results. It continues after the error of a failed task."""

    def __init__(self, outcomes: Iterator[Any]) -> None:
        self._outcomes, self._lock = outcomes, threading.Lock()

    def __next__(self) -> Any:
        with self._lock:  # several threads may share the results, as with ``multiprocessing``
            outcome = next(self._outcomes)
        if type(outcome) is not Raised:
            return outcome
        if isinstance(outcome.error, StopIteration):
            # It would end the iterator, and the results that follow would be lost (PEP 479).
            raise RuntimeError("the task raised StopIteration") from outcome.error  # noqa: TRY004
        raise outcome.error


def _result_of(future: CallFuture) -> Any:
    """Wait for the result of a future, and cancel the tasks if the wait is interrupted."""
    try:
        return future.result()
    finally:
        future.cancel()


def _add_callbacks(
    future: CallFuture, callback: Callback | None, error_callback: ErrorCallback | None
) -> None:
    """Make a future call the matching callback before waiting threads wake up."""

    def ended(result: Any, error: BaseException | None) -> None:
        if error is None and callback is not None:
            callback(result)
        elif error is not None and error_callback is not None:
            error_callback(error)

    if callback is not None or error_callback is not None:
        future.tell_first(ended)


# Uploads ------------------------------------------------------------------------------------------

#: Types of arguments that are sent as they are.
PLAIN = frozenset({type(None), bool, int, float, complex})
_SMALL = PLAIN | {Future, Reference}
#: Immutable types: an object of these types is uploaded only once.
_UNCHANGING = (bytes, str)
#: Number of uploaded immutable objects whose references are kept.
REMEMBERED = 4


class Uploads:
    """Replacement of large arguments by references to uploaded objects."""

    def __init__(
        self,
        send: Callable[[Any], Future[Any] | None],
        send_again: Callable[[Reference], Awaitable[None]],
    ) -> None:
        # ``send`` returns None if an object cannot be uploaded now.
        self._send, self._send_again = send, send_again
        # Reference by id. It keeps the object, so that no other object gets its id.
        self._sent: OrderedDict[int, Reference] = OrderedDict()

    def replaced(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return the arguments of tasks with large ones replaced. Upload each object once."""
        if _SMALL.issuperset(map(type, chain.from_iterable(rows))):
            return rows
        sent: dict[int, Any] = {}

        def reference(value: Any) -> Any:
            if not _is_large(value):
                return value
            if id(value) not in sent:
                sent[id(value)] = self._reference(value)
            return sent[id(value)]

        return [tuple([reference(value) for value in row]) for row in rows]

    def _reference(self, value: Any) -> Any:
        """Return a reference to a large value, or the value itself if it cannot be uploaded now."""
        known = self._sent.get(id(value))
        if known is not None and known.future.status == "finished":
            return known
        unchanging = isinstance(value, _UNCHANGING)
        sent = value if unchanging else _pickled(value)
        future = self._send(sent)
        if future is None:
            return value
        known = Reference(future, self._send_again, value=sent)
        if unchanging:
            self._sent[id(value)] = known
            if len(self._sent) > REMEMBERED:
                self._sent.popitem(last=False)
        return known


def _pickled(value: Any) -> Any:
    """Return a value pickled, so that each task gets its own copy, or unchanged on failure."""
    # Dask would keep one object on a worker for all its tasks, and a task that changes it would
    # change the argument of the next one. Threads of this process can take a value that cannot be
    # pickled, and for others the upload reports the reason.
    try:
        return Pickled(value)
    except Exception:  # noqa: BLE001 - whatever the object's own code raises
        return value


def _is_large(value: Any) -> bool:
    kind = type(value)
    if kind in _SMALL:
        return False
    if kind is bytes or kind is str:
        return len(value) > LARGE
    # A container with futures is sent with their results.
    return bool(sizeof(value) > LARGE) and not call_futures_of(value)
