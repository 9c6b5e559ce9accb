"""The client that routes calls to pools by tag."""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final

from dask import annotate  # type: ignore[attr-defined]
from dask.base import tokenize
from dask.utils import funcname, key_split
from distributed import Client, Future

from scalable.cluster.controller import Controller
from scalable.cluster.demand import known_tags
from scalable.cluster.matching import fits
from scalable.cluster.recorder import TASK_ANNOTATION
from scalable.cluster.waiting import TAG_ANNOTATION, WAITING_TOPIC
from scalable.errors import ClusterError

logger = logging.getLogger("scalable.cluster")


class _DefaultSlots(int):
    """The 1 of a signature, to tell ``n=1`` that was written from one that was not."""


ONE_SLOT: Final[int] = _DefaultSlots(1)
_ROUTING = ("tag", "n", "task")


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Whether asyncio's record is not one of Dask's own for each call of an interrupted gather."""
    error = record.exc_info[0] if record.exc_info else None
    return error is None or error.__name__ != "AllExit"


logging.getLogger("asyncio").addFilter(_is_worth_saying)
# It tells of each connection that ends with something unsent: at the end of a session, mostly.
logging.getLogger("distributed.batched").setLevel(logging.WARNING)
_parameters: weakref.WeakKeyDictionary[Any, frozenset[str]] = weakref.WeakKeyDictionary()


class ScalableClient(Client):
    """A ``distributed.Client`` whose calls are routed by tag.

    Parameters
    ----------
    address
        A cluster object, a scheduler's address, or what else ``distributed.Client`` takes.
    tasks
        Task name -> tag, for calls that name a task and no tag.
    labels
        Label -> tags of the components that carry it; labels are not routes.
    tags
        Tags that are known although the cluster knows no pools.
    **kwargs
        As in ``distributed.Client``.

    Examples
    --------
    >>> with ScalableClient(cluster) as client:  # doctest: +SKIP
    ...     warming = client.submit(run, scenario, tag="climate")
    ...     summary = client.submit(reduce, warming, tag="impacts").result()
    """

    def __init__(
        self,
        address: Any = None,
        *args: Any,
        tasks: Mapping[str, str] | None = None,
        labels: Mapping[str, Iterable[str]] | None = None,
        tags: Iterable[str] = (),
        **kwargs: Any,
    ) -> None:
        self._tasks = dict(tasks or {})
        self._labels = {label: tuple(carriers) for label, carriers in (labels or {}).items()}
        self._tags = tuple(tags)
        self._slots: dict[str, int] = {}
        self._has_workers = False
        self._said_untagged = False
        super().__init__(address, *args, **kwargs)

    def submit(
        self,
        func: Callable[..., Any],
        *args: Any,
        tag: str | None = None,
        n: int = ONE_SLOT,
        task: str | None = None,
        key: Any = None,
        pure: bool | None = None,
        **kwargs: Any,
    ) -> Future[Any]:
        """Run a function on a worker of a pool.

        Parameters
        ----------
        func, *args
            What to call. A future among the arguments is replaced by its result; it may come from
            another pool.
        tag
            The pool. Without it, any worker may run the call.
        n
            Slots of one worker that the call takes.
        task
            Name of the task in the manifest, for records and plans. Its component is the tag where
            none is given.
        pure
            Whether an equal call is the same call. False by default for tagged calls, so that
            random draws are not merged.
        key, **kwargs
            Dask's own keywords (``retries``, ``priority``, ``workers``, ``resources``, ...) and
            the function's.

        Returns
        -------
        Future
            At once.

        Raises
        ------
        ClusterError
            When no pool has the tag, or no worker of it can hold ``n`` slots.
        TypeError
            When the function itself has a parameter named ``tag``, ``n`` or ``task``.
        """
        tag, route, notes = self._route(func, tag, n, task, kwargs)
        pure = tag is None if pure is None else pure
        if key is None:
            name = task or funcname(func)
            key = f"{name}-{tokenize(func, kwargs, *args) if pure else uuid.uuid4()}"
        self._run_failed_again([key])
        with notes(key):
            return super().submit(func, *args, key=key, pure=pure, **route, **kwargs)

    def map(
        self,
        func: Callable[..., Any],
        *iterables: Any,
        tag: str | None = None,
        n: int = ONE_SLOT,
        task: str | None = None,
        key: Any = None,
        pure: bool | None = None,
        **kwargs: Any,
    ) -> list[Future[Any]]:
        """Run a function on the workers of a pool, once for each element of the iterables.

        Parameters
        ----------
        func, *iterables
            What to call with the first elements, the second ones, and so on; the shortest iterable
            ends it.
        tag, n, task, pure, key, **kwargs
            As in :meth:`submit`; ``key`` may be a list.

        Returns
        -------
        list of Future
            In the order of the elements.
        """
        tag, route, notes = self._route(func, tag, n, task, kwargs)
        pure = tag is None if pure is None else pure
        key = task if key is None else key
        with notes(key or funcname(func)):
            futures = super().map(func, *iterables, key=key, pure=pure, **route, **kwargs)
        failed = [f for f in futures if f.status == "error"]
        if failed:
            self._retry_now(failed)
        return list(futures)

    def listen(self) -> None:
        """Log here what the scheduler of a cluster elsewhere has to say of calls that wait."""
        self.subscribe_topic(WAITING_TOPIC, _log_words)

    def worker_count(self, tag: str | None = None) -> int:
        """Connected workers of a tag, 0 for an unknown one; all of them without a tag."""
        workers = self._ask("identity", n_workers=-1)["workers"].values()
        return sum(tag is None or tag in worker["resources"] for worker in workers)

    # Routing ------------------------------------------------------------------------------------

    def _route(
        self,
        func: Callable[..., Any],
        tag: str | None,
        n: int,
        task: str | None,
        kwargs: dict[str, Any],
    ) -> tuple[str | None, dict[str, Any], Callable[[Any], AbstractContextManager[Any]]]:
        """The tag in force, the keywords for Dask, and what to annotate the call with."""
        given = {"tag": tag is not None, "n": n is not ONE_SLOT, "task": task is not None}
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
            if self.asynchronous:
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
        workers = self._ask("identity", n_workers=-1)["workers"].values()
        self._has_workers = bool(workers)
        for worker in workers:
            for tag, amount in worker["resources"].items():
                slots[tag] = max(slots.get(tag, 0), int(amount))
        declared: dict[str, int] = {}
        if self._ask("get_metadata", keys=[Controller.name], default=False):
            declared = {t: p["slots"] for t, p in self._ask("scalable_pools").items() if t}
        # A pool that was added just now may not have been reported to the scheduler yet.
        declared |= {t: p.slots for t, p in getattr(self.cluster, "pools", {}).items()}
        for tag, amount in declared.items():
            slots[tag] = max(slots.get(tag, 0), amount)
        return slots

    def _ask(self, operation: str, **arguments: Any) -> Any:
        assert self.scheduler is not None
        return self.sync(getattr(self.scheduler, operation), **arguments)

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

    # Failed calls -------------------------------------------------------------------------------

    def _run_failed_again(self, keys: Iterable[Any]) -> None:
        """Dask answers an equal call with the earlier future, also when that one failed."""
        failed: list[Future[Any]] = [
            Future(key, self)
            for key in keys
            if (state := self.futures.get(key)) is not None and state.status == "error"
        ]
        if failed:
            self._retry_now(failed)

    def _retry_now(self, futures: list[Future[Any]]) -> None:
        if self.asynchronous:
            assert self.loop is not None
            self.loop.add_callback(self._retry, futures)
        else:
            self.retry(futures)


def _log_words(event: tuple[float, Any]) -> None:
    logger.warning("%s", event[1])


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
