"""Outcomes of tasks that have finished and were not sent to the client yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import sub
from typing import Any

import dask.sizeof

from scalable.protocol.bundles import KEPT, PICKLED
from scalable.protocol.code import located, missing_module
from scalable.protocol.importing import here
from scalable.protocol.messages import LARGE, Pickled, dump, dump_error, load_function

#: A task that has finished: its position in the bundle, what is sent of its outcome, and its kind
#: (``PLAIN``, ``PICKLED``, ``ERROR`` or ``KEPT``), times of its start and end in seconds of
#: ``time.perf_counter``, and CPU seconds of the thread since the latest task that has such a
#: number, or None if they were not read. A plain tuple is made several times as fast as one with
#: names.
EndedCall = tuple[int, Any, int, float, float, float | None]


class EndedCalls:
    """Tasks that have finished (at least one, in that order), for a message to the client."""

    def __init__(self, calls: Sequence[EndedCall]) -> None:
        # Starts are in seconds of ``time.perf_counter``, durations in seconds.
        numbers, self.values, kinds, self.began, ended, self._cpu_s = zip(*calls, strict=True)
        whole = numbers[-1] - numbers[0] == len(numbers) - 1
        self.numbers: Sequence[int] = range(numbers[0], numbers[-1] + 1) if whole else numbers
        #: Kind by position, for the outcomes that are not ``PLAIN``.
        self.kinds = {number: kind for number, kind in zip(numbers, kinds, strict=True) if kind}
        self.durations = list(map(sub, ended, self.began))

    def cpu_s(self) -> list[float]:
        """Return the CPU seconds of each task."""
        # What was read at the end of several short tasks is shared among them by their durations.
        # Tasks after the last reading are assumed to have used a CPU all the time.
        durations, shared, first = self.durations, list[float](), 0
        for last, cpu_s in enumerate(self._cpu_s):
            if cpu_s is not None:
                part = durations[first : last + 1]
                share = min(1.0, cpu_s / (sum(part) or 1.0))  # the clocks are not read at once
                shared += [share * duration for duration in part]
                first = last + 1
        return shared + durations[first:]

    def message(self, measured: Any = None) -> bytes:
        """Return the message: positions, values, kinds, and measurements of the tasks or None."""
        return dump((self.numbers, list(self.values), self.kinds, measured))


NO_CALLS = dump(((), [], {}, None))


def is_small(value: Any) -> bool:
    """Return whether a result is sent as it is."""
    kind = type(value)  # compared by identity: a class may have an equality of its own, or no hash
    if kind is int or kind is float or value is None or kind is bool or kind is complex:
        return True
    return (kind is str or kind is bytes) and len(value) <= LARGE


def packed(value: Any) -> tuple[Any, int]:
    """Return what is sent of a result that is not small, and its kind.

    It is the pickled value, or the :class:`Pickled` value if that is too large for a message and
    stays on the worker. Raises the error of a value that cannot be pickled.
    """
    if dask.sizeof.sizeof(value) <= LARGE:
        return dump(value), PICKLED
    return Pickled(value), KEPT


def packed_error(error: BaseException) -> bytes:
    """Return what is sent of the error of a task."""
    importer = here()
    if importer is not None:
        told = located(error, importer.name, "a call of an executor")
        error = error if told is None else told.with_traceback(error.__traceback__)
    return _dump_failure(error)


def function_or_error(digest: bytes, data: bytes, code: str = "") -> Callable[..., Any]:
    """Load and return a function, or if that fails, return a function that raises the error."""
    try:
        return load_function(digest, data, code)
    except ModuleNotFoundError as error:
        importer = here()
        where = "a worker" if importer is None else importer.name
        problem: Exception = missing_module(error, "a call of an executor", where)
    except Exception as error:  # noqa: BLE001 - whatever importing its module raises
        problem = error

    def fail(*_: Any, **__: Any) -> None:
        raise problem

    return fail


def _dump_failure(error: BaseException) -> bytes:
    if not isinstance(error, Exception):
        # Raised as it is, it would stop the thread that waits for the result.
        ended = RuntimeError(f"the call ended with {error!r}")
        error = ended.with_traceback(error.__traceback__)
    try:
        raise error  # noqa: TRY301 - Dask takes the traceback of the handled exception
    except Exception as raised:  # noqa: BLE001 - whatever it is
        try:
            return dump_error(raised)
        except BaseException as other:  # noqa: BLE001 - the error's own code
            text = f"the call raised {type(error).__name__}, which cannot be pickled: {type(other)}"
            return dump_error(RuntimeError(text))
