"""Facts about a task of an executor that its client has."""

from __future__ import annotations

import itertools
import traceback
from typing import NamedTuple

from dask.utils import funcname

from scalable.client.calls.futures import CallFuture
from scalable.frames import own_frame_in
from scalable.views.facts import CallFacts, Failure, NeededCall


class Whereabouts(NamedTuple):
    """Position of a task that has not finished."""

    tag: str
    #: Key of the bundle with which it was sent.
    bundle: str | None = None
    #: It waits for an argument.
    held: bool = False
    #: Number of tasks of its executor that are sent before it.
    before: int = 0


def name_of_call(future: CallFuture) -> str:
    """Return the name of a task's function, or ``call`` after its end."""
    return str(funcname(future.call[0])) if future.call is not None else "call"


def waiting_facts(future: CallFuture, place: Whereabouts | None) -> CallFacts:
    """Return the facts about a task that was not sent.

    ``place`` is None if the executor waits for other tasks before it takes this one.
    """
    name = name_of_call(future)
    if place is not None:
        state = "held" if place.held else "backlog"
        return CallFacts(name, name, place.tag, state, before=place.before)
    _, args, kwargs = future.call or (None, (), {})
    needed = [
        other
        for other in itertools.chain(args, kwargs.values())
        if isinstance(other, CallFuture) and not other.done()
    ]
    needs = tuple(_needed(other) for other in needed)
    return CallFacts(name, name, "", "needs", needs=needs, needed=len(needs))


def _needed(future: CallFuture) -> NeededCall:
    name = name_of_call(future)
    return NeededCall(name, name, "assigned" if future.running() else "ready")


def ended_facts(future: CallFuture) -> CallFacts:
    """Return the facts about a task that has finished."""
    told, position = future.measures or (None, 0)
    name = told.name(position) if told is not None else "call"
    worker = told.worker if told is not None else ""
    if future.cancelled():
        return CallFacts(name, name, "", "cancelled")
    error = future.exception()
    if error is None:
        return CallFacts(name, name, "", "done", worker=worker)
    trace = "".join(traceback.format_tb(error.__traceback__))
    frame = own_frame_in(trace) or ""
    failure = Failure(type(error).__name__, str(error)[:500], frame, worker)
    return CallFacts(name, name, "", "failed", worker=worker, failure=failure)
