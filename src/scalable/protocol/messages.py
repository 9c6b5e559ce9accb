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
from collections.abc import Callable, Iterable, Mapping, Sequence
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

PROTOCOL = 5
#: Largest size in bytes of a value within a message. A larger result stays on its worker until the
#: client fetches it; a larger argument is uploaded.
LARGE = 1 << 20

_open = threading.local()


def _by_key(future: Future[Any]) -> tuple[Callable[[Any], Any], tuple[Any]]:
    _open.found[future.key] = future
    return _of_key, (future.key,)


def _of_key(key: Any) -> Any:
    return _open.values[key]


_REDUCERS: dict[Any, Any] = {Future: _by_key}


class _PlainPickler(pickle.Pickler):
    dispatch_table = ChainMap[Any, Any](_REDUCERS, known_reducers)  # noqa: RUF012 - pickle's own


class _ByValuePickler(cloudpickle.Pickler):
    dispatch_table = ChainMap[Any, Any](  # noqa: RUF012 - pickle's own
        _REDUCERS, cloudpickle.Pickler.dispatch_table
    )


def _dump(value: Any, pickler: type[pickle.Pickler]) -> bytes:
    buffer = io.BytesIO()
    pickler(buffer, protocol=PROTOCOL).dump(value)
    return buffer.getvalue()


def dump(value: Any) -> bytes:
    """Pickle a value; functions and classes that cannot be imported are pickled by value."""
    try:
        data = _dump(value, _PlainPickler)
    except Exception:  # noqa: BLE001 - pickle raises whatever the objects raise
        return _dump(value, _ByValuePickler)
    # In another process, __main__ is another module, so a reference to it is not enough.
    return _dump(value, _ByValuePickler) if b"__main__" in data else data


def load(data: bytes) -> Any:
    """Load a value that another process of the cluster has pickled.

    The bytes must come from the cluster's own, authenticated connections: loading runs code.
    """
    return pickle.loads(data)  # noqa: S301


#: Types of arguments that a call cannot change.
_UNCHANGING = frozenset({type(None), bool, int, float, complex, str, bytes, Future})
#: Types of callables that have no state of their own.
_STATELESS = (FunctionType, BuiltinFunctionType, type)
#: Largest size in bytes of a pickled function whose loaded object is kept after the first use.
MOST_REMEMBERED = 1 << 16


def _are_unchanging(values: Iterable[Any]) -> bool:
    return _UNCHANGING.issuperset(map(type, values))


def dump_calls(calls: Sequence[Any]) -> tuple[bytes, dict[Any, Future[Any]]]:
    """Pickle calls; return the bytes, and key -> Dask future for the futures in the arguments.

    Arguments that a call might change are pickled separately for each call. So calls do not share
    objects, and an argument that cannot be loaded fails only its own call.

    Parameters
    ----------
    calls
        The calls, in the form of :data:`scalable.protocol.bundles.Calls`.
    """
    indexes, rows, named = calls
    _open.found = found = dict[Any, Future[Any]]()
    try:
        if named is not None or not _are_unchanging(chain.from_iterable(rows)):
            rows = list(map(_dump_apart, rows, repeat(None) if named is None else named))
        return dump((indexes, rows)), found
    finally:
        _open.found = None


def _dump_apart(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
    return args if not kwargs and _are_unchanging(args) else dump((args, kwargs))


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
    return function if isinstance(function, _STATELESS) else partial(_call_fresh, data)


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
    return error.with_traceback(trace)
