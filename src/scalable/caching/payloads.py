"""Results as bytes, and back.

Large buffers, such as those of numpy arrays, are kept out of the pickle (protocol 5): they are
written from where they are, and read to where they stay.

A class of the script (``__main__``) is written as its name, and found by that name among the names
of whoever reads: so that a result is an instance of the reader's own class. cloudpickle would make
another class of the same name. A class inside a function has no such name, and is written whole.
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

logger = logging.getLogger("scalable.caching")

PROTOCOL = 5
#: Smallest size in bytes of a buffer that is kept out of the pickle.
LARGE = 64 << 10
_SCRIPT: Final = "__main__"

#: Function of a call, where it is known.
Function: TypeAlias = Callable[..., Any] | None
Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap


@dataclass(frozen=True)
class Payload:
    """A pickled result.

    Attributes
    ----------
    pieces
        The pickle, then the buffers that it refers to.
    read_only
        Positions of the read-only buffers, counted from 0.
    """

    pieces: tuple[Buffer, ...]
    read_only: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Size in bytes."""
        return sum(memoryview(piece).nbytes for piece in self.pieces)


def packed(value: Any) -> Payload:
    """Return a result as bytes. Large buffers are not copied.

    Plain pickle is used where it is enough; cloudpickle for objects that only this process can
    import.

    Raises
    ------
    Exception
        Whatever pickling raises: methods of the value's class take part.
    """
    try:
        payload = _packed(pickle.dumps, value)
        if _SCRIPT.encode() not in payload.pieces[0]:
            return payload
    except Exception as error:  # noqa: BLE001 - the next attempt raises what there is to say
        logger.debug("a result of type %s needs cloudpickle: %r", type(value), error)
    return _packed(_dumped, value)


def _dumped(value: Any, **options: Any) -> bytes:
    """Return an object as bytes with cloudpickle, but classes of the script as their names."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def persistent_id(self, part: Any) -> str | None:
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
    """Return a result. Its buffers are those of the payload.

    Parameters
    ----------
    payload
        The result as bytes.
    function
        Function of the call. In another process than that of the script, its names are where
        classes of the script are looked up.

    Raises
    ------
    Exception
        Whatever unpickling raises: a class may have gone, or refuse.
    """
    data, *buffers = payload.pieces
    views = [
        memoryview(buffer).toreadonly() if place in payload.read_only else buffer
        for place, buffer in enumerate(buffers)
    ]
    try:
        return pickle.loads(data, buffers=views)  # noqa: S301 - the store belongs to this user
    except pickle.UnpicklingError:
        # Mostly: it names a class of the script.
        return _Unpickler(io.BytesIO(data), views, _names(function)).load()


class _Unpickler(pickle.Unpickler):
    """Reads what `_dumped` has written.

    Parameters
    ----------
    file, buffers
        The pickle, and the buffers that it refers to.
    names
        Names of the script.
    """

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
            raise pickle.UnpicklingError(f"the class {name} of the script is not known here")
        return found


def _names(function: Function) -> Mapping[str, Any]:
    """Return the names of the script, of which the function of a call brings those it refers to."""
    while isinstance(function, functools.partial):
        function = function.func
    brought = getattr(function, "__globals__", {})
    return {**vars(sys.modules[_SCRIPT]), **brought}
