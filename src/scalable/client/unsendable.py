"""Errors for tasks that cannot be sent, because their function or an argument is not picklable."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

from dask.utils import funcname
from distributed.protocol.serialize import serialize

from scalable.protocol.messages import why_not_sendable

#: First words of Dask's error for a graph that cannot be pickled.
_DASK = "Could not serialize object"

_here = threading.local()


def _is_wanted(record: logging.LogRecord) -> bool:
    """Return False for Dask's log record with the tracebacks of an error that is raised here."""
    return not (getattr(_here, "quiet", False) and record.msg == "Failed to serialize %s.")


def _is_no_result(record: logging.LogRecord) -> bool:
    """Return False for Dask's log record about a result whose error is raised here."""
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, TypeError) and str(error).startswith(_DASK))


logging.getLogger("distributed.protocol.pickle").addFilter(_is_wanted)
logging.getLogger("distributed.protocol.core").addFilter(_is_no_result)

#: Labels and values of the parts of a task.
Parts = Iterable[tuple[str, Any]]


@contextmanager
def explained(name: str, parts: Callable[[], Parts]) -> Iterator[None]:
    """Replace Dask's error about a graph that cannot be pickled by one that names the part."""
    _here.quiet = True
    try:
        yield
    except TypeError as error:
        if not error.args or not str(error.args[0]).startswith(_DASK):
            raise
        found = unsendable(name, parts())
        if found is None:
            raise
        raise found from None
    finally:
        _here.quiet = False


def unsendable(name: str, parts: Parts) -> TypeError | None:
    """Return the error for a task with a part that cannot be pickled, or None."""
    for label, value in parts:
        why = why_not_sendable(value)
        if why is not None:
            return TypeError(
                f"call {name!r} cannot be sent to a worker: {label} ({type(value).__name__}) "
                f"cannot be pickled: {why}. Make such an object within the call, and pass what "
                "it is made from"
            )
    return None


def unsendable_result(error: TypeError, call: str) -> TypeError | None:
    """Return the error for a task whose result cannot be pickled, or None for other errors."""
    first, _, trace = str(error).partition("\n")
    if not first.startswith(_DASK):
        return None
    kind = first.rpartition(" ")[2]
    why = next((line for line in reversed(trace.splitlines()) if line.strip()), "")
    return TypeError(
        f"the result of {call} ({kind}) cannot be sent: {why.partition(': ')[2] or 'unknown'}. "
        "Return an object that can be pickled, or write it to a file in the call"
    )


def refuse_unsendable(value: Any) -> None:
    """Raise TypeError if an object that is to be uploaded cannot be pickled."""
    _here.quiet = True
    try:
        serialize(value, on_error="raise")  # large buffers are not copied
    except Exception as error:  # noqa: BLE001 - whatever the object's own code raises
        cause = error.__cause__ or error
        raise TypeError(
            f"an object ({type(value).__name__}) cannot be sent to the workers: {cause}"
        ) from None
    finally:
        _here.quiet = False


def parts_of_call(
    func: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any] | None
) -> Parts:
    """Return the labelled parts of a task, in the order of search."""
    yield from ((f"its argument {i}", value) for i, value in enumerate(args, 1))
    yield from ((f"its argument {key}=", value) for key, value in (kwargs or {}).items())
    yield "its function", func


def parts_of_map(
    func: Callable[..., Any], iterables: Iterable[Iterable[Any]], kwargs: Mapping[str, Any]
) -> Parts:
    """Return the labelled parts of the tasks of ``client.map``."""
    elements = (
        (f"element {place} of its argument {i}", value)
        for i, values in enumerate(iterables, 1)
        for place, value in enumerate(values)
    )
    return chain(elements, parts_of_call(func, (), kwargs))


def parts_of_graph(graph: Mapping[Any, Any]) -> Parts:
    """Return the labelled nodes of a plain graph."""
    return ((f"its node {name!r}", node) for name, node in graph.items())


def name_of(func: Any) -> str:
    """Return the name of a function for a message."""
    return str(funcname(func))
