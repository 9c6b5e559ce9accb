"""`FoundCalls`: tells the scheduler how many remembered results a client has found."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from scalable.protocol.operations import FOUND

#: Seconds for which found results are collected before the scheduler is told.
TELL_AFTER_S: Final = 1.0
#: Number of task names and tags that one message tells apart; further ones are told as others.
TOLD_NAMES: Final = 200
OTHERS: Final = ("(other names)", "")


@dataclass
class _Group:
    """Found results of one task name and tag: their number, and seconds saved."""

    calls: int = 0
    saved_s: float = 0.0


class FoundCalls:
    """Counts the results that a client has found, and tells the scheduler now and then.

    A call whose result is found costs no message: numbers are sent at most once a second, and when
    the client closes.

    Parameters
    ----------
    later
        Function that has a function called in the event loop of the client after some seconds.
    send
        Function that sends a message to the scheduler.
    """

    def __init__(
        self,
        later: Callable[[float, Callable[[], None]], None],
        send: Callable[[dict[str, Any]], None],
    ) -> None:
        self._later, self._send = later, send
        self._lock = threading.Lock()
        self._groups: dict[tuple[str, str], _Group] = {}

    def add(self, name: str, tag: str, saved_s: float) -> None:
        """Count a call whose result was found.

        Parameters
        ----------
        name, tag
            Name of the task; tag of its pool, or "".
        saved_s
            Seconds that the call that computed the result had taken.
        """
        with self._lock:
            is_first = not self._groups
            group = self._groups.get((name, tag))
            if group is None:
                told_as = (name, tag) if len(self._groups) < TOLD_NAMES else OTHERS
                group = self._groups.setdefault(told_as, _Group())
            group.calls += 1
            group.saved_s += saved_s
        if is_first:
            self._later(TELL_AFTER_S, self.tell)

    def tell(self) -> None:
        """Tell the scheduler what was counted since the last time; in the event loop."""
        with self._lock:
            groups, self._groups = self._groups, {}
        if groups:
            calls = [[*place, *vars(group).values()] for place, group in groups.items()]
            self._send({"op": FOUND, "calls": calls})
