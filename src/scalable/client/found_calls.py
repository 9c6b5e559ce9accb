"""`FoundCalls`: reports to the scheduler how many cached results a client has found."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from scalable.protocol.operations import FOUND
from scalable.spec.remembered import TOLD_KEYS

#: Seconds for which found results are collected before they are reported.
TELL_AFTER_S: Final = 1.0
#: Number of task names and tags that one message distinguishes. Others are reported together.
TOLD_NAMES: Final = 200
OTHERS: Final = ("(other names)", "")


@dataclass
class _Group:
    """Found results of one task name and tag: their number, seconds saved, and keys."""

    calls: int = 0
    saved_s: float = 0.0
    keys: list[str] = field(default_factory=list)


class FoundCalls:
    """Counter of the results that a client has found, for reports to the scheduler.

    A task whose result is found costs no message: numbers and keys are sent at most once a second,
    and when the client closes.
    """

    def __init__(
        self,
        later: Callable[[float, Callable[[], None]], None],
        send: Callable[[dict[str, Any]], None],
    ) -> None:
        # ``later`` calls a function in the client's event loop after some seconds.
        self._later, self._send = later, send
        self._lock = threading.Lock()
        self._groups: dict[tuple[str, str], _Group] = {}
        self._keys_left = TOLD_KEYS

    def add(self, name: str, tag: str, saved_s: float, key: str) -> None:
        """Count a found result. ``saved_s`` is the duration of the task that computed it."""
        with self._lock:
            is_first = not self._groups
            group = self._groups.get((name, tag))
            if group is None:
                told_as = (name, tag) if len(self._groups) < TOLD_NAMES else OTHERS
                group = self._groups.setdefault(told_as, _Group())
            group.calls += 1
            group.saved_s += saved_s
            if self._keys_left:
                self._keys_left -= 1
                group.keys.append(key)
        if is_first:
            self._later(TELL_AFTER_S, self.tell)

    def tell(self) -> None:
        """Report to the scheduler what was counted since the last time. Runs in the event loop."""
        with self._lock:
            groups, self._groups, self._keys_left = self._groups, {}, TOLD_KEYS
        if groups:
            calls = [[*place, *vars(group).values()] for place, group in groups.items()]
            self._send({"op": FOUND, "calls": calls})
