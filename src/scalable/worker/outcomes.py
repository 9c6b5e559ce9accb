"""Outcomes of calls that have ended and were not sent to the client yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.sizeof

from scalable.protocol.bundles import ERROR, KEPT, PICKLED
from scalable.protocol.code import located, missing_module
from scalable.protocol.importing import here
from scalable.protocol.messages import LARGE, Pickled, dump, dump_error, load_function

_SMALL_TYPES = frozenset({type(None), bool, int, float, complex})
_TEXTS = frozenset({str, bytes})


class UnsentOutcomes:
    """Outcomes for the next message to the client.

    Attributes
    ----------
    numbers
        Positions of the calls in their bundle.
    profiles
        Measurements of each call: its start (seconds since 1970), duration and CPU time in seconds,
        and the worker's peak memory in bytes.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.profiles: list[tuple[float, float, float, int | None]] = []
        self._values: list[Any] = []
        #: Position -> kind, of the outcomes that are not ``PLAIN``.
        self._kinds: dict[int, int] = {}

    def add_value(self, number: int, value: Any) -> Pickled | None:
        """Add the result of a call; return the pickled value if it is too large for a message.

        Raises
        ------
        Exception
            When the value cannot be pickled.
        """
        kind = type(value)
        if kind in _SMALL_TYPES or (kind in _TEXTS and len(value) <= LARGE):
            self.numbers.append(number)
            self._values.append(value)
            return None
        if dask.sizeof.sizeof(value) <= LARGE:
            self._add(number, dump(value), PICKLED)
            return None
        pickled = Pickled(value)
        self._add(number, None, KEPT)
        return pickled

    def add_error(self, number: int, error: BaseException) -> None:
        """Add the error of a call."""
        importer = here()
        if importer is not None:
            told = located(error, importer.name, "a call of an executor")
            error = error if told is None else told.with_traceback(error.__traceback__)
        self._add(number, _dump_failure(error), ERROR)

    def _add(self, number: int, value: Any, kind: int) -> None:
        self.numbers.append(number)
        self._values.append(value)
        self._kinds[number] = kind

    def is_error(self, number: int) -> bool:
        """Return whether the outcome of a call is an error."""
        return self._kinds.get(number) == ERROR

    def dump(self, worker: Any, transfer_s: float) -> bytes:
        """Return the outcomes as bytes.

        Parameters
        ----------
        worker
            Name of the worker.
        transfer_s
            Seconds that the transfer of the bundle's arguments took.
        """
        numbers: Any = self.numbers
        if numbers and numbers[-1] - numbers[0] == len(numbers) - 1:
            numbers = range(numbers[0], numbers[-1] + 1)
        measured = (str(worker), transfer_s, self.profiles) if self.profiles else None
        return dump((numbers, self._values, self._kinds, measured))


def function_or_error(digest: bytes, data: bytes, code: str = "") -> Callable[..., Any]:
    """Load and return a function; if loading fails, return a function that raises the error."""
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
        # Raised as it is, it would end the thread that asks for the result.
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
