"""Large arguments of calls: sent once, beside the bundles, and not within them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from dask.sizeof import sizeof
from distributed import Future

from scalable.protocol.messages import LARGE

_SMALL = frozenset({type(None), bool, int, float, complex, Future})
#: The same object is sent again only where it may have changed meanwhile.
_UNCHANGING = (bytes, str)
#: So many of the latest unchanging objects are remembered.
REMEMBERED = 4


class Uploads:
    """Replaces large arguments by references.

    Parameters
    ----------
    send
        Uploads an object, and returns what stands for it in arguments.
    """

    def __init__(self, send: Callable[[Any], Any]) -> None:
        self._send = send
        # With the object itself, which keeps its id from being given to another one.
        self._sent: OrderedDict[int, tuple[Any, Any]] = OrderedDict()

    def replaced(self, values: Iterable[Any]) -> tuple[Any, ...]:
        """The values of one call, large ones replaced."""
        return tuple([self.reference(v) if _is_large(v) else v for v in values])

    def reference(self, value: Any) -> Any:
        """What stands for a large value."""
        if not isinstance(value, _UNCHANGING):
            return self._send(value)
        known = self._sent.get(id(value))
        if known is None or getattr(known[1], "status", "finished") != "finished":  # or was lost
            known = value, self._send(value)
            if known[1] is value:
                return value
            self._sent[id(value)] = known
            if len(self._sent) > REMEMBERED:
                self._sent.popitem(last=False)
        return known[1]

    def replaced_in_all(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """The values of calls that are read at once, large ones replaced: each object sent once."""
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


def _is_large(value: Any) -> bool:
    kind = type(value)
    if kind in _SMALL:
        return False
    if kind is bytes or kind is str:
        return len(value) > LARGE
    return bool(sizeof(value) > LARGE)
