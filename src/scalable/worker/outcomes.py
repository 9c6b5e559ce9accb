"""Outcomes of finished tasks that were not sent to the client yet."""

from __future__ import annotations

import sys
import threading
import traceback
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from scalable.frames import own_frame
from scalable.model.cache_outcomes import CacheOutcome
from scalable.protocol.failures import (
    arguments_text,
    described,
    message_of,
    shorten_tracebacks,
)
from scalable.protocol.importing import locate_here, show_script
from scalable.protocol.measured import BUNDLE, SHARES, addition
from scalable.protocol.messages import LARGE, dump, dump_error, load_function
from scalable.protocol.task_output import STDOUT, TaskStream, ThreadLines
from scalable.quantiles import quantile


class EndedCalls:
    """Finished tasks that are not sent yet, in order of their positions.
    One thread adds to the columns, the position last, while another may take what is complete.
    """

    # Not an object for each task, which takes longer to make and to collect than some tasks run.
    def __init__(self) -> None:
        #: Positions of the tasks in the bundle, and the values to send.
        self.numbers: list[int] = []
        self.values: list[Any] = []
        #: Starts in seconds of ``time.perf_counter``, and durations in seconds.
        self.began: list[float] = []
        self.durations: list[float] = []
        #: Kind (``PICKLED``, ``ERROR`` or ``KEPT``) by position, for values that are not ``PLAIN``.
        self.kinds: dict[int, int] = {}
        #: CPU seconds since the last reading, by position of the task after which they were read.
        self.cpu_read: dict[int, float] = {}

    def take(self) -> EndedCalls | None:
        """Remove and return the complete tasks, or None if there is none."""
        count, taken = len(self.numbers), EndedCalls()
        if not count:
            return None
        for name in ("numbers", "values", "began", "durations"):
            column = getattr(self, name)
            setattr(taken, name, column[:count])
            del column[:count]
        for name in ("kinds", "cpu_read"):
            some, last = getattr(self, name), taken.numbers[-1]
            setattr(taken, name, {n: some.pop(n) for n in list(some) if n <= last})
        return taken

    def cpu_s(self) -> list[float]:
        """Return the CPU seconds of each task."""
        # What was read at the end of several short tasks is shared among them by their durations.
        # Tasks after the last reading are assumed to have used a CPU all the time.
        durations, shared, first = self.durations, list[float](), 0
        for number, cpu_s in self.cpu_read.items():
            following = bisect_right(self.numbers, number)
            part = durations[first:following]
            share = min(1.0, cpu_s / (sum(part) or 1.0))  # the clocks are not read at once
            shared += [share * duration for duration in part]
            first = following
        return shared + durations[first:]

    def message(self, measured: Any = None) -> bytes:
        """Return the message: positions, values, kinds, and measurements of the tasks or None."""
        span = range(self.numbers[0], self.numbers[-1] + 1)
        numbers = span if len(span) == len(self.numbers) else self.numbers
        return dump((numbers, self.values, self.kinds, measured))


def is_small(value: Any) -> bool:
    """Return whether a result is sent as it is, without pickling."""
    kind = type(value)  # compared by identity: a class may have an equality of its own, or no hash
    if kind is int or kind is float or value is None or kind is bool or kind is complex:
        return True
    return (kind is str or kind is bytes) and len(value) <= LARGE


def packed_error(error: BaseException) -> bytes:
    """Return a task's error, pickled for sending."""
    locate_here(error, "a task of an executor")
    shorten_tracebacks(error)
    if not isinstance(error, Exception):
        # Raised as it is, it would stop the thread that waits for the result.
        ended = RuntimeError(f"the task raised {error!r}")
        error = ended.with_traceback(error.__traceback__)
    try:
        raise error  # noqa: TRY301 - Dask takes the traceback of the handled exception
    except Exception as raised:  # noqa: BLE001 - whatever it is
        try:
            return dump_error(raised)
        except BaseException as other:  # noqa: BLE001 - the error's own code
            text = f"the task raised {type(error).__name__}, which cannot be pickled: {type(other)}"
            return dump_error(RuntimeError(text))


def function_or_error(digest: bytes, data: bytes, code: str = "") -> Callable[..., Any]:
    """Load a function, or return one that raises the loading error."""
    try:
        function = load_function(digest, data, code)
    except Exception as error:  # noqa: BLE001 - whatever importing its module raises
        problem = error
        locate_here(problem, "a task of an executor")
    else:
        show_script(function)
        return function

    def fail(*_: Any, **__: Any) -> None:
        raise problem

    return fail


def too_long(function: Callable[..., Any], timeout_s: float) -> TimeoutError:
    """Return the error for a task that exceeded its time limit."""
    named = getattr(function, "__qualname__", repr(function))
    return TimeoutError(f"{named}() ran for longer than {timeout_s:g} s")


# Output -------------------------------------------------------------------------------------------

#: Largest number of characters of one bundle that are sent.
MOST_CHARACTERS = 1_000_000

_here = threading.local()


class _SharedOutput(TaskStream):
    """Standard output that also passes output to the printing thread's listener."""


def _pass_on(text: str) -> bool:
    getattr(_here, "listener", str)(text)
    return False


@contextmanager
def heard(listener: Callable[[str], None]) -> Iterator[None]:
    """Pass the output of this thread to a listener while the context is open."""
    if not isinstance(sys.stdout, _SharedOutput):
        sys.stdout = _SharedOutput(sys.stdout, _pass_on)
    _here.listener = listener
    try:
        yield
    finally:
        del _here.listener


class Lines:
    """Buffer that passes on the output of tasks in whole lines."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send, self._lines, self._left = send, ThreadLines(), MOST_CHARACTERS

    def write(self, text: str) -> None:
        """Add output, and pass on its complete lines."""
        self._pass("".join(f"{line}\n" for _, line in self._lines.add(STDOUT, text)))

    def end(self) -> None:
        """Pass on the remaining output."""
        self._pass("".join(line for _, line in self._lines.rest()))

    def _pass(self, text: str) -> None:
        if not text or self._left <= 0:
            return
        if len(text) > self._left:
            left_out = f"\n[output beyond {MOST_CHARACTERS} characters is left out]\n"
            text = text[: self._left] + left_out
        self._left -= len(text)
        self._send(text)


# Bundle counts ------------------------------------------------------------------------------------

#: Largest number of failed tasks of a bundle that are described, and largest number per cause
#: (class and location) that are described in full. The others are only counted.
DESCRIBED = 500
IN_FULL = 3
#: Largest number of causes that are distinguished, and largest number of characters of a message
#: and of a traceback.
_CAUSES = 50
_MESSAGE = 2000
_TRACEBACK = 20_000


class BundleCounts:
    """Statistics of the tasks of one bundle (a batch of tasks that is one Dask task)."""

    def __init__(self) -> None:
        #: Duration in seconds of each task that ran.
        self.durations: list[float] = []
        #: State and measurements of each task. Empty unless tasks are recorded one by one.
        self.rows: list[tuple[str, tuple[float, float, float | None, int | None]]] = []
        #: Outcomes of the tasks whose results are cached.
        self.outcomes: list[CacheOutcome] = []
        #: Positions of the tasks that did not run, because their results were found.
        self.found: set[int] = set()
        #: Cache outcome of the running task, or None if it is not cached or not known yet.
        self.heard: CacheOutcome | None = None
        self._failed = 0
        self._failures: list[dict[str, Any]] = []
        #: Number of failed tasks by class and location.
        self._causes: Counter[tuple[str, str | None]] = Counter()
        #: Number of the failed tasks that are not described, by class.
        self._more: Counter[str] = Counter()

    def failed(
        self, error: BaseException, position: int | None = None, given: Any = None
    ) -> str | None:
        """Count a failed task, and return its arguments as a string, or None."""
        self._failed += 1
        name = type(error).__name__
        if len(self._failures) >= DESCRIBED:
            known = name in self._more or len(self._more) < _CAUSES
            self._more[name if known else "(other classes)"] += 1
            return arguments_text(lambda: given)
        cause = name, own_frame(error)
        in_full = self._causes[cause] < IN_FULL and len(self._causes) < _CAUSES
        self._causes[cause] += 1
        trace = "".join(traceback.format_tb(error.__traceback__)) if in_full else None
        facts = described(error, lambda: given, output=in_full)
        self._failures.append(
            {
                "failure_class": name,
                "message": message_of(error)[:_MESSAGE],
                "traceback": trace and trace[-_TRACEBACK:],
                "position": position,
                **facts,
            }
        )
        return facts.get("arguments")

    def ran(self, numbers: Sequence[int], durations: Sequence[float]) -> None:
        """Count finished tasks, except cache hits."""
        if self.found.isdisjoint(numbers):
            self.durations += durations
        else:
            both = zip(numbers, durations, strict=True)
            self.durations += [seconds for number, seconds in both if number not in self.found]

    def remember(self, number: int) -> None:
        """Assign the stored cache outcome to the finished task at a position of the bundle."""
        outcome, self.heard = self.heard, None
        if outcome is not None:
            self.outcomes.append(outcome)
            if outcome.is_hit:
                self.found.add(number)

    def entry(self, cancelled: int) -> Any:
        """Return the statistics, with times in seconds, as an entry of the Dask task's timings."""
        ordered = sorted(self.durations)
        more = [
            {"failure_class": n, "message": "not described", "traceback": None, "count": count}
            for n, count in self._more.items()
        ]
        values = {
            "calls": len(ordered),
            "failed": self._failed,
            "cancelled": cancelled,
            "found": len(self.found),
            "total_s": sum(ordered),
            "quantiles_s": [quantile(ordered, q) for q in SHARES] if ordered else [],
            "failures": self._failures + more,
            "rows": self.rows,
        }
        return addition(BUNDLE, values)
