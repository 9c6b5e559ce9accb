"""Which workers may run a call: from its tag, its slots, or the name of its task."""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

from dask import annotate, get_annotations  # type: ignore[attr-defined]
from dask.utils import funcname, key_split

from scalable.errors import ClusterError
from scalable.protocol.matching import fits
from scalable.protocol.measured import TASK_ANNOTATION
from scalable.protocol.operations import CONTROLLER, TAG_ANNOTATION
from scalable.protocol.pools import known_tags

if TYPE_CHECKING:
    from scalable.client.client import ScalableClient

logger = logging.getLogger("scalable.client")


class _DefaultSlots(int):
    """The 1 of a signature, to tell ``n=1`` that was written from one that was not."""


ONE_SLOT: Final[int] = _DefaultSlots(1)
_ROUTING = ("tag", "n", "task")
_parameters: weakref.WeakKeyDictionary[Any, frozenset[str]] = weakref.WeakKeyDictionary()


class Routing:
    """What a client knows of tags, and makes of them.

    Parameters
    ----------
    client
        Whose cluster is asked where a tag is not known yet.
    tasks, labels, tags
        As in :class:`ScalableClient`.
    """

    def __init__(
        self,
        client: ScalableClient,
        tasks: Mapping[str, str],
        labels: Mapping[str, Iterable[str]],
        tags: Iterable[str],
    ) -> None:
        self._client = client
        self._tasks = dict(tasks)
        self._labels = {label: tuple(carriers) for label, carriers in labels.items()}
        self._tags = tuple(tags)
        self._slots: dict[str, int] = {}
        self._has_workers = False
        self._said_untagged = False

    def route(
        self,
        func: Callable[..., Any] | None,
        tag: str | None,
        n: int,
        task: str | None,
        kwargs: dict[str, Any],
    ) -> tuple[str | None, dict[str, Any], Callable[[Any], AbstractContextManager[Any]]]:
        """The tag in force, the keywords for Dask, and what to annotate the call with."""
        given = {"tag": tag is not None, "n": n is not ONE_SLOT, "task": task is not None}
        if func is not None:
            _refuse_hidden(func, [name for name in _ROUTING if given[name]])
        if task is not None:
            tag = self._tag_of_task(task, tag)
        annotations: dict[str, Any] = {}
        route: dict[str, Any] = {}
        if tag is None:
            if n is not ONE_SLOT:
                raise ClusterError("n= counts slots of a pool: give the tag too")
        else:
            known = self._check(tag, n)
            if not known:
                annotations[TAG_ANNOTATION] = tag
            if known is not None:
                route["resources"] = {**(kwargs.pop("resources", None) or {}), tag: int(n)}

        def notes(key: Any) -> AbstractContextManager[Any]:
            if task is not None and key_split(key) != task:
                annotations[TASK_ANNOTATION] = task
            return annotate(**annotations) if annotations else nullcontext()

        return tag, route, notes

    def annotations(self, tag: str | None, resources: dict[str, Any] | None) -> dict[str, Any]:
        """What Dask is to be told of calls of a tag that come in a graph."""
        given: dict[str, Any] = {"resources": resources} if resources else {}
        _, route, notes = self.route(None, tag, ONE_SLOT, None, given)
        with notes(None):
            return {**get_annotations(), **given, **route}

    def _tag_of_task(self, task: str, tag: str | None) -> str | None:
        """The tag of a call that names a task: a slip would run it on workers of another shape."""
        known = self._tasks.get(task)
        if known is None and tag is None and self._tasks:
            close = difflib.get_close_matches(task, self._tasks, 1)
            raise ClusterError(
                f"no task {task!r}" + (f"; did you mean {close[0]!r}?" if close else ""),
                hint=f"known tasks: {', '.join(map(repr, self._tasks))}; or give tag=",
            )
        if known is not None and tag is not None and tag != known:
            raise ClusterError(f"task {task!r} belongs to component {known!r}, not to {tag!r}")
        return tag or known

    def _check(self, tag: str, n: int) -> bool | None:
        """Whether the tag is known; None where it is, but the cluster's workers carry no tags.

        Raises
        ------
        ClusterError
            When no pool has the tag, or no worker of it can hold ``n`` slots.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ClusterError(f"n={n!r}: a call takes a positive whole number of slots")
        if self._slots.get(tag, 0) < n:
            if self._client.asynchronous:
                # A coroutine cannot wait here: the scheduler judges the call by its annotation.
                return False
            self._slots = self._known_slots()
        if tag not in self._slots:
            if tag in self._tags and not self._slots:
                if not self._has_workers:
                    return False  # it has no manager yet: the scheduler judges, and says so
                self._say_untagged(tag)
                return None
            raise self._unknown(tag)
        if not fits({tag: n}, tag, self._slots[tag]):
            raise ClusterError(
                f"n={n} slots of tag {tag!r}: its workers have {self._slots[tag]}",
                hint="known tags: "
                + ", ".join(f"{t!r} ({s} slots)" for t, s in sorted(self._slots.items())),
            )
        return True

    def _known_slots(self) -> dict[str, int]:
        """Tag -> slots of its largest worker, from the pools and from the connected workers."""
        slots: dict[str, int] = {}
        workers = self._client.ask("identity", n_workers=-1)["workers"].values()
        self._has_workers = bool(workers)
        for worker in workers:
            for tag, amount in worker["resources"].items():
                slots[tag] = max(slots.get(tag, 0), int(amount))
        declared: dict[str, int] = {}
        if self._client.ask("get_metadata", keys=[CONTROLLER], default=False):
            declared = {t: p["slots"] for t, p in self._client.ask("scalable_pools").items() if t}
        # A pool that was added just now may not have been reported to the scheduler yet.
        declared |= {t: p.slots for t, p in getattr(self._client.cluster, "pools", {}).items()}
        for tag, amount in declared.items():
            slots[tag] = max(slots.get(tag, 0), amount)
        return slots

    def _unknown(self, tag: str) -> ClusterError:
        known = known_tags(self._slots)
        carriers = self._labels.get(tag)
        if carriers:
            named = ", ".join(repr(carrier) for carrier in carriers)
            return ClusterError(
                f"{tag!r} is a label, not a tag; it is carried by {named}",
                hint=f"submit to one of these; known tags: {known}",
            )
        return ClusterError(f"no pool has the tag {tag!r}; known tags: {known}")

    def _say_untagged(self, tag: str) -> None:
        if not self._said_untagged:
            self._said_untagged = True
            logger.warning(
                "the workers of this cluster carry no tags: calls for %r run on any of them", tag
            )


def _refuse_hidden(func: Callable[..., Any], given: list[str]) -> None:
    """Refuse routing keywords that the function itself would have wanted."""
    hidden = [name for name in given if name in _parameters_of(func)]
    if hidden:
        name = hidden[0]
        shown = funcname(func)
        raise TypeError(
            f"{shown}() has a parameter {name!r} of its own, and {name}= is also a keyword of the "
            f"client: write client.submit(functools.partial({shown}, {name}=...), ..., tag=...)"
        )


def _parameters_of(func: Callable[..., Any]) -> frozenset[str]:
    try:
        return _parameters[func]
    except (KeyError, TypeError):
        pass
    # What a partial binds by keyword is settled; what is left may still clash.
    bound = frozenset(func.keywords) if isinstance(func, functools.partial) else frozenset[str]()
    try:
        found = frozenset(
            name
            for name, parameter in inspect.signature(func).parameters.items()
            if parameter.kind is not parameter.VAR_KEYWORD
            and parameter.kind is not parameter.VAR_POSITIONAL
        )
    except (ValueError, TypeError):  # builtins without a signature
        found = frozenset()
    names = found - bound
    with suppress(TypeError):  # not everything callable can be remembered
        _parameters[func] = names
    return names
