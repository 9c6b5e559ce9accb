"""Facts about a failed task, gathered in the process that has its arguments and traceback."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import logging
import math
import pathlib
import re
import subprocess
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from itertools import chain, islice
from types import (
    BuiltinFunctionType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import Any

from distributed.scheduler import KilledWorker

from scalable import settings
from scalable.frames import causes, own_frame
from scalable.harmless import sendable
from scalable.units import as_written, format_duration, like

logger = logging.getLogger("scalable.worker")

#: Maximum numbers of last lines and last characters of an output that are kept.
LAST_LINES = 20
LAST_CHARACTERS = 4000
#: An error with this number of notes gets no note about its task.
MOST_NOTES = 10
_OF_SUBPROCESS = (subprocess.CalledProcessError, subprocess.TimeoutExpired)

Arguments = tuple[Sequence[Any], Mapping[str, Any]] | None
_read_output: list[Callable[[], str | None]] = [lambda: None] * 2


def read_output_with(
    of_process: Callable[[], str | None], of_task: Callable[[], str | None]
) -> None:
    """Set the functions that return the latest output of this process and of this task."""
    _read_output[:] = of_process, of_task


def recent_output() -> str | None:
    """Return the latest output of this process, or None if it is unknown."""
    return _read_output[0]()


def described(
    error: BaseException, arguments: Callable[[], Arguments], *, output: bool = True
) -> dict[str, str | None]:
    """Return the known ``FailureDetails`` of an error. Never raises or runs user classes' code."""
    facts: dict[str, str | None] = {}
    try:
        facts["frame"] = own_frame(error)
        if (text := arguments_text(arguments)) is not None:
            facts["arguments"] = text
        if output:
            facts["stderr"], facts["stdout"] = _of_child(error)
            facts["output"] = _read_output[1]()
    except Exception as problem:  # noqa: BLE001 - the task's own error must not be lost
        logger.debug("a failed task is not described in full: %r", problem)
    return {name: text and sendable(text) for name, text in facts.items()}


def message_of(error: BaseException) -> str:
    """Return an error's message as a traceback shows it. Does not raise."""
    try:
        return sendable(str(error))
    except Exception as other:  # noqa: BLE001 - the error's own code
        return f"the message cannot be shown: str() raised {type(other).__name__}"


def error_text(error: BaseException) -> str:
    """Return an error's class and message in the form that the scheduler parses."""
    return f"{type(error).__name__}({message_of(error)!r})"


def arguments_text(arguments: Callable[[], Arguments]) -> str | None:
    """Return a task's arguments as a string, or None if they are unknown or not recorded."""
    known = arguments() if settings.records_arguments() else None
    return None if known is None else sendable(shown_arguments(*known))


def note_call(error: BaseException, name: str, arguments: str | None, worker: str | None) -> None:
    """Add a note about the task, its arguments and its worker to an error. Does not raise."""
    where = "" if worker is None else f" on worker {worker}"
    note = f"task {name}{arguments or ''}{where}"
    known = getattr(error, "__notes__", ())
    # One error object may be raised by many tasks of a worker.
    if len(known) < MOST_NOTES and note not in known:
        with suppress(Exception):  # a class that accepts no attributes
            error.add_note(note)


def kinds_of(error: BaseException) -> tuple[str, ...]:
    """Return the names of an error's class and base classes, with modules unless built in."""
    return tuple(
        each.__qualname__
        if each.__module__ == "builtins"
        else f"{each.__module__}.{each.__qualname__}"
        for each in type(error).__mro__
        if each not in (BaseException, object)
    )


def last_lines(text: str) -> str:
    """Return at most ``LAST_LINES`` lines and ``LAST_CHARACTERS`` from an output's end."""
    lines = text[-LAST_CHARACTERS:].rstrip().splitlines()
    return "\n".join(lines[-LAST_LINES:])


#: Matches entries of Dask's log about its normal work (such as a worker's start), warnings, and
#: failed tasks, which are reported elsewhere. Other errors do not match: they may be the only
#: reason for a worker's exit.
_OF_DASK = re.compile(
    r"^\S+ \S+ - distributed[\w.]* - (?:"
    r"(?:INFO|WARNING) - .*\n?(?:Traceback .*\n(?:[ \t].*\n)*\S.*\n?)?"
    r"|\w+ - Compute Failed\n(?:(?:Key|State|Task|Exception|Traceback):.*\n)*\n?)",
    re.MULTILINE,
)


def without_dask(output: str) -> str:
    """Return a worker's output without Dask's log messages."""
    return _OF_DASK.sub("", output)


def _of_child(error: BaseException) -> tuple[str | None, str | None]:
    """Return the last lines of a failed child process's stderr and stdout."""
    for each in causes(error):
        if isinstance(each, _OF_SUBPROCESS):
            kept = attributes_of(each)
            return _tail(kept.get("stderr")), _tail(kept.get("output"))
    return None, None


def _tail(output: Any) -> str | None:
    if type(output) is bytes:
        output = output[-4 * LAST_CHARACTERS :].decode(errors="replace")
    return last_lines(output) or None if type(output) is str else None


# Ended frames -------------------------------------------------------------------------------------

#: Frames of these kinds may continue after an error that passed through them.
_MAY_GO_ON = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


#: Numbers of first and last frames that are kept of a deep traceback. Pickling takes several levels
#: of Python's stack (1,000 by default) for each frame.
_FIRST_FRAMES, _LAST_FRAMES = 10, 30


def release_frames(error: BaseException) -> None:
    """Clear the variables of an error's frames, since they would keep futures alive."""
    cleared: set[int] = set()
    for each in all_errors(error):
        trace = each.__traceback__
        while trace is not None:
            _clear(trace.tb_frame, cleared)
            trace = trace.tb_next
    shorten_tracebacks(error)


def shorten_tracebacks(error: BaseException) -> None:
    """Cut the middle of an error's and its causes' tracebacks if they are too deep for pickle."""
    for each in all_errors(error):
        frames, trace = [], each.__traceback__
        while trace is not None:
            frames.append(trace)
            trace = trace.tb_next
        if (dropped := len(frames) - _FIRST_FRAMES - _LAST_FRAMES) <= 0:
            continue
        kept = frames[:_FIRST_FRAMES] + frames[-_LAST_FRAMES:]
        for frame in reversed(kept):
            trace = TracebackType(trace, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
        each.__traceback__ = trace
        each.add_note(f"{dropped} frames in the middle of the traceback are not shown")


def all_errors(error: BaseException) -> list[BaseException]:
    """Return an error, its causes and the members of exception groups, each once."""
    known: dict[int, BaseException] = {}
    found: list[BaseException | None] = [error]
    while found:
        each = found.pop()
        if each is None or id(each) in known:
            continue
        known[id(each)] = each
        found += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            found += each.exceptions
    return list(known.values())


def _clear(frame: FrameType | None, cleared: set[int]) -> None:
    """Clear a frame and its callers up to a running one, since Dask cuts tracebacks."""
    while frame is not None and id(frame) not in cleared:
        if not frame.f_code.co_flags & _MAY_GO_ON:
            try:
                frame.clear()
            except RuntimeError:  # it still runs
                return
        cleared.add(id(frame))
        frame = frame.f_back


# Errors of lost workers ---------------------------------------------------------------------------

#: Number of times that a task may run out of memory before it fails.
MOST_OUT_OF_MEMORY = 2
#: Number of lost workers after which a task of an executor is given up. Dask allows one more.
LOSSES = 3


class _FailedWithWorker(KilledWorker):
    """A task has failed because of its workers. ``facts`` are the other arguments."""

    def __init__(self, task: Any, last_worker: Any, allowed_failures: int, *facts: Any) -> None:
        super().__init__(task, last_worker, allowed_failures)
        self.args = (task, last_worker, allowed_failures, *facts)


class OutOfMemory(_FailedWithWorker):
    """A task used more memory than its worker has.
    Its facts are the bytes that were used, the limit in bytes, the component or "", and the number
    of the worker's other tasks.
    """

    def of_call(self, task: Any) -> OutOfMemory:
        """Return the same error for a task with another name."""
        return OutOfMemory(task, *self.args[1:])

    def __str__(self) -> str:
        task, _, _, used, limit, component, others = self.args
        beside = f" and {others} other tasks of its worker" if others else ""
        component = f"of component {component!r}" if component else "of its worker"
        # Workers stop themselves a little below their limit.
        more = "more than" if used > limit else "up"
        return (
            f"task {task!r}{beside} used {more} {as_written(limit)}, the memory {component}; "
            f"it got to {like(limit, used)} before it was stopped; "
            f"set memory: {advised(limit, max(used, limit))} or more"
        )


class WalltimeReached(_FailedWithWorker):
    """A task reached its worker's walltime in each of its attempts.
    Its facts are the seconds that the last one ran, and the walltime in seconds.
    """

    def __str__(self) -> str:
        task, worker, _, ran_s, walltime_s = self.args
        minutes, seconds = divmod(round(walltime_s), 60)
        return (
            f"task {task!r} ran {format_duration(ran_s)}, until the walltime "
            f"({minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}) of its worker {worker}; "
            "set a longer walltime on the target, or split the task"
        )


class LostWorkers(_FailedWithWorker):
    """A task has failed because its workers were lost. Its facts are (worker, reason) pairs."""

    def __str__(self) -> str:
        task, last, allowed, *reasons = self.args
        workers: dict[str, list[str]] = {}
        for name, reason in reasons:
            workers.setdefault(reason, []).append(name)
        shown = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in workers.items())
        shown = shown or f"the last was {getattr(last, 'name', last)}"
        count = f"{allowed + 1} workers were lost while they ran it"
        return f"task {task!r} is given up: {count} ({shown})"


def is_given_up(losses: int, failure_class: str) -> bool:
    """Return whether an executor's task is given up after so many lost workers."""
    return losses >= (MOST_OUT_OF_MEMORY if failure_class == OutOfMemory.__name__ else LOSSES)


def advised(limit: int, used: int) -> str:
    """Return the memory to request, in the limit's unit, after a task reached ``used`` bytes."""
    wanted = used * 2  # what it really needs is unknown
    step = 10.0 ** math.floor(math.log10(wanted)) / 2
    return like(limit, math.ceil(wanted / step) * step)


# Short strings for arguments ----------------------------------------------------------------------

#: Maximum characters of the arguments of one task, and of one value among them.
MOST_CHARACTERS = 2000
MOST_OF_VALUE = 400
#: Maximum shown characters of a string, and shown entries of a collection.
_TEXT = 120
_ENTRIES = 6
_DEPTH = 3
#: Maximum bits of an integer that is shown in full.
_INTEGER_BITS = 256
_CUT = "..."

#: Types whose ``repr`` is short, quick, and not the user's.
_PLAIN = frozenset(
    {
        type(None), bool, float, complex, type(Ellipsis), type(NotImplemented), range,
        dt.date, dt.time, dt.timedelta, uuid.UUID, fractions.Fraction,
    }
)  # fmt: skip
_PATHS = frozenset({pathlib.PosixPath, pathlib.PurePosixPath, pathlib.PureWindowsPath})
#: Libraries whose arrays and tables provide shape and type without computation.
_OF_ARRAYS = frozenset(
    {"numpy", "pandas", "xarray", "dask", "scipy", "polars", "pyarrow", "cupy", "torch"}
)
#: Scalars of these libraries with a short ``repr``.
_SCALARS = frozenset({"Timestamp", "Timedelta", "Period", "NaTType"})


def shown_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return a task's arguments as a short string. Takes less than a millisecond."""
    parts: list[str] = []
    left = MOST_CHARACTERS
    for name, value in chain((("", value) for value in args), kwargs.items()):
        part = (f"{name[:_TEXT]}=" if name else "") + shown(value, min(MOST_OF_VALUE, left))
        left -= len(part) + 2
        if left < len(_CUT):
            parts.append(_CUT)
            break
        parts.append(part)
    return f"({', '.join(parts)})"


def shown(value: Any, most: int = MOST_OF_VALUE) -> str:
    """Return a string of at most ``most`` characters for a value. Runs no code of its class."""
    try:
        text = _safe_repr(value, _DEPTH)
    except Exception as error:  # noqa: BLE001 - another thread may change the value
        text = f"<{_class_name(type(value))}, not shown: {type(error).__name__}>"
    return text if len(text) <= most else text[: max(0, most - len(_CUT))] + _CUT


def _safe_repr(value: Any, depth: int) -> str:
    kind = type(value)
    if kind in _PLAIN:
        return repr(value)
    if kind in _EXACT:
        return _EXACT[kind](value)
    if _module(kind).partition(".")[0] in _OF_ARRAYS:
        return _of_library(value)
    if issubclass(kind, enum.Enum):
        return f"{_class_name(kind)}.{attributes_of(value).get('_name_', '?')}"
    for base, show in _BY_BASE:
        if issubclass(kind, base):
            text = show(value, depth)
            is_named = kind is base or text.startswith("<")
            return text if is_named else f"{_class_name(kind)}({text})"
    return _instance(value, depth)


def _integer(value: int, _: int) -> str:
    bits = int.bit_length(value)
    return int.__repr__(value) if bits <= _INTEGER_BITS else f"<int of {bits} bits>"


def _cut_repr(value: str | bytes | bytearray) -> str:
    if len(value) <= _TEXT:
        return repr(value)
    unit = "characters" if type(value) is str else "bytes"
    return f"{value[:_TEXT]!r}{_CUT} ({len(value)} {unit})"


def _decimal(value: decimal.Decimal, _: int) -> str:
    digits = len(decimal.Decimal.as_tuple(value).digits)
    return f"<Decimal of {digits} digits>" if digits > _TEXT else decimal.Decimal.__repr__(value)


def _function(value: Any, _: int) -> str:
    return f"<function {str(getattr(value, '__qualname__', '?'))[:_TEXT]}>"


def _collection(value: Any, depth: int, base: Any, brackets: str = "{}") -> str:
    """Show a collection's first entries, which the methods of its base class return."""
    count, texts = base.__len__(value), list[str]()
    entries = dict.items(value) if base is dict else zip(base.__iter__(value))
    if depth > 0:
        for entry in islice(entries, _ENTRIES):
            texts.append(": ".join(_safe_repr(part, depth - 1) for part in entry))
    elif count:
        texts.append(_CUT)
    more = f", {_CUT} ({count} entries)" if depth > 0 and count > len(texts) else ""
    comma = "," if base is tuple and count == 1 else ""
    return f"{brackets[0]}{', '.join(texts)}{more}{comma}{brackets[1]}"


def _tuple(value: tuple[Any, ...], depth: int) -> str:
    names = _of_class(type(value), "_fields")
    if isinstance(names, tuple) and len(names) == (count := tuple.__len__(value)):
        return _assigned(zip(names, tuple.__iter__(value), strict=True), count, depth)
    return _collection(value, depth, tuple, "()")


def _frozenset(value: Any, depth: int) -> str:
    listed = _collection(value, depth, frozenset)
    return f"frozenset({listed})" if type(value) is frozenset else listed


#: Functions that show only instances of the class itself, whose methods they run.
_EXACT: dict[type, Callable[[Any], str]] = {
    bytearray: _cut_repr,
    dt.datetime: lambda value: f"datetime({value:%Y-%m-%d %H:%M:%S})",
    **{kind: lambda value: f"{type(value).__name__}({_cut_repr(str(value))})" for kind in _PATHS},
}
#: Functions that show the instances of each base class. They read the plain value of an instance
#: without running code of its class, whose name is added to the text for a derived class.
_BY_BASE: tuple[tuple[type, Callable[[Any, int], str]], ...] = (
    (int, _integer),
    (str, lambda value, _: _cut_repr(str.__str__(value))),
    (float, lambda value, _: float.__repr__(value)),
    (list, lambda value, depth: _collection(value, depth, list, "[]")),
    (tuple, _tuple),
    (dict, lambda value, depth: _collection(value, depth, dict)),
    (set, lambda value, depth: _collection(value, depth, set)),
    (frozenset, _frozenset),
    (bytes, lambda value, _: _cut_repr(bytes.__getitem__(value, slice(None)))),
    (decimal.Decimal, _decimal),
    (type, lambda value, _: f"<class {_class_name(value)}>"),
    (FunctionType, _function),
    (BuiltinFunctionType, _function),
    (MethodType, lambda value, depth: _function(value.__func__, depth)),
    (ModuleType, lambda *_: "<module>"),
    (memoryview, lambda value, _: f"<memoryview of {value.nbytes} bytes>"),
)


def _of_library(value: Any) -> str:
    """Return class, dtype and shape of an array or table, or the ``repr`` of a small scalar."""
    kind = type(value)
    if _class_name(kind) in _SCALARS or (
        _module(kind) == "numpy" and getattr(value, "shape", None) == () and value.itemsize <= 32
    ):
        return str(repr(value))[:_TEXT]
    facts = [_class_name(kind)]
    shape, dtype = (getattr(value, name, None) for name in ("shape", "dtype"))
    if dtype is not None:
        facts.append(str(dtype)[:_TEXT])
    if isinstance(shape, tuple):
        facts.append(f"shape {' x '.join(str(length) for length in shape) or '()'}"[:_TEXT])
    return f"<{' '.join(facts)}>"


def _instance(value: Any, depth: int) -> str:
    attributes = attributes_of(value)
    name = _class_name(type(value))
    if not attributes:
        return f"<{name}>"
    if depth <= 1:
        return f"{name}({_CUT})"
    pairs = [(key, each) for key, each in islice(attributes.items(), _ENTRIES + 1)]
    return f"{name}({_assigned(pairs, len(attributes), depth)})"


def _assigned(pairs: Iterable[tuple[Any, Any]], count: int, depth: int) -> str:
    if depth <= 0:
        return _CUT
    texts = [
        f"{key[:_TEXT] if type(key) is str else '?'}={_safe_repr(each, depth - 1)}"
        for key, each in islice(pairs, _ENTRIES)
    ]
    return ", ".join(texts) + (f", {_CUT}" if count > len(texts) else "")


def attributes_of(value: Any) -> dict[str, Any]:
    """Return an instance's attributes without running code of its class."""
    for base in _bases(type(value)):
        if "__slots__" in (own := _namespace(base)):
            names = own["__slots__"]
            slots = (names,) if isinstance(names, str) else tuple(names)
            found = {n: own[n].__get__(value) for n in slots if _is_slot(own.get(n), value)}
            if found:
                return found
        described = own.get("__dict__")
        if isinstance(described, GetSetDescriptorType):
            attributes = described.__get__(value)
            return attributes if isinstance(attributes, dict) else {}
    return {}


def _is_slot(descriptor: Any, value: Any) -> bool:
    if type(descriptor).__name__ != "member_descriptor":
        return False
    try:
        descriptor.__get__(value)
    except AttributeError:
        return False
    return True


def _bases(kind: type) -> tuple[type, ...]:
    found: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    return found


def _namespace(kind: type) -> Mapping[str, Any]:
    found: Mapping[str, Any] = type.__dict__["__dict__"].__get__(kind)
    return found


def _of_class(kind: type, name: str) -> Any:
    spaces = map(_namespace, _bases(kind))
    return next((space[name] for space in spaces if name in space), None)


def _module(kind: type) -> str:
    return str(type.__dict__["__module__"].__get__(kind))


def _class_name(kind: type) -> str:
    return str(type.__dict__["__name__"].__get__(kind))[:_TEXT]
