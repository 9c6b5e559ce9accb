"""Large arguments of tasks, which are uploaded once instead of sent within each bundle."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from itertools import chain
from typing import Any

from dask.sizeof import sizeof
from distributed import Future

from scalable.protocol.messages import LARGE, Pickled, Reference

#: Types of arguments that are sent as they are.
PLAIN = frozenset({type(None), bool, int, float, complex})
_SMALL = PLAIN | {Future, Reference}
#: Immutable types: an object of these types is uploaded only once.
_UNCHANGING = (bytes, str)
#: Number of uploaded immutable objects whose references are kept.
REMEMBERED = 4


class Uploads:
    """Replacement of large arguments by references to uploaded objects."""

    def __init__(
        self,
        send: Callable[[Any], Future[Any] | None],
        send_again: Callable[[Reference], Awaitable[None]],
    ) -> None:
        # ``send`` returns None if an object cannot be uploaded now.
        self._send, self._send_again = send, send_again
        # Reference by id. It keeps the object, so that no other object gets its id.
        self._sent: OrderedDict[int, Reference] = OrderedDict()

    def replaced(self, values: Iterable[Any]) -> tuple[Any, ...]:
        """Return the arguments of one task, with large arguments replaced by references."""
        return tuple([self.reference(v) if _is_large(v) else v for v in values])

    def reference(self, value: Any) -> Any:
        """Return a reference of a large value, or the value itself if it cannot be uploaded now."""
        known = self._sent.get(id(value))
        if known is not None and known.future.status == "finished":
            return known
        unchanging = isinstance(value, _UNCHANGING)
        sent = value if unchanging else _pickled(value)
        future = self._send(sent)
        if future is None:
            return value
        known = Reference(future, self._send_again, value=sent)
        if unchanging:
            self._sent[id(value)] = known
            if len(self._sent) > REMEMBERED:
                self._sent.popitem(last=False)
        return known

    def replaced_in_all(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return the arguments of many tasks with large ones replaced. Upload each object once."""
        if _SMALL.issuperset(map(type, chain.from_iterable(rows))):
            return rows
        sent: dict[int, Any] = {}

        def reference(value: Any) -> Any:
            if not _is_large(value):
                return value
            if id(value) not in sent:
                sent[id(value)] = self.reference(value)
            return sent[id(value)]

        return [tuple([reference(value) for value in row]) for row in rows]


def _pickled(value: Any) -> Any:
    """Pickle a value, so that each task gets its own object, or return it if that fails."""
    # Dask would keep one object on a worker for all its tasks, and a task that changes it would
    # change the argument of the next one. Threads of this process can take a value that cannot be
    # pickled, and for others the upload reports the reason.
    try:
        return Pickled(value)
    except Exception:  # noqa: BLE001 - whatever the object's own code raises
        return value


def _is_large(value: Any) -> bool:
    kind = type(value)
    if kind in _SMALL:
        return False
    if kind is bytes or kind is str:
        return len(value) > LARGE
    return bool(sizeof(value) > LARGE)
