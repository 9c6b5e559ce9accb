"""Conversion of calls and their outcomes to bytes and back.

Plain pickle is used where it is enough, because it is several times as fast as cloudpickle;
cloudpickle is used for objects that only this process can import. Arguments may contain Dask
futures at any depth: only their keys are sent, and Dask provides the values.
"""

from __future__ import annotations

import io
import pickle
import threading
import traceback
from collections import ChainMap
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copyreg import dispatch_table as known_reducers
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import chain, repeat
from types import BuiltinFunctionType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import cloudpickle
from distributed import Future
from distributed.core import clean_exception, error_message

from scalable.protocol.dask_seams.known_results import KnownFuture
from scalable.protocol.restored_errors import restored

PROTOCOL = 5
#: Largest size in bytes of a value within a message. A larger result stays on its worker until the
#: client fetches it; a larger argument is uploaded.
LARGE = 1 << 20

_open = threading.local()


class Reference:
    """A large argument that is on the workers: an uploaded object, or the result of a call.

    Attributes
    ----------
    future
        Dask future of the object, or of the results of a bundle. It changes when the object is
        brought to the workers again.
    bring_again
        Coroutine function that brings the object to the workers again after it was lost, and
        changes ``future`` and ``position``; its argument is the reference.
    value
        The original of an uploaded object.
    position
        Position of the result in its bundle; None for an uploaded object.
    """

    __slots__ = ("bring_again", "future", "position", "value")

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


def _by_key(future: Future[Any]) -> Any:
    found = getattr(_open, "found", None)
    if found is None:  # it stands in a result, not in an argument
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
    # Other calls take the same uploaded object, also in this process.
    return value.load(readonly=True) if type(value) is Pickled else value


def _of_part(key: Any, position: int) -> Any:
    return _open.values[key][position].load(copies=True)  # other calls may take the same result


_REDUCERS: dict[Any, Any] = {
    Future: _by_key,
    KnownFuture: _by_key,
    Reference: _by_reference,
}


class _PlainPickler(pickle.Pickler):
    dispatch_table = ChainMap[Any, Any](_REDUCERS, known_reducers)  # noqa: RUF012 - pickle's own


class _ByValuePickler(cloudpickle.Pickler):
    dispatch_table = ChainMap[Any, Any](  # noqa: RUF012 - pickle's own
        _REDUCERS, cloudpickle.Pickler.dispatch_table
    )


def _dump(value: Any, pickler: type[pickle.Pickler], buffers: list[Any] | None = None) -> bytes:
    file = io.BytesIO()
    callback = None if buffers is None else buffers.append
    pickler(file, protocol=PROTOCOL, buffer_callback=callback).dump(value)
    return file.getvalue()


def dump(value: Any, buffers: list[Any] | None = None) -> bytes:
    """Pickle a value; functions and classes that cannot be imported are pickled by value.

    Parameters
    ----------
    value
        The value.
    buffers
        List to which large buffers are added, such as the data of arrays; the bytes do not contain
        these then. None to copy them into the bytes.
    """
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
    """A large value as pickle made it, whose buffers are not copied.

    Raises whatever the value's own code raises if it cannot be pickled.
    """

    __slots__ = ("_buffers", "_data")

    def __init__(self, value: Any) -> None:
        self._buffers: list[Any] = []
        self._data: Any = dump(value, self._buffers)

    def __reduce_ex__(self, protocol: Any) -> Any:
        kind: Callable[[Any], Any] = pickle.PickleBuffer if protocol >= PROTOCOL else bytes
        return _pickled, tuple(map(kind, (self._data, *self._buffers)))

    def __sizeof__(self) -> int:
        return sum(memoryview(part).nbytes for part in (self._data, *self._buffers))

    def load(self, *, copies: bool = False, readonly: bool = False) -> Any:
        """Return the value, made anew.

        Parameters
        ----------
        copies
            Whether it shares no memory with the value of another load.
        readonly
            Whether what it shares, such as the data of arrays, cannot be changed through it.
        """
        buffers = self._buffers
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
    """Return why a value cannot be pickled, or None if it can; Dask futures can."""
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

    The bytes must come from the cluster's own, authenticated connections: loading runs code.
    """
    return pickle.loads(data)  # noqa: S301


#: Types of arguments whose values Dask provides.
_REFERENCES = frozenset({Future, KnownFuture, Reference})
#: Types of arguments that a call cannot change.
_UNCHANGING = frozenset({type(None), bool, int, float, complex, str, bytes}) | _REFERENCES
#: Types of callables that have no state of their own.
_STATELESS = (FunctionType, BuiltinFunctionType, type)
#: Largest size in bytes of a pickled function whose loaded object is kept after the first use.
MOST_REMEMBERED = 1 << 16


#: Key -> Dask future, or reference with the future, of each such argument of a call.
Found = dict[Any, Any]


def dump_calls(calls: Sequence[Any]) -> tuple[bytes, list[Found]]:
    """Pickle calls; return the bytes, and for each call the references in its arguments.

    The list is empty if no call has any. Arguments that a call might change are pickled separately
    for each call. So calls do not share objects, and an argument that cannot be loaded fails only
    its own call.

    Parameters
    ----------
    calls
        The calls, in the form of :data:`scalable.protocol.bundles.Calls`.
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
    """Return the references among the arguments themselves."""
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
    """Load calls; return the indexes of their functions, and a row for each call.

    :func:`arguments` turns a row into the arguments of the call.

    Parameters
    ----------
    data
        Bytes from :func:`dump_calls`.
    values
        Key -> value of each Dask future in the arguments.
    """
    return _load_with(data, values)


def arguments(row: Any, values: Mapping[Any, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the positional and the keyword arguments of a call.

    Parameters
    ----------
    row
        Row from :func:`load_calls`.
    values
        Key -> value of each Dask future in the arguments.
    """
    if type(row) is not bytes:
        return row, {}
    args, kwargs = _load_with(row, values)
    return args, kwargs or {}


def _load_with(data: bytes, values: Mapping[Any, Any]) -> Any:
    _open.values = values
    try:
        return load(data)
    finally:
        _open.values = None


_functions: WeakKeyDictionary[Any, tuple[bytes, bytes]] = WeakKeyDictionary()


def dump_function(function: Callable[..., Any]) -> tuple[bytes, bytes]:
    """Pickle a function; return the digest of the bytes, and the bytes."""
    # Only plain functions pickled by name are cached: anything else may have changed since then.
    plain = type(function) is FunctionType
    if plain and (known := _functions.get(function)) is not None:
        return known
    data = dump(function)
    pair = blake2b(data, digest_size=16).digest(), data
    if plain and function.__module__ != "__main__" and _is_by_name(function, data):
        _functions[function] = pair
    return pair


def _is_by_name(function: Callable[..., Any], data: bytes) -> bool:
    try:
        return _dump(function, _PlainPickler) == data
    except Exception:  # noqa: BLE001 - pickle raises whatever the objects raise
        return False


def load_function(digest: bytes, data: bytes, code: str = "") -> Callable[..., Any]:
    """Load a function. A callable that has state is loaded anew for each call.

    Parameters
    ----------
    digest, data
        Result of :func:`dump_function`.
    code
        Id of the code to run: equal bytes may name another version of a function.
    """
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
    """Pickle an exception with its traceback.

    An exception that cannot be pickled is replaced by one that describes it.
    """
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
    """Break a cycle in an error's chain of causes, which Dask would follow forever."""
    seen = {id(error)}
    while (following := error.__cause__ or error.__context__) is not None:
        if id(following) in seen:
            error.__cause__ = error.__context__ = None
            return
        seen.add(id(following))
        error = following


def load_error(data: bytes) -> BaseException:
    """Load an exception with its original traceback.

    A ``RuntimeError`` with the formatted text takes its place if its class cannot be loaded here.
    """
    message = load(data)
    try:
        _, error, trace = clean_exception(message["exception"], message["traceback"])
    except Exception:  # noqa: BLE001 - its class cannot be loaded here
        return RuntimeError(message["text"])
    assert error is not None
    return restored(error).with_traceback(trace)
