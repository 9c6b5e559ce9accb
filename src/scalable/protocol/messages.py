"""Conversion of tasks and their outcomes to bytes and back.

Plain pickle is tried before cloudpickle, because it is several times as fast. Dask futures in
arguments are sent as keys, and Dask provides their values.
"""

from __future__ import annotations

import asyncio
import io
import pickle
import threading
import traceback
from collections import ChainMap
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from copyreg import dispatch_table as known_reducers
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import chain, repeat
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeVar

from distributed import Future
from distributed.core import clean_exception, error_message

from scalable.dask_compat.by_value import ByValuePickler
from scalable.dask_compat.client import KnownFuture, load_traceback
from scalable.protocol.failures import all_errors

PROTOCOL = 5
#: Maximum bytes of a value within a message. A larger result stays on its worker until the client
#: fetches it. A larger argument is uploaded.
LARGE = 1 << 20

_open = threading.local()


class Reference:
    """A large argument that is on the workers: an uploaded object, or a task's result.
    ``bring_again`` restores a lost object, and updates ``future`` and its ``position`` in a bundle.
    """

    __slots__ = ("_restoring", "bring_again", "future", "position", "value")

    def __init__(
        self,
        future: Future[Any],
        bring_again: Callable[[Reference], Awaitable[None]],
        *,
        value: Any = None,
        position: int | None = None,
    ) -> None:
        self.future, self.bring_again = future, bring_again
        self.value, self.position = value, position
        self._restoring: asyncio.Future[None] | None = None

    async def restore(self) -> None:
        """Restore a lost object, once for all callers."""
        if self._restoring is None or self._restoring.done():
            self._restoring = asyncio.ensure_future(self.bring_again(self))
        await asyncio.shield(self._restoring)


def _by_key(future: Future[Any]) -> Any:
    found = getattr(_open, "found", None)
    if found is None:  # it is in a result, not in an argument
        return future.__reduce_ex__(PROTOCOL)
    found[future.key] = future
    return _of_key, (future.key,)


def _by_reference(reference: Reference) -> Any:
    key = reference.future.key
    _open.found[key] = reference
    if reference.position is not None:
        return _of_part, (key, reference.position)
    return _of_key, (key,)


def _of_key(key: Any) -> Any:
    value = _open.values[key]
    # Other tasks, including those in this process, take the same uploaded object.
    return value.load(readonly=True) if type(value) is Pickled else value


def _of_part(key: Any, position: int) -> Any:
    return _open.values[key][position].load(copies=True)  # other tasks may take the same result


_REDUCERS: dict[Any, Any] = {
    Future: _by_key,
    KnownFuture: _by_key,
    Reference: _by_reference,
}


class _PlainPickler(pickle.Pickler):
    dispatch_table = ChainMap[Any, Any](_REDUCERS, known_reducers)  # noqa: RUF012 - pickle's own


class _ByValuePickler(ByValuePickler):
    dispatch_table = ChainMap[Any, Any](  # noqa: RUF012 - pickle's own
        _REDUCERS, ByValuePickler.dispatch_table
    )


def _dump(value: Any, pickler: type[pickle.Pickler], buffers: list[Any] | None = None) -> bytes:
    file = io.BytesIO()
    callback = None if buffers is None else buffers.append
    pickler(file, protocol=PROTOCOL, buffer_callback=callback).dump(value)
    return file.getvalue()


def dump(value: Any, buffers: list[Any] | None = None) -> bytes:
    """Pickle an object, by value if it cannot be imported. Large buffers go to ``buffers``."""
    try:
        data = _dump(value, _PlainPickler, buffers)
        # In another process, __main__ is another module, so a reference to it is not enough.
        if b"__main__" not in data:
            return data
    except Exception:  # noqa: BLE001, S110 - pickle raises whatever the objects raise
        pass
    if buffers is not None:
        buffers.clear()
    return _dump(value, _ByValuePickler, buffers)


class Pickled:
    """A large pickled value whose buffers are not copied. Pickling may raise the value's errors."""

    __slots__ = ("_buffers", "_data")

    def __init__(self, value: Any) -> None:
        self._buffers: list[Any] = []
        #: Pickled value. Empty for bytes, of which pickle would make a copy: they are the buffer.
        self._data: Any = b""
        if type(value) is bytes:
            self._buffers.append(pickle.PickleBuffer(value))
        else:
            self._data = dump(value, self._buffers)

    def __reduce_ex__(self, protocol: Any) -> Any:
        kind: Callable[[Any], Any] = pickle.PickleBuffer if protocol >= PROTOCOL else bytes
        return _pickled, tuple(map(kind, (self._data, *self._buffers)))

    def __sizeof__(self) -> int:
        return sum(memoryview(part).nbytes for part in (self._data, *self._buffers))

    def load(self, *, copies: bool = False, readonly: bool = False) -> Any:
        """Return a new value. ``copies`` avoids shared memory, ``readonly`` makes it read-only."""
        buffers = self._buffers
        if not memoryview(self._data).nbytes:
            return bytes(buffers[0])
        if copies:
            buffers = list(map(bytearray, buffers))
        elif readonly:
            buffers = [memoryview(buffer).toreadonly() for buffer in buffers]
        return pickle.loads(self._data, buffers=buffers)  # noqa: S301 - see load()


def _pickled(data: Any, *buffers: Any) -> Pickled:
    made = Pickled.__new__(Pickled)
    made._data, made._buffers = data, list(buffers)  # noqa: SLF001
    return made


def why_not_sendable(value: Any) -> str | None:
    """Return why a value cannot be pickled, or None if it can. Dask futures can."""
    _open.found = {}
    try:
        dump(value)
    except Exception as error:  # noqa: BLE001 - pickle raises whatever the objects raise
        return str(error) or type(error).__name__
    finally:
        _open.found = None
    return None


def load(data: bytes) -> Any:
    """Load a value that another process of the cluster has pickled.
    The bytes must come from the cluster's own authenticated connections: loading runs code.
    """
    return pickle.loads(data)  # noqa: S301


#: Types of arguments whose values Dask provides.
_REFERENCES = frozenset({Future, KnownFuture, Reference})
#: Types of arguments that a task cannot change.
_UNCHANGING = frozenset({type(None), bool, int, float, complex, str, bytes}) | _REFERENCES
#: Types of callables that have no state of their own.
_STATELESS = (FunctionType, BuiltinFunctionType, type)
#: Largest size in bytes of a pickled function that is loaded once for all its executions.
MOST_REMEMBERED = 1 << 16


#: Dask futures, or references with futures, in the arguments of a task, by key.
Found = dict[Any, Any]


def dump_calls(calls: Sequence[Any]) -> tuple[bytes, list[Found]]:
    """Pickle :data:`.Calls`. Return the bytes, and a list with each task's references, or [].
    Arguments that a task might change are pickled separately for each task.
    """
    indexes, rows, named = calls
    kinds = set(map(type, chain.from_iterable(rows)))
    found: list[Found] = []
    try:
        if named is not None or Reference in kinds or not _UNCHANGING.issuperset(kinds):
            apart = []
            for args, kwargs in zip(rows, repeat(None) if named is None else named, strict=False):
                _open.found = dict[Any, Any]()
                apart.append(_dump_apart(args, kwargs))
                found.append(_references_in(args) if apart[-1] is args else _open.found)
            rows = apart
        elif not _REFERENCES.isdisjoint(kinds):
            found = [_references_in(row) for row in rows]
        _open.found = dict[Any, Any]()
        return dump((indexes, rows)), found if any(found) else []
    finally:
        _open.found = None


def _references_in(args: Sequence[Any]) -> Found:
    """Return the references among the arguments, without nested ones."""
    return {
        (each.future if type(each) is Reference else each).key: each
        for each in args
        if type(each) in _REFERENCES
    }


def _dump_apart(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
    kinds = set(map(type, args))
    shared = not kwargs and Reference not in kinds and _UNCHANGING.issuperset(kinds)
    return args if shared else dump((args, kwargs))


def load_calls(data: bytes, values: Mapping[Any, Any]) -> Any:
    """Load the result of :func:`dump_calls`, with the values of Dask futures by key."""
    _open.values = values
    try:
        return load(data)
    finally:
        _open.values = None


def arguments(row: bytes, values: Mapping[Any, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return a task's positional and keyword arguments that were pickled separately."""
    args, kwargs = load_calls(row, values)
    return args, kwargs or {}


def dump_function(function: Callable[..., Any]) -> tuple[bytes, bytes]:
    """Pickle a function, and return the digest of the bytes and the bytes."""
    data = dump(function)
    return blake2b(data, digest_size=16).digest(), data


def load_function(digest: bytes, data: bytes, code: str = "") -> Callable[..., Any]:
    """Load a function of a code id. A function with state is loaded for each execution."""
    known = len(data) <= MOST_REMEMBERED
    function = _load_function(digest, code, data) if known else load(data)
    if isinstance(function, _STATELESS):
        return function
    fresh: Any = partial(_call_fresh, data)
    fresh.__name__ = str(getattr(function, "__name__", type(function).__name__))
    return fresh  # type: ignore[no-any-return]


@lru_cache(maxsize=1000)
def _load_function(digest: bytes, code: str, data: bytes) -> Any:
    del digest, code
    return load(data)


def _call_fresh(data: bytes, /, *args: Any, **kwargs: Any) -> Any:
    return load(data)(*args, **kwargs)


def dump_error(error: BaseException) -> bytes:
    """Pickle an exception with its traceback, or a description of it if that fails."""
    _break_cycles(error)
    # This function of Dask pickles the traceback, and shortens errors that are too long.
    message = error_message(error)
    traceback_ = message["traceback"]
    return pickle.dumps(
        {
            "exception": message["exception"].data,
            "traceback": None if traceback_ is None else traceback_.data,
            "text": "".join(traceback.format_exception(error)),
        }
    )


def _break_cycles(error: BaseException) -> None:
    """Break cycles in an error's chain of causes, which Dask would follow forever."""
    seen = {id(error)}
    while (following := error.__cause__ or error.__context__) is not None:
        if id(following) in seen:
            error.__cause__ = error.__context__ = None
            return
        seen.add(id(following))
        error = following


def load_error(data: bytes) -> BaseException:
    """Load an exception with its traceback, or a RuntimeError if its class is missing."""
    message = load(data)
    trace, text = load_traceback(message["traceback"])
    try:
        _, error, trace = clean_exception(message["exception"], trace)
    except BaseException:  # noqa: BLE001 - its class cannot be loaded here
        return RuntimeError(message["text"])
    assert error is not None
    if text:
        error.add_note(text)
    return restored(error).with_traceback(trace)


# Restored errors ----------------------------------------------------------------------------------

_WITH_STATE = (
    SyntaxError,
    UnicodeDecodeError,
    UnicodeEncodeError,
    UnicodeTranslateError,
    SystemExit,
    StopIteration,
)

Error = TypeVar("Error")


def restored(error: Error) -> Error:
    """Restore the messages of an unpickled error and its causes."""
    for each in all_errors(error) if isinstance(error, BaseException) else ():
        for kind in _WITH_STATE:
            if isinstance(each, kind):
                initialize: Any = kind.__init__
                with suppress(TypeError):  # the arguments of a subclass with its own constructor
                    initialize(each, *each.args)
    return error
