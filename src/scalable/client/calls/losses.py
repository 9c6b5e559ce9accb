"""Decision which tasks to run again after the worker of their bundle was lost.

The client cannot determine which task was running, since messages may be missing. Each task that
may have run becomes a *suspect*, sent again in a bundle of its own whose start is reported first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from distributed.scheduler import KilledWorker

from scalable import settings
from scalable.client.calls.backlog import PendingCalls
from scalable.client.calls.sent_bundle import SentBundle
from scalable.protocol.bundles import TELL_S, first_try
from scalable.protocol.lost_calls import MOST_OUT_OF_MEMORY, OutOfMemory
from scalable.protocol.shown_values import shown_arguments

#: Number of lost workers after which a task is given up, as in Dask.
LOSSES = 3
#: Largest number of tasks of one lost bundle that are suspected.
MOST_SUSPECTS = 256


def judge_loss(
    bundle: SentBundle, error: KilledWorker, call_s: float
) -> tuple[list[int], dict[int, KilledWorker]]:
    """Return the positions of the tasks to run again, and those to give up, with errors.

    A task is given up after ``LOSSES`` lost workers, or ``MOST_OUT_OF_MEMORY`` for lack of memory.
    ``call_s`` is the mean duration of the tasks in seconds.
    """
    left = bundle.left()
    if bundle.suspected and not bundle.begun:
        return left, {}
    # The tasks that were running, or that have finished since the last message.
    unsure = 1 if bundle.suspected else min(MOST_SUSPECTS, 1 + int(2 * TELL_S / max(call_s, 1e-6)))
    allowed = MOST_OUT_OF_MEMORY if isinstance(error, OutOfMemory) else LOSSES
    given_up: dict[int, KilledWorker] = {}
    for position in left[:unsure]:
        number = bundle.numbers[position]
        if bundle.pending.lost(number) >= allowed:
            named = getattr(bundle.pending.function(number), "__qualname__", bundle.key)
            given_up[position] = (
                error.of_call(named)
                if isinstance(error, OutOfMemory)
                else KilledWorker(named, error.last_worker, LOSSES - 1)
            )
    return [position for position in left if position not in given_up], given_up


class FirstTries:
    """Names of the first attempts of tasks that are sent again, which name their checkpoints."""

    def __init__(self) -> None:
        self._names: dict[tuple[PendingCalls, Any], str] = {}

    def note(self, bundle: SentBundle, positions: Iterable[int]) -> None:
        """Note tasks that are sent again, and that may have started in this bundle or before."""
        for position in positions:
            name = bundle.first_tries.get(position) or first_try(bundle.key, position)
            self._names[bundle.pending, bundle.numbers[position]] = name

    def take(self, pending: PendingCalls, numbers: Sequence[Any]) -> dict[int, str]:
        """Return the names by position, for the tasks of a new bundle that were sent before."""
        if not self._names:
            return {}
        found = ((n, self._names.pop((pending, each), None)) for n, each in enumerate(numbers))
        return {position: name for position, name in found if name is not None}


class SentBefore:
    """Lost bundles with which tasks were sent before, by task."""

    def __init__(self) -> None:
        self._keys: dict[tuple[PendingCalls, Any], str] = {}

    def note(self, bundle: SentBundle, positions: Iterable[int]) -> None:
        """Note that these tasks of a lost bundle may have started, and are sent again."""
        for position in positions:
            self._keys[bundle.pending, bundle.numbers[position]] = bundle.key

    def take(self, pending: PendingCalls, numbers: Iterable[Any]) -> dict[str, Any]:
        """Return the annotation of a bundle that sends tasks again, and drop these tasks.

        ``after`` is the key of the lost bundle with which the first of them was sent, and ``again``
        the number of tasks that were sent with it. Empty for tasks that were not sent before.
        """
        if not self._keys:
            return {}
        found = [self._keys.pop((pending, number), None) for number in numbers]
        keys = [key for key in found if key is not None]
        return {"after": keys[0], "again": keys.count(keys[0])} if keys else {}


def described_losses(
    bundle: SentBundle, errors: Mapping[int, KilledWorker]
) -> list[tuple[int, str, str, str | None]]:
    """Return position, error class, message and arguments of the tasks that are given up."""
    told = []
    for position, error in errors.items():
        arguments = None
        if settings.records_arguments():
            _, (_, args, kwargs) = bundle.pending.calls([bundle.numbers[position]], lambda _: 0)
            if args:
                arguments = shown_arguments(args[0], (kwargs or [None])[0] or {})
        told.append((position, type(error).__name__, str(error), arguments))
    return told
