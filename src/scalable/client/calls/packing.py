"""Tasks as bytes, ready to be sent as a bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from distributed import Future

from scalable.client.calls.backlog import PendingCalls
from scalable.client.unsendable import name_of, parts_of_call, unsendable
from scalable.protocol.messages import Found, Reference, dump_calls, dump_function


@dataclass(frozen=True)
class PackedCalls:
    """Tasks that can be sent together."""

    #: Numbers of the tasks in their :class:`PendingCalls`.
    numbers: list[Any]
    #: Digest and bytes of each function.
    functions: tuple[tuple[bytes, bytes], ...]
    #: Tasks as bytes.
    payload: bytes
    #: Dask futures and :class:`Reference` objects within the arguments, by key of the future. All
    #: tasks have the same, because a lost or failed one takes all tasks with it.
    references: Found

    @property
    def futures(self) -> dict[Any, Future[Any]]:
        """Dask futures of the references, by key."""
        return {
            key: each.future if isinstance(each, Reference) else each
            for key, each in self.references.items()
        }


def pack(pending: PendingCalls, numbers: list[Any]) -> Iterator[PackedCalls]:
    """Pack tasks into one or several bundles. A task that cannot be pickled fails with the error.

    Tasks that cannot be pickled together get a bundle each. Tasks with different references get
    different bundles.
    """
    functions: dict[tuple[bytes, bytes], int] = {}
    known: dict[int, int] = {}

    def index(function: Callable[..., Any]) -> int:
        if (place := known.get(id(function))) is None:
            place = functions.setdefault(dump_function(function), len(functions))
            known[id(function)] = place
        return place

    packed, calls = pending.calls(numbers, index)
    if not packed:
        return
    try:
        payload, found = dump_calls(calls)
    except Exception as error:  # noqa: BLE001 - whatever the object's own code raises
        if len(packed) == 1:
            _, rows, named = calls
            function = pending.function(packed[0])
            parts = parts_of_call(function, rows[0], named[0] if named else None)
            pending.settle(packed, [(None, unsendable(name_of(function), parts) or error)])
        else:
            for number in packed:  # the other tasks may be fine
                yield from pack(pending, [number])
        return
    groups: dict[frozenset[Any], list[Any]] = {}
    for number, references in zip(packed, found, strict=False):
        groups.setdefault(frozenset(references), []).append(number)
    if len(groups) > 1:
        for group in groups.values():
            yield from pack(pending, group)
    else:
        yield PackedCalls(packed, tuple(functions), payload, found[0] if found else {})
