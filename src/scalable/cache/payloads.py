"""Conversion of results to bytes, and back.

Large buffers, such as those of numpy arrays, stay out of the pickle (protocol 5), without copies.
Classes of the script are stored by name, so a loaded result has the reader's own class.
"""

from __future__ import annotations

import functools
import io
import logging
import mmap
import operator
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from scalable.protocol.code import STANDS_FOR_SCRIPT

logger = logging.getLogger("scalable.cache")

PROTOCOL = 5
#: Smallest size in bytes of a buffer that stays out of the pickle.
LARGE = 64 << 10
_SCRIPT: Final = "__main__"

#: Function of a task, if it is known.
Function: TypeAlias = Callable[..., Any] | None
Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap


@dataclass(frozen=True)
class Payload:
    """Pickled result."""

    #: The pickle, then the buffers to which it refers.
    pieces: tuple[Buffer, ...]
    #: Positions from 0 of the read-only buffers.
    read_only: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return sum(memoryview(piece).nbytes for piece in self.pieces)


def packed(value: Any) -> Payload:
    """Pickle a result without copying large buffers. Code of its class may raise any exception."""
    try:
        payload = _packed(pickle.dumps, value)
        if _SCRIPT.encode() not in payload.pieces[0]:
            return payload
    except Exception as error:  # noqa: BLE001 - the next attempt raises what there is to say
        logger.debug("a result of type %s needs cloudpickle: %r", type(value), error)
    return _packed(_dumped, value)


def _dumped(value: Any, **options: Any) -> bytes:
    """Pickle with cloudpickle, storing the script's module-level classes by name."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def persistent_id(self, part: Any) -> str | None:
            # By value, cloudpickle would make another class of the same name.
            if isinstance(part, type) and part.__module__ == _SCRIPT:
                return None if "<" in part.__qualname__ else part.__qualname__
            return None

    file = io.BytesIO()
    pickler: Any = Pickler
    pickler(file, **options).dump(value)
    return file.getvalue()


def _packed(dumps: Any, value: Any) -> Payload:
    buffers: list[memoryview] = []

    def stays_inside(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < LARGE:
            return True
        buffers.append(view)
        return False

    data = dumps(value, protocol=PROTOCOL, buffer_callback=stays_inside)
    read_only = tuple(place for place, view in enumerate(buffers) if view.readonly)
    return Payload((data, *buffers), read_only)


def unpacked(payload: Payload, function: Function = None) -> Any:
    """Return a result from its bytes. The result uses the payload's buffers.
    Outside the script's process, the globals of ``function`` provide classes of the script. May
    raise any exception, for example if a class is gone.
    """
    data, *buffers = payload.pieces
    views = [
        memoryview(buffer).toreadonly() if place in payload.read_only else buffer
        for place, buffer in enumerate(buffers)
    ]
    try:
        return pickle.loads(data, buffers=views)  # noqa: S301 - the store belongs to this user
    except pickle.UnpicklingError:
        # Usually it names a class of the script.
        return _Unpickler(io.BytesIO(data), views, _names(function)).load()


class _Unpickler(pickle.Unpickler):
    """Unpickler for :func:`_dumped`. It looks up classes of the script in ``names``."""

    def __init__(self, file: io.BytesIO, buffers: list[Buffer], names: Mapping[str, Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._names = names

    def persistent_load(self, name: str) -> type[Any]:
        first, _, rest = name.partition(".")
        found = self._names.get(first)
        if rest and found is not None:
            found = operator.attrgetter(rest)(found)
        own = getattr(found, "__module__", ""), getattr(found, "__qualname__", "")
        if not isinstance(found, type) or own != (_SCRIPT, name):
            raise pickle.UnpicklingError(
                f"the class {name} of the script is not defined in this process"
            )
        return found


def _names(function: Function) -> Mapping[str, Any]:
    """Return the script's names, including the names used by a task's function."""
    while isinstance(function, functools.partial):
        function = function.func
    brought = getattr(function, "__globals__", {})
    script = sys.modules[_SCRIPT]
    return brought if hasattr(script, STANDS_FOR_SCRIPT) else {**vars(script), **brought}
