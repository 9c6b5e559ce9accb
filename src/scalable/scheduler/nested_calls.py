"""Tasks that were submitted by other tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scalable.scheduler.ledger import Call, Listener


class NestedCalls(Listener):
    """Records which task submitted which tasks, until the scheduler forgets them."""

    def __init__(self) -> None:
        self._parents: dict[Any, Any] = {}
        self._children: dict[Any, dict[Any, None]] = {}

    def made(self, parent: Any, keys: Iterable[Any]) -> None:
        for key in keys:
            if key != parent and key not in self._parents:
                self._parents[key] = parent
                self._children.setdefault(parent, {})[key] = None

    def forgotten(self, call: Call) -> None:
        parent = self._parents.pop(call.key, None)
        children = self._children.get(parent)
        if children is not None:
            children.pop(call.key, None)
            if not children:
                del self._children[parent]

    def parent(self, key: Any) -> Any:
        """Return the key of the task that submitted a task, or None."""
        return self._parents.get(key)

    def children(self, key: Any) -> list[Any]:
        return list(self._children.get(key, ()))
