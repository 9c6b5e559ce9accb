"""Errors for tasks with a function or an argument that cannot be pickled."""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from itertools import chain
from typing import Any

from dask.utils import funcname
from distributed.protocol.serialize import serialize

from scalable.protocol.code import is_own
from scalable.protocol.messages import why_not_sendable

#: First words of Dask's error for a graph that cannot be pickled.
_DASK = "Could not serialize object"

_here = threading.local()


def _is_wanted(record: logging.LogRecord) -> bool:
    """Return False for Dask's log record about an error that is raised here anyway."""
    return not (getattr(_here, "quiet", False) and record.msg == "Failed to serialize %s.")


def _is_no_result(record: logging.LogRecord) -> bool:
    """Return False for Dask's log record about a result whose error is raised anyway."""
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, TypeError) and str(error).startswith(_DASK))


logging.getLogger("distributed.protocol.pickle").addFilter(_is_wanted)
logging.getLogger("distributed.protocol.core").addFilter(_is_no_result)

#: Labels and values of the parts of a task.
Parts = Iterable[tuple[str, Any]]


@contextmanager
def explained(name: str, parts: Callable[[], Parts]) -> Iterator[None]:
    """Replace Dask's error about an unpicklable graph by one that names the unpicklable part."""
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
                f"task {name!r} cannot be sent to a worker: {label} ({type(value).__name__}) "
                f"cannot be pickled: {why}. Create such an object in the task, and pass what "
                "it is created from"
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
        "Return an object that can be pickled, or write it to a file in the task"
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
    """Return the labelled parts of a task, in the order in which they are checked."""
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


# Missing packages ---------------------------------------------------------------------------------


def with_package(error: BaseException | None) -> BaseException | None:
    """Name the local package of a missing module in its error. Return other errors unchanged."""
    if type(error) is not ModuleNotFoundError or not error.name:
        return error
    words = _origin_phrase(error.name)
    if not words or words in str(error):
        return error
    told = ModuleNotFoundError(f"{error} {words}", name=error.name, path=error.path)
    told.__cause__, told.__context__ = error.__cause__, error.__context__
    told.__suppress_context__ = error.__suppress_context__
    return told.with_traceback(error.__traceback__)


@lru_cache(maxsize=256)  # finding a package reads the metadata of all, and many tasks may fail
def _origin_phrase(name: str) -> str:
    """Return a phrase about a module's origin in this process, or "" if it is missing."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return ""
    if spec is None:
        return ""
    if is_own(name, spec.origin):
        return f"This process has it in {spec.origin}, which does not reach the worker."
    packages = []
    for package in packages_distributions().get(name.partition(".")[0], ()):
        try:
            packages.append(f"{package}=={version(package)}")
        except PackageNotFoundError:
            continue
    if not packages:
        return ""
    return f"This process has it from {' or '.join(sorted(set(packages)))}."
