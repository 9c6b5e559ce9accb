"""Large arguments of calls: uploaded once, beside the bundles instead of within them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from dask.sizeof import sizeof
from distributed import Future

from scalable.protocol.messages import LARGE

_SMALL = frozenset({type(None), bool, int, float, complex, Future})
#: Types of objects that are uploaded once only, as they cannot change.
_UNCHANGING = (bytes, str)
#: Number of the latest unchanging objects that are kept.
REMEMBERED = 4


class Uploads:
    """Replaces large arguments by references.

    Parameters
    ----------
    send
        Uploads an object, and returns its reference; or the object itself where it cannot be
        uploaded now.
    """

    def __init__(self, send: Callable[[Any], Any]) -> None:
        self._send = send
        # Object and reference by id; the object is kept so that no other one gets its id.
        self._sent: OrderedDict[int, tuple[Any, Any]] = OrderedDict()

    def replaced(self, values: Iterable[Any]) -> tuple[Any, ...]:
        """Return the arguments of one call, large ones replaced."""
        return tuple([self.reference(v) if _is_large(v) else v for v in values])

    def reference(self, value: Any) -> Any:
        """Return the reference of a large value, which is uploaded unless it has been already."""
        if not isinstance(value, _UNCHANGING):
            return self._send(value)
        known = self._sent.get(id(value))
        if known is None or getattr(known[1], "status", "finished") != "finished":  # or lost
            known = value, self._send(value)
            if known[1] is value:
                return value
            self._sent[id(value)] = known
            if len(self._sent) > REMEMBERED:
                self._sent.popitem(last=False)
        return known[1]

    def replaced_in_all(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return the arguments of many calls, large ones replaced; each object is uploaded once."""
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
