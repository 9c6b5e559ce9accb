"""Failed tasks: their errors, their failures as values (also of sweeps), and their reruns."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from itertools import chain
from pathlib import Path
from typing import Any, Final

import dask
from dask.utils import funcname, key_split
from distributed import Client, Future, wait
from distributed.client import futures_of
from distributed.core import clean_exception
from distributed.protocol.serialize import serialize

from scalable.client.futures import CallFuture
from scalable.dask_compat.client import facts_of, failed_task, state_of
from scalable.errors import ClusterError
from scalable.protocol.code import ImageVersions, in_image, is_own, locate, reword
from scalable.protocol.handlers import Handler, request
from scalable.protocol.messages import restored, why_not_sendable
from scalable.protocol.operations import VERSIONS, WIRE
from scalable.units import seconds_of

logger = logging.getLogger("scalable.client")

RAISE: Final = "raise"
KEEP: Final = "keep"
#: Maximum number of characters of the exception's message in the ``repr`` of a failure.
_SHOWN = 200


@dataclass(frozen=True)
class CallFailed:
    """Value that replaces the result of a failed task. It is false in conditions.

    Attributes
    ----------
    key
        Key of the task.
    task
        Name of the task, or of its function.
    tag
        Tag of its pool, or None for a task without a tag.
    arguments
        Arguments as a string of bounded size, as in ``(2050, region='north')``, or None if they are
        unknown.
    worker
        Name of the worker of its last attempt, or None for a task that never ran.
    tries
        Number of attempts that were started.
    exception
        Exception of its last attempt.
    traceback
        The exception and its traceback as a string.
    cause
        Failure of the task that really failed, if this task did not run because it needs that
        task's result. Otherwise None.
    """

    key: str
    task: str
    tag: str | None
    arguments: str | None
    worker: str | None
    tries: int
    exception: BaseException = field(compare=False)
    traceback: str = field(compare=False)
    cause: CallFailed | None = None

    def __bool__(self) -> bool:
        """Return False, so that ``if result`` skips failures."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """Return the failure as strings and numbers, for a row of a table.

        Returns
        -------
        dict
            ``key``, ``task``, ``tag``, ``arguments``, ``worker``, ``tries``, ``error`` (type and
            message of the exception), ``traceback``, and ``cause``, a dictionary of the same kind
            or None.
        """
        cause = None if self.cause is None else self.cause.to_dict()
        facts = {**vars(self), "exception": self.error, "cause": cause}
        return {"error" if name == "exception" else name: fact for name, fact in facts.items()}

    @property
    def error(self) -> str:
        """Type and message of the exception."""
        name, message = type(self.exception).__name__, str(self.exception)
        return f"{name}: {message}" if message else name

    def __repr__(self) -> str:
        error = self.error.partition("\n")[0]
        error = error if len(error) <= _SHOWN else f"{error[:_SHOWN]}..."
        because = "" if self.cause is None else f", because {self.cause.subject} failed"
        return f"<CallFailed {self.subject}{because}: {error}>"

    @property
    def subject(self) -> str:
        """Description of the task for messages: arguments, worker and number of attempts."""
        where = "" if self.worker is None else f" on worker {self.worker}"
        tries = "" if self.tries < 2 else f" in {self.tries} attempts"
        return f"{self.task}{self.arguments or ''}{where}{tries}"


class KeptFuture(Future[Any]):
    """Future whose result is a :class:`CallFailed` if its task fails, unless ``raiseit=False``."""

    async def _result(self, raiseit: bool = True) -> Any:
        await state_of(self).wait()
        if raiseit and self.status == "error":
            return (await _failures_of(self.client, [self]))[self.key]
        return await super()._result(raiseit)


async def kept_values(client: Client, futures: Iterable[Future[Any]]) -> dict[Any, Any]:
    """Wait for futures that keep failures, and return the failures of their tasks by key."""
    kept = [future for future in futures if isinstance(future, KeptFuture)]
    for future in kept:
        await state_of(future).wait()
    failed = [future for future in kept if future.status == "error"]
    return dict(await _failures_of(client, failed)) if failed else {}


async def _failures_of(client: Client, futures: list[KeptFuture]) -> Mapping[Any, CallFailed]:
    """Return the failures of failed tasks by key."""
    keys = [future.key for future in futures]
    facts: list[Mapping[str, Any]] = [{} for _ in keys]
    if facts_of(client).get(WIRE):
        try:
            facts = await request(client.scheduler, Handler.FAILURES, keys=keys)
        except OSError as problem:
            logger.debug("could not describe the failures of %d tasks: %r", len(keys), problem)
    found = {}
    for future, known in zip(futures, facts, strict=True):
        state = state_of(future)
        _, error, trace = clean_exception(state.exception, state.traceback)
        assert error is not None
        text = "".join(traceback.format_exception(type(error), error, trace))
        found[future.key] = _failure({"key": future.key, **known}, error, text)
    return found


def _failure(facts: Mapping[str, Any], error: BaseException, text: str) -> CallFailed:
    cause = facts.get("cause")
    return CallFailed(
        key=str(facts["key"]),
        task=str(facts.get("task_name") or key_split(facts["key"])),
        tag=facts.get("tag"),
        arguments=facts.get("arguments"),
        worker=facts.get("worker"),
        tries=int(facts.get("tries", 1)),
        exception=error,
        traceback=text,
        cause=None if cause is None else _failure(cause, error, text),
    )


# Errors of tasks ----------------------------------------------------------------------------------


def shown_error(client: Client, error: Any) -> Any:
    """Return the error to show in place of a task's error."""
    restored(error)
    cause = getattr(error, "__cause__", None)
    if isinstance(error, RuntimeError) and isinstance(cause, ModuleNotFoundError):
        image = ImageVersions(*(facts_of(client).get(VERSIONS) or ("", {})))
        locate(cause, in_image("the scheduler", image.image), "the graph")
        return with_package(cause)
    return with_package(error)


def with_package(error: BaseException | None) -> BaseException | None:
    """Name the local package of a missing module in its error. Return other errors unchanged."""
    if type(error) is not ModuleNotFoundError or not error.name:
        return error
    words = _origin_phrase(error.name)
    if words not in str(error):
        reword(error, f"{error} {words}")
    return error


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


def _is_not_all_exit(record: logging.LogRecord) -> bool:
    """Return False for asyncio's log records about ``AllExit`` after an interrupted gather."""
    error = record.exc_info[0] if record.exc_info else None
    return error is None or error.__name__ != "AllExit"


logging.getLogger("asyncio").addFilter(_is_not_all_exit)
# distributed.batched logs each connection that is closed with unsent messages, which is usual when
# a session is closed.
logging.getLogger("distributed.batched").setLevel(logging.WARNING)

_PACKAGE = Path(__file__).parents[1]
#: Pattern of what each setting leaves out: names of modules in the source that Dask records for a
#: computation, and files in tracebacks.
_PATTERNS = {
    "distributed.diagnostics.computations.ignore-modules": rf"{_PACKAGE.name}(\.|$)",
    "admin.traceback.shorten": rf"{re.escape(str(_PACKAGE))}[\\/]",
}


def leave_out_our_frames() -> None:
    """Hide this package's frames in tracebacks and in the source code that Dask records."""
    for setting, pattern in _PATTERNS.items():
        known = dask.config.get(setting, None)
        if isinstance(known, list) and pattern not in known:
            dask.config.set({setting: [*known, pattern]})


# Tasks that cannot be sent ------------------------------------------------------------------------

#: First words of Dask's error for a graph that cannot be pickled.
_DASK = "Could not serialize object"


def _is_no_result(record: logging.LogRecord) -> bool:
    """Return False for Dask's log record about a result whose error is raised anyway."""
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, TypeError) and str(error).startswith(_DASK))


# The error of the object is raised anyway.
logging.getLogger("distributed.protocol.pickle").addFilter(
    lambda record: record.msg != "Failed to serialize %s."
)
logging.getLogger("distributed.protocol.core").addFilter(_is_no_result)

#: Labels and values of the parts of a task.
Parts = Iterable[tuple[str, Any]]


@contextmanager
def explained(name: str, parts: Callable[[], Parts]) -> Iterator[None]:
    """Replace Dask's error about an unpicklable graph by one that names the unpicklable part."""
    try:
        yield
    except TypeError as error:
        if not error.args or not str(error.args[0]).startswith(_DASK):
            raise
        found = unsendable(name, parts())
        if found is None:
            raise
        raise found from None


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


def unsendable_result(error: TypeError, keys: list[Any]) -> TypeError | None:
    """Return the error for tasks with an unpicklable result, or None for other errors."""
    first, _, trace = str(error).partition("\n")
    if not first.startswith(_DASK):
        return None
    call = f"task {key_split(keys[0])!r}" if len(keys) == 1 else "a task"
    kind = first.rpartition(" ")[2]
    why = next((line for line in reversed(trace.splitlines()) if line.strip()), "")
    return TypeError(
        f"the result of {call} ({kind}) cannot be sent: {why.partition(': ')[2] or 'unknown'}. "
        "Return an object that can be pickled, or write it to a file in the task"
    )


def refuse_unsendable(value: Any) -> None:
    """Raise TypeError if an object that is to be uploaded cannot be pickled."""
    try:
        serialize(value, on_error="raise")  # large buffers are not copied
    except Exception as error:  # noqa: BLE001 - whatever the object's own code raises
        cause = error.__cause__ or error
        raise TypeError(
            f"an object ({type(value).__name__}) cannot be sent to the workers: {cause}"
        ) from None


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


# Reruns -------------------------------------------------------------------------------------------

_SCRIPT = "__main__"


def run_failed_task(client: Any, future: Any) -> Any:
    """Run in this thread the task that caused a future's failure, and return its result.
    Functions of the script come from this process, so that a debugger shows their source. Raises
    ClusterError if nothing has failed, or for an executor's future.
    """
    if isinstance(future, CallFuture):
        raise ClusterError(
            "the scheduler does not keep tasks of executors, so they cannot run again here",
            hint="submit the task with client.submit()",
        )
    futures = futures_of(future)
    wait(futures)
    if not any(each.status == "error" for each in futures):
        raise ClusterError("no task of these futures has failed")
    node, inputs = failed_task(client, future)
    if hasattr(node, "func"):
        node = node.copy()
        node.func = own_function(node.func)
    return node(inputs)


def debug_failed_task(client: Any, future: Any) -> None:
    """Run a failed task in this thread, and open Python's debugger where it raises."""
    try:
        run_failed_task(client, future)
    except ClusterError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the user's task raises
        import pdb  # noqa: T100 - its import fails next to a script named cmd.py or code.py

        debugger = pdb.Pdb()
        debugger.message("".join(traceback.format_exception_only(error)).rstrip())
        debugger.reset()
        debugger.interaction(None, error.__traceback__)
    else:
        raise ClusterError("the task did not fail when it ran here")


def own_function(function: Any) -> Any:
    """Return this process's version of a script's function, or other functions unchanged."""
    if type(function).__module__.startswith("scalable."):  # a cached task
        function = getattr(function, "__wrapped__", function)
    if getattr(function, "__module__", None) != _SCRIPT:
        return function
    own: Any = sys.modules[_SCRIPT]
    for name in str(getattr(function, "__qualname__", "")).split("."):
        own = getattr(own, name, None)
    return function if own is None else own


# Sweeps -------------------------------------------------------------------------------------------

#: Words for Dask's states of futures.
STATES = {"finished": "done", "error": "failed"}
#: Columns after those of the parameters.
COLUMNS = ("state", "result", "error", "duration_s", "worker")
#: Number of tasks whose measurements are requested at once.
_AT_ONCE = 100


class Sweep:
    """Tasks of one function, one for each set of parameters. Made by ``ScalableClient.sweep``.

    Attributes
    ----------
    parameters
        Keyword arguments of each task, as dictionaries.
    futures
        Futures of the tasks, in the same order. The result of a failed one is a
        :class:`scalable.CallFailed`.
    """

    def __init__(
        self,
        client: Client,
        parameters: Iterable[Mapping[str, Any]],
        futures: Iterable[Future[Any]],
        frame: type[Any] | None = None,
    ) -> None:
        self.parameters = tuple(dict(row) for row in parameters)
        self.futures = tuple(futures)
        self._client, self._frame = client, frame

    def __len__(self) -> int:
        return len(self.futures)

    def __iter__(self) -> Iterator[Future[Any]]:
        return iter(self.futures)

    def __repr__(self) -> str:
        counts = Counter(map(_state, self.futures))
        shown = ", ".join(f"{count} {state}" for state, count in counts.items())
        return f"<Sweep of {len(self)} tasks: {shown or 'none'}>"

    def _repr_html_(self) -> str | None:
        table = self.table()
        return table._repr_html_() if hasattr(table, "_repr_html_") else None

    def wait(self, timeout: str | float | None = None) -> Sweep:
        """Wait until all tasks have finished, and return the sweep.

        Parameters
        ----------
        timeout
            Time after which TimeoutError is raised, in seconds or as a string such as ``"5 min"``.
            None for no limit.
        """
        wait(self.futures, seconds_of("timeout", timeout))
        return self

    def results(self) -> list[Any]:
        """Wait for all tasks, and return their results in order.

        Returns
        -------
        list
            One result for each task: a :class:`scalable.CallFailed` for a failed one.
        """
        return list(self._client.gather(list(self.futures)))

    def succeeded(self) -> list[Future[Any]]:
        """Return the futures of tasks that have succeeded so far, in order, without waiting.
        Pass them to another task to reduce their results.
        """
        return [future for future in self.futures if future.status == "finished"]

    def failures(self) -> list[CallFailed]:
        """Return the failures so far, in order, without waiting."""
        failed = [future for future in self.futures if future.status == "error"]
        return list(self._client.gather(failed))

    def table(self) -> Any:
        """Return a table of the tasks with their states and results so far. Does not wait.

        Returns
        -------
        list of dict, or pandas.DataFrame
            A DataFrame if the sweep was made from one. Each row has the parameters, then ``state``
            (``pending``, ``done``, ``failed``, ``cancelled``, ``lost``), ``result``, ``error``
            (type and message), ``duration_s`` (seconds) and ``worker``. Unknown values are None. A
            column gets an underscore appended if a parameter has the same name.
        """
        ended = [future for future in self.futures if future.status in STATES]
        values = dict(zip(_keys(ended), self._client.gather(ended), strict=True))
        measured = self._client.sync(self._measured, _keys(ended))
        rows = []
        for parameters, future in zip(self.parameters, self.futures, strict=True):
            value, facts = values.get(future.key), measured.get(future.key) or {}
            failed = value if isinstance(value, CallFailed) and future.status == "error" else None
            found = (
                _state(future),
                None if failed is not None else value,
                None if failed is None else failed.error,
                facts.get("duration_s"),
                facts.get("worker") or (failed.worker if failed is not None else None),
            )
            names = (f"{name}_" if name in parameters else name for name in COLUMNS)
            rows.append(parameters | dict(zip(names, found, strict=True)))
        return rows if self._frame is None else self._frame(rows)

    async def _measured(self, keys: list[Any]) -> dict[Any, Any]:
        """Return the measurements of finished tasks by key."""
        scheduler = self._client.scheduler
        found: dict[Any, Any] = {}
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            asked = (request(scheduler, Handler.PROFILE, key=key) for key in some)
            rows = await asyncio.gather(*asked)
            found |= dict(zip(some, rows, strict=True))
        return found


def rows_of(parameters: Any) -> tuple[list[dict[str, Any]], type[Any] | None]:
    """Return rows of parameters as dictionaries, and the DataFrame class or None."""
    if hasattr(parameters, "to_dict") and hasattr(parameters, "columns"):
        rows, frame = parameters.to_dict("records"), type(parameters)
    else:
        rows, frame = list(parameters), None
    for row in rows:
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise TypeError(
                f"a sweep takes a DataFrame or mappings from parameter names to values, not {row!r}"
            )
    return [dict(row) for row in rows], frame


def _keys(futures: Iterable[Future[Any]]) -> list[Any]:
    return [future.key for future in futures]


def _state(future: Future[Any]) -> str:
    state = str(future.status)
    return STATES.get(state, state)
