"""Routing of tasks to workers by tag, by number of slots, or by task name."""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from dask import get_annotations  # type: ignore[attr-defined]
from dask.utils import funcname, key_split

from scalable.dask_compat.scheduler_extensions import shuffle_mender
from scalable.errors import ClusterError
from scalable.protocol.handlers import Handler
from scalable.protocol.measured import TASK_ANNOTATION
from scalable.protocol.operations import CONTROLLER, TAG_ANNOTATION
from scalable.protocol.pools import fits, known_tags

logger = logging.getLogger("scalable.client")


class _DefaultSlots(int):
    """Default of ``slots`` and ``n`` in signatures, distinguishable from a 1 that was given."""


ONE_SLOT: Final[int] = _DefaultSlots(1)
#: Tag, slots and task without ``client.use``.
NO_DEFAULTS: Final = (None, ONE_SLOT, None)
#: Keywords that route tasks. As annotations they have the same meaning.
ROUTING: Final = ("tag", "slots", "n", "task")
#: Keywords of a task that are Dask's, not the function's.
DASK_KEYWORDS: Final = frozenset(
    {
        "actor",
        "actors",
        "allow_other_workers",
        "fifo_timeout",
        "priority",
        "resources",
        "retries",
        "workers",
    }
)
#: Stands among a function's parameters if it may take any keyword.
_ANY: Final = "**"
_parameters: weakref.WeakKeyDictionary[Any, frozenset[str]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Route:
    """Workers to which tasks are sent."""

    tag: str | None
    task: str | None
    #: Keywords of ``distributed.Client.submit``.
    options: Mapping[str, Any]
    #: Annotations of all tasks.
    noted: Mapping[str, Any]

    def annotations(self, key: Any) -> Mapping[str, Any]:
        """Return the annotations of a task with the given key."""
        if self.task is None or key_split(key) == self.task:
            return self.noted
        return {**self.noted, TASK_ANNOTATION: self.task}


@dataclass(frozen=True)
class GraphRoute:
    """Tag, task and Dask annotations of the graphs sent in a context."""

    tag: str | None = None
    task: str | None = None
    annotations: Mapping[str, Any] = field(default_factory=dict)


graph_route: ContextVar[GraphRoute] = ContextVar("graph_route", default=GraphRoute())  # noqa: B039 - it is frozen


class Routing:
    """Known tags of a cluster, and the Dask keywords that send a task to a tag's workers."""

    def __init__(
        self,
        can_ask: Callable[[], bool],
        ask_slots: Callable[[], KnownSlots],
        tasks: Callable[[], Mapping[str, str] | None],
        labels: Mapping[str, Iterable[str]],
        tags: Iterable[str],
    ) -> None:
        # An asynchronous client cannot query the scheduler: its methods must not wait for it.
        self._can_ask, self._ask_slots = can_ask, ask_slots
        #: Returns tags by task name, or None if the cluster has no manifest.
        self._tasks = tasks
        self._labels = {label: tuple(carriers) for label, carriers in labels.items()}
        self._tags = tuple(tags)
        self._known = KnownSlots()
        self._warned_untagged = False
        self._asked_pools = False
        #: True if shuffles are known to stay within pools, None before the scheduler was queried.
        self._shuffles_stay: bool | None = None
        #: Tag, slots and task of tasks that are given none.
        self.defaults: tuple[str | None, int, str | None] = NO_DEFAULTS

    def route(
        self,
        func: Callable[..., Any] | None,
        tag: str | None,
        n: int,
        task: str | None,
        kwargs: dict[str, Any],
    ) -> Route:
        """Return the route of a task with some Dask keywords, from which it takes ``resources``.
        Raises ClusterError for an unknown tag or task, a task of another component, or too many
        slots, and TypeError if ``func`` has a parameter named ``tag``, ``n`` or ``task``.
        """
        given = {"tag": tag is not None, "n": n is not ONE_SLOT, "task": task is not None}
        if func is not None:
            refuse_hidden(func, [name for name in given if given[name]])
        tag, n, task = self.asked(tag, n, task)
        return self._route(tag, n, task, kwargs)

    def asked(self, tag: Any, n: Any, task: Any) -> tuple[Any, Any, Any]:
        """Return tag, slots and task from the keywords, ``dask.annotate`` or the defaults."""
        noted = get_annotations()
        if tag is None and task is None:
            tag, task = noted.get("tag"), noted.get("task")
            if tag is None and task is None:
                tag, slots, task = self.defaults
                n = slots if n is ONE_SLOT else n
        elif "tag" in noted or "task" in noted:
            noted = {}  # its slots are those of another pool
        if n is ONE_SLOT:
            n = slots_given(noted.get("slots", n), noted.get("n", n))
        return tag if task is None else self._tag_of_task(task, tag), n, task

    def _route(self, tag: str | None, n: int, task: str | None, kwargs: dict[str, Any]) -> Route:
        if task is not None:
            tag = self._tag_of_task(task, tag)
        noted: dict[str, Any] = {}
        options: dict[str, Any] = {}
        if tag is None:
            if n is not ONE_SLOT:
                raise ClusterError("slots= needs a pool: give tag= too")
        else:
            known = self._check(tag, n)
            if not known:
                noted[TAG_ANNOTATION] = tag
            if known is not None:
                options["resources"] = {**(kwargs.pop("resources", None) or {}), tag: int(n)}
        logger.debug("task %s is routed to tag %s with %s", task, tag, options)
        return Route(tag, task, options, noted)

    def annotations(
        self,
        tag: str | None,
        resources: dict[str, Any] | None,
        n: int = ONE_SLOT,
        task: str | None = None,
    ) -> dict[str, Any]:
        """Return the Dask annotations of a graph with a tag or task. Errors as in :meth:`route`."""
        given: dict[str, Any] = {"resources": resources} if resources else {}
        route = self._route(tag, n, task, given)
        noted = {k: v for k, v in get_annotations().items() if k not in ROUTING}
        return {**noted, **route.annotations(None), **given, **route.options}

    @contextmanager
    def graphs(
        self, tag: str | None, n: int, task: str | None, resources: dict[str, Any] | None
    ) -> Iterator[None]:
        """Annotate the graphs that are sent in the block, so that they run in the tag's pool."""
        tag, n, task = self.asked(tag, n, task)
        if tag is None and task is None and n is ONE_SLOT and resources is None:
            yield  # an enclosing block may have set a route
            return
        annotations = self.annotations(tag, resources, n, task)
        token = graph_route.set(GraphRoute(tag, task, annotations))
        try:
            yield
        finally:
            graph_route.reset(token)

    def layer_annotations(self, annotations: dict[str, Any]) -> dict[str, Any]:
        """Return a layer's annotations, routed by its own tag or by the graph's tag."""
        asked = {name: annotations[name] for name in ROUTING if annotations.get(name) is not None}
        resources = annotations.get("resources")
        if callable(resources) or not (asked or resources):
            return annotations
        n = slots_given(asked.get("slots", ONE_SLOT), asked.get("n", ONE_SLOT))
        whole = graph_route.get()
        tag, task = asked.get("tag"), asked.get("task")
        if tag is None and task is None:
            # Dask would let the layer's resources replace those of the graph.
            resources = {**whole.annotations.get("resources", {}), **(resources or {})}
            if n is ONE_SLOT:
                return {**annotations, "resources": resources}
            tag, task = whole.tag, whole.task
        return {**annotations, **self.annotations(tag, resources, n, task)}

    def keep_shuffles(self, ask: Callable[..., Any], run: Callable[..., Any]) -> None:
        """Keep shuffles within pools on a scheduler that was not started by scalable.
        ``ask`` calls an operation of the scheduler, and ``run`` runs a function there.
        """
        if self._shuffles_stay is not None or not self._can_ask():
            return
        self._shuffles_stay = bool(ask("get_metadata", keys=[CONTROLLER], default=False))
        if self._shuffles_stay:
            return
        logger.debug("requesting the scheduler to keep shuffles within pools")
        try:
            run(shuffle_mender())
        except (ImportError, AttributeError, ValueError) as error:
            raise ClusterError(
                f"the scheduler cannot restrict the shuffles of a collection to a pool: {error}",
                hint="compute without a tag, or on a scheduler that scalable started",
            ) from error

    def has_pools(self) -> bool:
        """Return whether the cluster is known to have pools. The scheduler is queried once."""
        if not (self._tags or self._known.slots or self._asked_pools) and self._can_ask():
            self._asked_pools = True
            self._known = self._ask_slots()
        return bool(self._tags or self._known.slots)

    def _tag_of_task(self, task: str, tag: str | None) -> str | None:
        # A misspelt name is an error: the task would run on workers of another shape.
        tasks = self._tasks()
        known = None if tasks is None else tasks.get(task)
        if tasks is not None and known is None and tag is None:
            raise _unknown_task(task, tasks)
        if known is not None and tag is not None and tag != known:
            raise ClusterError(f"task {task!r} belongs to component {known!r}, not to {tag!r}")
        return tag or known

    def _check(self, tag: str, n: int) -> bool | None:
        """Return whether a tag is known (else the scheduler checks it), or None for any worker."""
        if not isinstance(tag, str):
            raise ClusterError(f"tag={tag!r}: a tag must be a string, the name of a pool")
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ClusterError(f"slots={n!r}: slots must be a positive whole number")
        if self._known.slots.get(tag, 0) < n:
            if not self._can_ask():
                return False  # the scheduler checks the task by its annotation
            self._known = self._ask_slots()
        slots = self._known.slots
        if tag not in slots:
            if tag in self._tags and not slots:
                if not self._known.has_workers:
                    return False  # no manager is attached yet: the scheduler checks the task
                self._warn_untagged(tag)
                return None  # no connected worker has a tag: every worker may run the task
            raise self._unknown(tag)
        if not fits({tag: n}, tag, slots[tag]):
            raise ClusterError(
                f"slots={n} of tag {tag!r}: its workers have {slots[tag]} each",
                hint="known tags: "
                + ", ".join(f"{t!r} ({s} slots)" for t, s in sorted(slots.items())),
            )
        return True

    def _unknown(self, tag: str) -> ClusterError:
        known = known_tags(self._known.slots)
        carriers = self._labels.get(tag)
        if carriers:
            named = ", ".join(repr(carrier) for carrier in carriers)
            return ClusterError(
                f"{tag!r} is a label, not a tag; it belongs to {named}",
                hint=f"give one of these as the tag; known tags: {known}",
            )
        return ClusterError(f"no pool has the tag {tag!r}; known tags: {known}")

    def _warn_untagged(self, tag: str) -> None:
        if not self._warned_untagged:
            self._warned_untagged = True
            logger.warning(
                "the workers of this cluster have no tags: tasks for %r run on any of them", tag
            )


def _unknown_task(task: str, tasks: Mapping[str, str]) -> ClusterError:
    if not tasks:
        return ClusterError(
            f"no task {task!r}: the manifest of this cluster has no tasks",
            hint="give tag=, or add the task to `tasks:` of the manifest",
        )
    close = difflib.get_close_matches(task, tasks, 1)
    return ClusterError(
        f"no task {task!r}" + (f"; did you mean {close[0]!r}?" if close else ""),
        hint=f"known tasks: {', '.join(map(repr, tasks))}; or give tag=",
    )


def slots_given(
    slots: Any, n: int, func: Callable[..., Any] | None = None, kwargs: dict[str, Any] | None = None
) -> int:
    """Return the number of slots in ``slots`` or ``n``, or raise TypeError for both.
    If the function has a parameter ``slots``, put it into the function's ``kwargs`` instead.
    """
    if slots is ONE_SLOT:
        return n
    if func is not None and kwargs is not None:
        if has_slots(func):
            kwargs["slots"] = slots
            return n
        bound = isinstance(func, functools.partial) and "slots" in func.keywords
        if bound or _ANY in _parameters_of(func):
            shown = funcname(func)
            raise TypeError(
                f"slots= may be a keyword of {shown}() or the number of slots that its task takes: "
                f"write functools.partial({shown}, slots=...) for the first, n= for the second"
            )
    if n is not ONE_SLOT:
        raise TypeError("slots= and n= are two names for the same number: give only slots=")
    return slots  # type: ignore[no-any-return]  # checked with the tag


def has_slots(func: Callable[..., Any]) -> bool:
    """Return whether the function itself has a parameter ``slots``, so that it gets the value."""
    return "slots" in _parameters_of(func)


def refuse_hidden(func: Callable[..., Any], given: list[str]) -> None:
    """Raise TypeError for keywords of the client that are also parameters of the function."""
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
    # Parameters that a partial binds by keyword cannot clash any more.
    bound = frozenset(func.keywords) if isinstance(func, functools.partial) else frozenset[str]()
    try:
        found = frozenset(
            _ANY if parameter.kind is parameter.VAR_KEYWORD else name
            for name, parameter in inspect.signature(func).parameters.items()
            if parameter.kind is not parameter.VAR_POSITIONAL
        )
    except (ValueError, TypeError):  # builtins without a signature
        found = frozenset({_ANY})
    names = found - bound
    with suppress(TypeError):  # some callables cannot be referred to weakly
        _parameters[func] = names
    return names


# Known slots --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KnownSlots:
    """Tags of a cluster, with the number of slots of each tag's largest worker."""

    #: Number of slots of the largest worker with each tag.
    slots: dict[str, int] = field(default_factory=dict)
    #: True if any worker is connected.
    has_workers: bool = False


def ask_known_slots(ask: Callable[..., Any], cluster: Any) -> KnownSlots:
    """Return the tags and slots of the declared pools and of the connected workers."""
    slots: dict[str, int] = {}
    workers = ask("identity", n_workers=-1)["workers"].values()
    for worker in workers:
        for tag, amount in worker["resources"].items():
            slots[tag] = max(slots.get(tag, 0), int(amount))
    declared: dict[str, int] = {}
    if ask("get_metadata", keys=[CONTROLLER], default=False):
        declared = {t: p["slots"] for t, p in ask(Handler.POOLS).items() if t}
    # A pool that was added just now may not have been reported to the scheduler yet.
    declared |= {t: p.slots for t, p in getattr(cluster, "pools", {}).items()}
    for tag, amount in declared.items():
        slots[tag] = max(slots.get(tag, 0), amount)
    return KnownSlots(slots, bool(workers))
