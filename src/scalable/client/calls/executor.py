"""An executor whose calls run on the workers of a pool."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from distributed.utils import in_async_call

from scalable.client.calls.backlog import MappedCalls, Outcome, SingleCalls
from scalable.client.calls.dispatcher import Dispatcher
from scalable.client.calls.futures import CallFuture, settle
from scalable.client.calls.uploads import Uploads
from scalable.errors import ClusterError
from scalable.protocol.lending import made_calls, slot_lent

if TYPE_CHECKING:
    from scalable.client.client import ScalableClient


#: Whether calls still run is looked at so often by who shuts a pool down, in seconds.
IDLE_LOOK_S = 0.02


class PoolExecutor(Executor):
    """Runs calls on the workers of one tag; made by :meth:`ScalableClient.pool`.

    A ``concurrent.futures.Executor`` with the verbs of ``multiprocessing.Pool`` beside it. Calls
    travel in bundles whose size follows how long calls take, so that short ones cost little; long
    ones go one by one.

    Parameters
    ----------
    client
        Whose cluster runs the calls.
    dispatcher
        Sends them off.
    """

    def __init__(self, client: ScalableClient, dispatcher: Dispatcher) -> None:
        self._client, self._dispatcher = client, dispatcher
        self.condition = threading.Condition()
        self._single = SingleCalls(self.condition)
        dispatcher.backlog.append(self._single)
        self._many: weakref.WeakSet[MappedCalls] = weakref.WeakSet()
        self._uploads = Uploads(self._upload)
        self._shut = False
        #: Futures of calls that wait for others to end.
        self.later: set[CallFuture] = set()

    # As in concurrent.futures ---------------------------------------------------------------------

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> CallFuture:
        """Run a call.

        Returns
        -------
        CallFuture
            A ``concurrent.futures.Future``. Cancelling it also ends a call that runs.

        Raises
        ------
        RuntimeError
            When the pool was shut down.
        """
        self._refuse_when_over()
        args = self._uploads.replaced(args)
        if kwargs:
            kwargs = dict(zip(kwargs, self._uploads.replaced(kwargs.values()), strict=True))
        future = CallFuture(self.condition, (fn, args, kwargs), self._cancelled)
        waits_for = [a for a in itertools.chain(args, kwargs.values()) if isinstance(a, CallFuture)]
        if waits_for:
            _AfterOthers(self, future, waits_for)
        else:
            self.begin(future)
        return future

    def _refuse_when_over(self) -> None:
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if self._dispatcher.closed:
            raise RuntimeError("cannot schedule new futures: the client is closed")

    def _upload(self, value: Any) -> Any:
        # Callbacks run in the event loop, which cannot wait, and without a worker nobody can take
        # it: the value goes with its call then.
        here = in_async_call(self._client.loop) or not self._client.slots_of("")
        return value if here else self._client.send(value)

    def begin(self, future: CallFuture) -> None:
        """Put a call in the queue, once what it takes is there."""
        made_calls()
        self._single.add(future)
        self._dispatcher.wake()

    def _cancelled(self, future: CallFuture) -> None:
        self._client.in_loop(self._dispatcher.cancel, self._single, future)

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[Any]:
        """Results of a function on the elements of iterables, lazily, in their order.

        Parameters
        ----------
        fn, *iterables
            What to call with the first elements, the second ones, and so on; the shortest iterable
            ends it. They are read at once.
        timeout
            Seconds from now within which each result has to be there; TimeoutError otherwise.
        chunksize
            Without effect: bundles find their own size.
        """
        del chunksize
        if not all(hasattr(each, "__iter__") or hasattr(each, "__getitem__") for each in iterables):
            raise TypeError(
                "what follows the function is iterables, as in concurrent.futures; "
                "chunksize is given by its name"
            )
        many = self._start(fn, list(zip(*iterables, strict=False)))
        outcomes = self._outcomes(many, timeout)

        def results() -> Iterator[Any]:
            try:
                for value, error in outcomes:
                    if error is not None:
                        raise error
                    yield value
            finally:
                many.cancel()

        return results()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls.

        Parameters
        ----------
        wait
            Whether to wait for the calls that were given.
        cancel_futures
            Whether to cancel those that have not begun.
        """
        self._shut = True
        if cancel_futures:
            self._single.cancel_all()
            for many in list(self._many):
                many.cancel()
        if wait:
            over = threading.Event()
            with slot_lent():
                if not self._dispatcher.closed:
                    self._client.in_loop(self._set_when_idle, over)
                while not self._dispatcher.closed and not over.wait(IDLE_LOOK_S):
                    pass

    def _set_when_idle(self, over: threading.Event) -> None:
        # Those that wait for others first: from there they go to the dispatcher.
        if all(future.done() for future in list(self.later)) and self._dispatcher.idle:
            over.set()
        else:
            self._client.in_loop_after(IDLE_LOOK_S, partial(self._set_when_idle, over))

    # As in multiprocessing ------------------------------------------------------------------------

    # ``chunksize`` is without effect in all of them: bundles find their own size.

    def starmap(
        self,
        fn: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
    ) -> list[Any]:
        """Results of a function on each element's elements, all of them."""
        return _awaited(self.starmap_async(fn, iterable, chunksize))  # type: ignore[no-any-return]

    def starmap_async(
        self,
        fn: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
    ) -> CallFuture:
        """A future of the results of :meth:`starmap`; cancelling it ends what has not begun."""
        del chunksize
        return self._collect(fn, [tuple(item) for item in iterable], callback, error_callback)

    def map_async(
        self,
        fn: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
    ) -> CallFuture:
        """A future of the list of results of a function on each element."""
        del chunksize
        return self._collect(fn, [(item,) for item in iterable], callback, error_callback)

    def imap(
        self, fn: Callable[..., Any], iterable: Iterable[Any], chunksize: int = 1
    ) -> Iterator[Any]:
        """Results in their order, as they become available; after an error the others come."""
        del chunksize
        return _Each(self._outcomes(self._start(fn, [(item,) for item in iterable]), None))

    def imap_unordered(
        self, fn: Callable[..., Any], iterable: Iterable[Any], chunksize: int = 1
    ) -> Iterator[Any]:
        """Results as they come; after an error the others come."""
        del chunksize
        many = self._start(fn, [(item,) for item in iterable], ordered=False)
        return _Each(self._outcomes(many, None))

    def apply(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
    ) -> Any:
        """The result of one call."""
        return _awaited(self.submit(fn, *args, **(kwds or {})))

    def apply_async(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
    ) -> CallFuture:
        """A future of one call."""
        future = self.submit(fn, *args, **(kwds or {}))
        _call_back(future, callback, error_callback)
        return future

    # Many calls -----------------------------------------------------------------------------------

    def _start(
        self, fn: Callable[..., Any], arguments: list[Any], *, ordered: bool = True
    ) -> MappedCalls:
        self._refuse_when_over()
        arguments = self._uploads.replaced_in_all(arguments)
        many = MappedCalls(self.condition, fn, arguments, ordered=ordered)
        if arguments:
            made_calls()
            self._many.add(many)
            self._dispatcher.offer(many)
        return many

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

    def _collect(
        self,
        fn: Callable[..., Any],
        arguments: list[Any],
        callback: Callable[[Any], Any] | None,
        error_callback: Callable[[BaseException], Any] | None,
    ) -> CallFuture:
        self._refuse_when_over()
        future = CallFuture(self.condition)
        _call_back(future, callback, error_callback)
        many = MappedCalls(self.condition, fn, self._uploads.replaced_in_all(arguments))

        def end() -> None:
            try:
                settle(self.condition, [(future, many.collect(), None)])
            except Exception as error:  # noqa: BLE001 - the call's own
                settle(self.condition, [(future, None, error)])

        def ended(_: Any) -> None:
            if future.cancelled():
                many.cancel()

        many.on_end = end
        future.add_done_callback(ended)
        if arguments:
            made_calls()
            self._many.add(many)
            self._dispatcher.offer(many)
        else:
            end()
        return future

    def close(self) -> None:
        """Take no more calls; those that were given go on."""
        self.shutdown(wait=False)

    def join(self) -> None:
        """Wait for the calls that were given, after :meth:`close`."""
        if not self._shut:
            raise ValueError("the pool still takes calls: close it before")
        self.shutdown()

    def terminate(self) -> None:
        """Take no more calls, and end those that wait and those that run."""
        self.shutdown(wait=False, cancel_futures=True)
        self._client.in_loop(self._dispatcher.cancel_all)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the calls that were given; who interrupts the block does not wait."""
        if kind is None or issubclass(kind, Exception):
            self.shutdown()
        else:
            self.terminate()

    def __repr__(self) -> str:
        tag = self._dispatcher.tag
        return f"<PoolExecutor {f'tag={tag!r}' if tag else 'of any worker'}>"


class _Each(Iterator[Any]):
    """Results one by one; an error is raised in its place and does not end them."""

    def __init__(self, outcomes: Iterator[Outcome]) -> None:
        self._outcomes = outcomes

    def __next__(self) -> Any:
        value, error = next(self._outcomes)
        if error is not None:
            raise error
        return value


class _AfterOthers:
    """Begins a call once the calls that are among its arguments have ended."""

    def __init__(self, pool: PoolExecutor, future: CallFuture, waits_for: list[CallFuture]) -> None:
        self._pool, self._future = pool, future
        self._left = len(waits_for)
        self._lock = threading.Lock()
        pool.later.add(future)
        for other in waits_for:
            other.add_done_callback(self._ended)

    def _ended(self, _: Any) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        try:
            self._begin(self._future)
        finally:
            self._pool.later.discard(self._future)

    def _begin(self, future: CallFuture) -> None:
        if future.call is None:
            return  # cancelled meanwhile
        function, args, kwargs = future.call
        try:
            future.call = (
                function,
                tuple(_value(a) for a in args),
                {name: _value(value) for name, value in kwargs.items()},
            )
        except BaseException as error:  # noqa: BLE001 - of the call that it waited for
            settle(self._pool.condition, [(future, None, error)])
            return
        self._pool.begin(future)


def _value(argument: Any) -> Any:
    return argument.result() if isinstance(argument, CallFuture) else argument


def _awaited(future: CallFuture) -> Any:
    """The result; nobody else has the future, so its calls end with whoever waits."""
    try:
        return future.result()
    finally:
        future.cancel()


def _call_back(
    future: CallFuture,
    callback: Callable[[Any], Any] | None,
    error_callback: Callable[[BaseException], Any] | None,
) -> None:
    def ended(_: Any) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None and callback is not None:
            callback(future.result())
        elif error is not None and error_callback is not None:
            error_callback(error)

    if callback is not None or error_callback is not None:
        future.add_done_callback(ended)


def check_timeout(timeout: float | None) -> None:
    """Raise ClusterError where this is no time limit."""
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise ClusterError(f"timeout={timeout!r}: it is a number of seconds, or None")
    if not timeout > 0:
        raise ClusterError(f"timeout={timeout!r}: a call needs some time to run")
