"""An executor whose calls run on the workers of a pool."""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Executor
from functools import partial
from typing import Any, Self

from distributed import Future

from scalable.client.calls.backlog import SingleCalls
from scalable.client.calls.dependent_calls import DependentCalls
from scalable.client.calls.dispatcher import Dispatcher
from scalable.client.calls.futures import CallFuture, settle
from scalable.client.calls.kept_results import Call, KeptResults
from scalable.client.calls.mapped_calls import MappedCalls, Outcome
from scalable.client.calls.multiprocessing_verbs import MultiprocessingVerbs
from scalable.client.calls.streamed_calls import MOST_UNTAKEN, StreamedCalls
from scalable.client.calls.uploads import PLAIN, Uploads
from scalable.client.scheduler_line import SchedulerLine
from scalable.errors import ClusterError
from scalable.exports import PublicNames
from scalable.protocol.lending import slot_lent
from scalable.spec.overview import Overview
from scalable.units import format_duration

logger = logging.getLogger("scalable.client")

#: Seconds between two checks whether calls still run, while ``shutdown()`` waits.
IDLE_CHECK_S = 0.02
#: Message of ``concurrent.futures`` for calls that come too late.
AFTER_SHUTDOWN = "cannot schedule new futures after shutdown"
#: Keyword arguments of all calls that have none; nobody changes it.
NO_NAMES: dict[str, Any] = {}


class PoolExecutor(PublicNames, MultiprocessingVerbs, Executor):
    """An executor for the workers of one tag, returned by :meth:`ScalableClient.pool`.

    The class is a ``concurrent.futures.Executor`` with the methods of ``multiprocessing.Pool``.
    Short calls are sent together in *bundles* (one Dask task each), which makes them cheap. Long
    calls are sent one by one.

    Parameters
    ----------
    line
        The client's connection to the scheduler.
    dispatcher
        Dispatcher that sends the calls.
    overview
        Function that returns the present overview of the cluster, for notebooks.
    remembered
        Function that returns the function to send in place of a user's: one that is looked up in a
        store first, or the same.
    """

    def __init__(
        self,
        line: SchedulerLine,
        dispatcher: Dispatcher,
        overview: Callable[[], Overview | None] = lambda: None,
        remembered: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function,
    ) -> None:
        self._line, self._dispatcher, self._overview = line, dispatcher, overview
        self._remembered = remembered
        self._condition = threading.Condition()
        self._single = SingleCalls(self._condition)
        dispatcher.backlog.append(self._single)
        self._many: weakref.WeakSet[MappedCalls] = weakref.WeakSet()
        self._uploads = Uploads(self._upload, partial(line.upload_again, tag=dispatcher.tag))
        self._dependent = DependentCalls(self._condition, self._begin, line, self._uploads.replaced)
        self._kept = KeptResults(line, self._run_again)
        self._on_cancel = self._end_call  # one object for all futures
        self._is_shut_down = False

    # As in concurrent.futures -------------------------------------------------------------------

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> CallFuture:
        """Run a function on a worker, and return the future of its result.

        Returns
        -------
        CallFuture
            A ``concurrent.futures.Future``. Cancelling the future also interrupts a running call.

        Raises
        ------
        RuntimeError
            When the executor was shut down or the client was closed.
        """
        self._check_open()
        if not kwargs and PLAIN.issuperset(map(type, args)):
            future = self._future((self._remembered(fn), args, NO_NAMES))
            self._begin(future)
            return future
        args = self._uploads.replaced(args)
        if kwargs:
            kwargs = dict(zip(kwargs, self._uploads.replaced(kwargs.values()), strict=True))
        future = self._future((self._remembered(fn), args, kwargs))
        self._dependent.add(future)
        return future

    def _future(self, call: Call) -> CallFuture:
        future = CallFuture(self._condition, call, self._on_cancel)
        future.home = self._kept
        return future

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[Any]:
        """Return an iterator over the results of a function, in the order of the arguments.

        Parameters
        ----------
        fn, *iterables
            Function, and one iterable for each of its arguments. The shortest iterable sets the
            number of calls. The iterables are read to their end before ``map`` returns; calls with
            the elements of a single iterator begin meanwhile.
        timeout
            Seconds after which the iterator raises TimeoutError if it still waits for a result.
        chunksize
            Ignored: the executor chooses the size of bundles from the duration of calls.
        buffersize
            Largest number of calls whose results were not taken; a thread reads further elements
            of the iterables, which may be endless, as results are taken. None for no limit. As in
            ``concurrent.futures`` of Python 3.14. :meth:`imap` needs no number.

        Raises
        ------
        TypeError
            When an argument is no iterable, or ``buffersize`` is no integer.
        ValueError
            When ``buffersize`` is less than 1.
        """
        del chunksize
        if not all(hasattr(each, "__iter__") or hasattr(each, "__getitem__") for each in iterables):
            raise TypeError(
                "map() takes iterables after the function, as in concurrent.futures; "
                "give chunksize by its name"
            )
        rows = zip(*iterables, strict=False)
        if buffersize is not None:
            many: MappedCalls = self._buffered(fn, rows, buffersize)
        elif len(iterables) == 1 and not isinstance(iterables[0], Sized):
            many = self._read(fn, rows)
        else:
            many = self._start(fn, list(rows))
        outcomes = self._outcomes(many, timeout)

        def results() -> Iterator[Any]:
            try:
                for outcome in outcomes:
                    if outcome[0] is not None:
                        raise outcome[0]
                    yield outcome.pop()
            finally:
                many.cancel()

        given = results()
        if isinstance(many, StreamedCalls):
            weakref.finalize(given, many.stop_reading)
        return given

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop accepting calls.

        Parameters
        ----------
        wait
            Whether to wait for the calls that were submitted. Iterators of :meth:`imap` and of
            ``map`` with ``buffersize`` are read no further then: who takes results gets those of
            the calls that were read, and then RuntimeError.
        cancel_futures
            Whether to cancel the calls that have not begun.
        """
        logger.debug("%r is shut down (cancel_futures=%s)", self, cancel_futures)
        self._is_shut_down = True
        if cancel_futures:
            self._single.cancel_all()
            for many in list(self._many):
                many.cancel()
            self._dependent.cancel_all()
            self._line.call_soon(self._dispatcher.cancel_held)
        if wait:
            for many in list(self._many):
                many.end(RuntimeError(AFTER_SHUTDOWN))
            self._wait()

    def _wait(self) -> None:
        """Wait until no call waits or runs."""
        over = threading.Event()
        with slot_lent():
            if not self._dispatcher.closed:
                self._line.call_soon(self._set_when_idle, over)
            while not self._dispatcher.closed and not over.wait(IDLE_CHECK_S):
                pass

    # As in multiprocessing, beside the verbs ----------------------------------------------------

    def close(self) -> None:
        """Stop accepting calls; submitted calls still run."""
        self.shutdown(wait=False)

    def join(self) -> None:
        """Wait for the submitted calls; raise ValueError unless :meth:`close` was called before."""
        if not self._is_shut_down:
            raise ValueError("the executor still takes calls: call close() before join()")
        self._wait()

    def terminate(self) -> None:
        """Stop accepting calls, and cancel waiting and running calls."""
        self.shutdown(wait=False, cancel_futures=True)
        self._line.call_soon(self._dispatcher.cancel_all)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the submitted calls; after an interrupt such as Ctrl-C, cancel them instead."""
        if kind is None or issubclass(kind, Exception):
            self.shutdown()
        else:
            self.terminate()

    def __repr__(self) -> str:
        tag = self._dispatcher.tag
        return f"<PoolExecutor {f'tag={tag!r}' if tag else 'of any worker'}>"

    def _repr_html_(self) -> str:
        from scalable.markup.clusters import render_executor

        asked = self._dispatcher.options
        state = "shut down" if self._is_shut_down or self._dispatcher.closed else "running"
        overview = self._overview() if state == "running" else None
        told = [("Task", asked.task), ("Slots of a call", asked.slots_per_call)]
        if asked.timeout_s is not None:
            told.append(("Time limit of a call", format_duration(asked.timeout_s)))
        return render_executor(
            asked.tag,
            state,
            overview,
            unfinished=self._dispatcher.unfinished,
            asked=[(title, value) for title, value in told if value is not None],
        )

    # Single calls -------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_shut_down:
            raise RuntimeError(AFTER_SHUTDOWN)
        if self._dispatcher.closed:
            raise RuntimeError(f"cannot schedule new futures: {self._line.why_closed}")

    def _upload(self, value: Any) -> Future[Any] | None:
        # The event loop (which runs callbacks) cannot wait for an upload, and without a worker
        # there is no place to upload to. The value is then sent within its call.
        at_once = self._line.in_event_loop or not self._line.slots_of("")
        return None if at_once else self._line.upload(value, self._dispatcher.tag)

    def _begin(self, future: CallFuture) -> None:
        """Put a call whose arguments are complete into the backlog."""
        self._made_calls()
        self._single.add(future)
        self._dispatcher.wake()

    def _made_calls(self) -> None:
        parent = self._line.made_calls()
        if parent is not None:
            self._dispatcher.parent = parent

    def _run_again(self, call: Call) -> CallFuture:
        """Run a call again whose result was lost."""
        future = self._future(call)
        future.takers = 1
        self._begin(future)
        return future

    def _end_call(self, future: CallFuture) -> None:
        self._line.call_soon(self._dispatcher.cancel, future)

    def _set_when_idle(self, over: threading.Event) -> None:
        # Dependent calls are checked first, because they go to the dispatcher later.
        if self._dependent.idle and self._dispatcher.idle:
            over.set()
        else:
            self._line.call_later(IDLE_CHECK_S, partial(self._set_when_idle, over))

    # Mapped calls -------------------------------------------------------------------------------

    def _start(
        self, fn: Callable[..., Any], arguments: list[Any], *, ordered: bool = True
    ) -> MappedCalls:
        self._check_open()
        arguments = self._uploads.replaced_in_all(arguments)
        many = MappedCalls(self._condition, self._remembered(fn), arguments, ordered=ordered)
        if arguments:
            self._offer(many)
        return many

    def _stream(
        self, fn: Callable[..., Any], rows: Iterator[tuple[Any, ...]], *, ordered: bool
    ) -> StreamedCalls:
        return self._read_in_thread(fn, rows, self._most_ahead, ordered=ordered)

    def _most_ahead(self) -> tuple[float, float]:
        """Return how many calls may wait, and how many may have an outcome that nobody took."""
        enough = self._dispatcher.lookahead
        return enough, MOST_UNTAKEN * enough

    def _buffered(
        self, fn: Callable[..., Any], rows: Iterator[tuple[Any, ...]], size: int
    ) -> StreamedCalls:
        if not isinstance(size, int):
            raise TypeError("buffersize must be an integer or None")
        if size < 1:
            raise ValueError("buffersize must be None or > 0")
        return self._read_in_thread(fn, rows, lambda: (size, size))

    def _read_in_thread(
        self,
        fn: Callable[..., Any],
        rows: Iterator[tuple[Any, ...]],
        most: Callable[[], tuple[float, float]],
        *,
        ordered: bool = True,
    ) -> StreamedCalls:
        streamed = self._streamed(fn, ordered=ordered)

        def most_while_open() -> tuple[float, float]:
            if self._dispatcher.closed:
                raise ClusterError(f"not all arguments were read: {self._line.why_closed}")
            return most()

        reading = (map(self._uploads.replaced, rows), most_while_open, self._dispatcher.wake)
        threading.Thread(
            target=streamed.read, args=reading, name="scalable reader", daemon=True
        ).start()
        return streamed

    def _read(self, fn: Callable[..., Any], rows: Iterator[tuple[Any, ...]]) -> StreamedCalls:
        """Read an iterator to its end in this thread; its calls begin meanwhile."""
        streamed = self._streamed(fn)
        streamed.read(
            map(self._uploads.replaced, rows),
            lambda: (math.inf, math.inf),
            self._dispatcher.wake,
        )
        if (error := streamed.read_error) is not None:
            streamed.cancel()
            raise error
        return streamed

    def _streamed(self, fn: Callable[..., Any], *, ordered: bool = True) -> StreamedCalls:
        self._check_open()
        streamed = StreamedCalls(self._condition, self._remembered(fn), ordered=ordered)
        self._offer(streamed)
        return streamed

    def _offer(self, many: MappedCalls) -> None:
        self._made_calls()
        self._many.add(many)
        self._dispatcher.offer(many)

    def _outcomes(self, many: MappedCalls, timeout: float | None) -> Iterator[Outcome]:
        deadline = None if timeout is None else time.monotonic() + timeout

        def left() -> float | None:
            return None if deadline is None else deadline - time.monotonic()

        def outcomes() -> Iterator[Outcome]:
            try:
                yield from many.outcomes(left)
            finally:
                many.cancel()

        return outcomes()

    def _collect(self, fn: Callable[..., Any], arguments: list[Any]) -> CallFuture:
        self._check_open()
        future = CallFuture(self._condition)
        rows = self._uploads.replaced_in_all(arguments)
        many = MappedCalls(self._condition, self._remembered(fn), rows)

        def end() -> None:
            try:
                settle(self._condition, [(future, many.collect(), None)])
            except Exception as error:  # noqa: BLE001 - the error of a call
                settle(self._condition, [(future, None, error)])

        def ended(_: Any) -> None:
            if future.cancelled():
                many.cancel()
                self._line.call_soon(self._dispatcher.withdraw_calls_of, many)

        many.on_end = end
        future.add_done_callback(ended)
        if arguments:
            self._offer(many)
        else:
            end()
        return future
