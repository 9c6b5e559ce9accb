"""Methods of ``multiprocessing.Pool`` for an executor."""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, TypeVar

from scalable.client.calls.futures import CallFuture
from scalable.client.calls.mapped_calls import MappedCalls, Outcome
from scalable.client.calls.streamed_calls import StreamedCalls

Callback = Callable[[Any], Any]
ErrorCallback = Callable[[BaseException], Any]
_Result = TypeVar("_Result")


class MultiprocessingVerbs(ABC):
    """Methods with the names and arguments of ``multiprocessing.Pool``.

    ``chunksize`` has no effect: the size of bundles follows from the measured duration of tasks.
    """

    @abstractmethod
    def submit(
        self, fn: Callable[..., _Result], /, *args: Any, **kwargs: Any
    ) -> CallFuture[_Result]:
        """Run a task, and return its future."""

    @abstractmethod
    def _start(
        self, fn: Callable[..., Any], arguments: list[Any], *, ordered: bool = True
    ) -> MappedCalls:
        """Run a function on many tuples of arguments."""

    @abstractmethod
    def _stream(
        self, fn: Callable[..., Any], rows: Iterator[tuple[Any, ...]], *, ordered: bool
    ) -> StreamedCalls:
        """Run a function on tuples of arguments, which are read as slots need them."""

    @abstractmethod
    def _outcomes(self, many: MappedCalls, timeout: float | None) -> Iterator[Outcome]:
        """Iterate over the outcomes of mapped tasks, and cancel unfinished tasks at the end."""

    @abstractmethod
    def _collect(self, fn: Callable[..., Any], arguments: list[Any]) -> CallFuture:
        """Run a function on many tuples of arguments, and return the future of all results."""

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
        """Iterate over results in the order of the elements. An error does not stop the iterator.

        Elements of a range, and of an iterable without a size, are read as workers need them.
        """
        del chunksize
        return self._results_of(fn, iterable, ordered=True)

    def imap_unordered(
        self, fn: Callable[..., _Result], iterable: Iterable[Any], chunksize: int = 1
    ) -> Iterator[_Result]:
        """Iterate over results as they arrive, and otherwise as :meth:`imap` does."""
        del chunksize
        return self._results_of(fn, iterable, ordered=False)

    def _results_of(
        self, fn: Callable[..., Any], iterable: Iterable[Any], *, ordered: bool
    ) -> Iterator[Any]:
        if isinstance(iterable, Sized) and not isinstance(iterable, range):
            many = self._start(fn, [(item,) for item in iterable], ordered=ordered)
            return _Results(self._outcomes(many, None))
        streamed = self._stream(fn, zip(iterable), ordered=ordered)
        results = _Results(self._outcomes(streamed, None))
        weakref.finalize(results, streamed.stop_reading)
        return results


class _Results(Iterator[Any]):
    """Iterator over results, which can be continued after the error of a failed task."""

    def __init__(self, outcomes: Iterator[Outcome]) -> None:
        self._outcomes, self._lock = outcomes, threading.Lock()

    def __next__(self) -> Any:
        with self._lock:  # several threads may share the results, as with ``multiprocessing``
            outcome = next(self._outcomes)
        error = outcome[0]
        if isinstance(error, StopIteration):
            # It would end the iterator, and the results that follow would be lost (PEP 479).
            raise RuntimeError("the task raised StopIteration") from error  # noqa: TRY004
        if error is not None:
            raise error
        return outcome.pop()


def _result_of(future: CallFuture) -> Any:
    """Wait for the result of a future, and cancel the tasks if the wait is interrupted."""
    try:
        return future.result()
    finally:
        future.cancel()


def _add_callbacks(
    future: CallFuture, callback: Callback | None, error_callback: ErrorCallback | None
) -> None:
    """Call one of the functions before waiting threads wake up, as ``multiprocessing`` does."""

    def ended(result: Any, error: BaseException | None) -> None:
        if error is None and callback is not None:
            callback(result)
        elif error is not None and error_callback is not None:
            error_callback(error)

    if callback is not None or error_callback is not None:
        future.tell_first(ended)
