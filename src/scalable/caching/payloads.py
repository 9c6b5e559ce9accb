"""Results as bytes, and back.

Large buffers, such as those of numpy arrays, are kept out of the pickle (protocol 5): they are
written from where they are, and read to where they stay.
"""

from __future__ import annotations

import logging
import mmap
import pickle
from dataclasses import dataclass
from typing import Any, TypeAlias

logger = logging.getLogger("scalable.caching")

PROTOCOL = 5
#: Smallest size in bytes of a buffer that is kept out of the pickle.
LARGE = 64 << 10

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
        if b"__main__" not in payload.pieces[0]:
            return payload
    except Exception as error:  # noqa: BLE001 - the next attempt raises what there is to say
        logger.debug("a result of type %s needs cloudpickle: %r", type(value), error)
    import cloudpickle

    return _packed(cloudpickle.dumps, value)


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


def unpacked(payload: Payload) -> Any:
    """Return a result. Its buffers are those of the payload.

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
    return pickle.loads(data, buffers=views)  # noqa: S301 - the store belongs to this user
