"""Calls and their outcomes as bytes.

Plain pickle where it will do, which is several times as fast, and cloudpickle for what only this
process knows. Dask futures and references to sent objects may be anywhere within the arguments:
they travel as their keys, and Dask brings what they stand for.
"""

from __future__ import annotations

import io
import pickle
import threading
import traceback
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copyreg import dispatch_table as known_reducers
from functools import lru_cache
from hashlib import blake2b
from typing import Any
from weakref import WeakKeyDictionary

import cloudpickle
from distributed import Future
from distributed.core import clean_exception, error_message

PROTOCOL = 5
#: A result beyond so many bytes stays on its worker until the client fetches it.
LARGE = 1 << 20

_open = threading.local()


def _by_key(future: Future[Any]) -> tuple[Callable[[Any], Any], tuple[Any]]:
    _open.found[future.key] = future
    return _of_key, (future.key,)


def _of_key(key: Any) -> Any:
    return _open.values[key]


_REDUCERS: dict[Any, Any] = {Future: _by_key}


class _Quick(pickle.Pickler):
    dispatch_table = ChainMap[Any, Any](_REDUCERS, known_reducers)  # noqa: RUF012 - pickle's own


class _Thorough(cloudpickle.Pickler):
    dispatch_table = ChainMap[Any, Any](  # noqa: RUF012 - pickle's own
        _REDUCERS, cloudpickle.Pickler.dispatch_table
    )


def _dump(value: Any, pickler: type[pickle.Pickler]) -> bytes:
    buffer = io.BytesIO()
    pickler(buffer, protocol=PROTOCOL).dump(value)
    return buffer.getvalue()


def dump(value: Any) -> bytes:
    """A value as bytes; what another process cannot import goes by value."""
    try:
        data = _dump(value, _Quick)
    except Exception:  # noqa: BLE001 - pickle raises whatever the objects raise
        return _dump(value, _Thorough)
    # By reference to a module that every process has its own of.
    return _dump(value, _Thorough) if b"__main__" in data else data


def load(data: bytes) -> Any:
    """A value from bytes that another process of the cluster has made.

    They come over the cluster's own connections, where each side has shown its certificate.
    """
    return pickle.loads(data)  # noqa: S301


def dump_calls(calls: Sequence[Any]) -> tuple[bytes, dict[Any, Future[Any]]]:
    """Calls as bytes, and the Dask futures within their arguments by key."""
    _open.found = found = dict[Any, Future[Any]]()
    try:
        return dump(calls), found
    finally:
        _open.found = None


def load_calls(data: bytes, values: Mapping[Any, Any]) -> Any:
    """The calls; ``values`` has what the futures within them stood for."""
    _open.values = values
    try:
        return load(data)
    finally:
        _open.values = None


_functions: WeakKeyDictionary[Any, tuple[bytes, bytes]] = WeakKeyDictionary()


def dump_function(function: Callable[..., Any]) -> tuple[bytes, bytes]:
    """A digest of a function, and the function as bytes."""
    try:
        return _functions[function]
    except (KeyError, TypeError):
        pass
    data = dump(function)
    pair = blake2b(data, digest_size=16).digest(), data
    with suppress(TypeError):  # builtins and bound methods cannot be remembered
        _functions[function] = pair
    return pair


@lru_cache(maxsize=1000)
def load_function(digest: bytes, data: bytes) -> Callable[..., Any]:
    """The function; the same bytes give the same object."""
    del digest
    function: Callable[..., Any] = load(data)
    return function


def dump_error(error: BaseException) -> bytes:
    """An exception with its traceback; one that cannot travel becomes one that says as much."""
    # Dask's own: it knows how to carry tracebacks, and truncates what is too long.
    message = error_message(error)
    traceback_ = message["traceback"]
    return pickle.dumps(
        {
            "exception": message["exception"].data,
            "traceback": None if traceback_ is None else traceback_.data,
            "text": "".join(traceback.format_exception(error)),
        }
    )


def load_error(data: bytes) -> BaseException:
    """The exception, with the traceback of where it was raised."""
    message = load(data)
    try:
        _, error, trace = clean_exception(message["exception"], message["traceback"])
    except Exception:  # noqa: BLE001 - its class cannot be made here
        return RuntimeError(message["text"])
    assert error is not None
    return error.with_traceback(trace)
