"""`ScalableClient`: a Dask client that sends each task to the pool with the task's tag.

A *pool* is a group of equal workers. Its *tag* is the name of the Dask resource that its workers
offer. A *slot* is the capacity for one task on a worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple, TypeVar, overload
from weakref import WeakKeyDictionary

from dask import annotate, get_annotations  # type: ignore[attr-defined]
from dask.base import tokenize
from dask.core import flatten
from dask.utils import funcname, parse_timedelta
from distributed import Future
from distributed.diagnostics.plugin import NannyPlugin
from distributed.utils_comm import pack_data

from scalable.cache.calls import Purpose
from scalable.cache.key import KeyOptions
from scalable.client.backlog import CallOptions, time_limit
from scalable.client.caching import TaskCache
from scalable.client.code_upload import CodeUpload
from scalable.client.dispatcher import Dispatcher
from scalable.client.executor import PoolExecutor
from scalable.client.executor_connection import ExecutorConnection
from scalable.client.failures import (
    KEEP,
    RAISE,
    KeptFuture,
    Sweep,
    debug_failed_task,
    explained,
    kept_values,
    leave_out_our_frames,
    name_of,
    parts_of_call,
    parts_of_graph,
    parts_of_map,
    rows_of,
    run_failed_task,
    shown_error,
    unsendable_result,
)
from scalable.client.futures import CallFuture, call_futures_of, waits_for_calls
from scalable.client.graphs import is_raw, prepare
from scalable.client.overviews import explain_executors, explanation_of, overview_of
from scalable.client.routing import (
    DASK_KEYWORDS,
    NO_DEFAULTS,
    ONE_SLOT,
    Route,
    Routing,
    ask_known_slots,
    graph_route,
    has_slots,
    refuse_hidden,
    slots_given,
)
from scalable.client.task_output import display
from scalable.dask_compat import check_version
from scalable.dask_compat.client import (
    WAITS,
    ClientHooks,
    HookedClient,
    facts_of,
    forget_callers,
    keep_copy,
    retry_soon,
    survive_unpickling,
    wait_for_futures,
    waits_for_ended,
)
from scalable.dask_compat.comm import share_memory
from scalable.dask_compat.worker import current_call
from scalable.errors import ClusterError
from scalable.model.cache_settings import CacheSettings
from scalable.protocol.handlers import Handler
from scalable.protocol.lending import Lender, in_call, slot_lent, take_lent_slot_back, wait_in_call
from scalable.protocol.measured import PROFILE
from scalable.protocol.operations import (
    CODE,
    CODE_ANNOTATION,
    RETRIED,
    TAG_ANNOTATION,
    TASKS,
    WIRE,
)
from scalable.protocol.synchronous import caller_executors, in_place
from scalable.protocol.task_output import TOPIC, ShowOutput, logs_of
from scalable.views.notebooks import render_overview

logger = logging.getLogger("scalable.client")
_Result = TypeVar("_Result")


#: Types of the names that may be given for a plain task.
_NAMES = {str, type(None)}


class _PlainTask(NamedTuple):
    """Way to send tasks of one function with the same keywords, without any special case."""

    #: First part of their keys.
    name: str
    annotations: Mapping[str, Any]
    #: Keywords of ``distributed.Client.submit``.
    options: Mapping[str, Any]


class ScalableClient(HookedClient):
    """A ``distributed.Client`` that runs each task on a worker of the pool with the task's tag.

    Parameters
    ----------
    address
        Cluster object, address of a scheduler, or any other address that ``distributed.Client``
        accepts.
    tasks
        Tag by task name, for tasks submitted with ``task=`` but without ``tag=``. The default comes
        from the cluster's manifest. A cluster without a manifest accepts any name, for records
        only.
    labels
        Tags by the labels of components in the manifest. If a label is given as a tag, the error
        message lists its tags.
    tags
        Tags that are accepted while the cluster reports neither pools nor tagged workers.
    remembering
        Cache settings: where results are stored, and for which tasks. The default comes from the
        cluster's manifest, or else is the user's own directory.
    **kwargs
        Other arguments of ``distributed.Client``.

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
        remembering: CacheSettings | None = None,
        **kwargs: Any,
    ) -> None:
        check_version()
        leave_out_our_frames()
        share_memory()
        survive_unpickling()
        forget_callers()
        #: Way in which tasks were sent, by function, and by tag, task and ``errors``.
        self._plain: WeakKeyDictionary[Any, dict[Any, _PlainTask]] = WeakKeyDictionary()
        self._routing = routing = Routing(
            lambda: not self.asynchronous,
            lambda: ask_known_slots(self._ask, self.cluster),
            lambda: facts_of(self).get(TASKS) if tasks is None else tasks,
            labels or {},
            tags,
        )
        self._code = CodeUpload(self)
        self._line = line = ExecutorConnection(self, self._code.current_id, self._fail_all)
        self._cache = TaskCache(self, remembering)
        hooks = ClientHooks(
            handlers={**line.handlers(), CODE: self._code.receive},
            followed=line.followers,
            in_memory=line.passed_on("in_memory"),
            erred=line.passed_on("erred"),
            lost=line.passed_on("lost"),
            scheduler_known=self._code.scheduler_known,
            connected=self._code.start,
            reconnected=self._reconnected,
            before_cancel=line.interrupt_each,
            before_close=self._before_close,
            graph_annotations=self._graph_annotations,
            layer_annotations=routing.layer_annotations,
            before_tagged_graph=lambda: routing.keep_shuffles(self._ask, self.run_on_scheduler),
            explained=partial(shown_error, self),
            with_reasons=line.with_reasons,
            unreadable=unsendable_result,
            values_in_place=partial(kept_values, self),
        )
        super().__init__(hooks, address, *args, **kwargs)
        # Dask sets a method of the instance.
        self.__dict__.pop("recreate_error_locally", None)
        self._line.subscribe()

    # What happens to the client -------------------------------------------------------------------

    async def _reconnected(self) -> None:
        """Renew the subscriptions to slots and notifications, which the scheduler has lost."""
        self._plain.clear()
        self._line.subscribe()
        await self._line.reconnected()

    def _before_close(self, error: Exception | None) -> None:
        self._cache.report()
        self._line.close(error)

    def _graph_annotations(self) -> Mapping[str, Any]:
        """Return the annotations of the graph that is about to be sent."""
        code, routed = self._code.current_id(), graph_route.get().annotations
        return {**routed, CODE_ANNOTATION: code} if code else routed

    def _ask(self, operation: str, **arguments: Any) -> Any:
        """Call an operation of the scheduler by its name, and return the answer."""
        self._check_open()
        assert self.scheduler is not None
        return self.sync(getattr(self.scheduler, operation), **arguments)

    def _serve_calls_of(self, lender: Lender) -> None:
        """Mark the client as used only by the tasks of one worker, given its lender of slots."""
        self._line.lender = lender

    def _unfinished_calls(self) -> int:
        """Return the number of tasks that wait or run, including those of executors."""
        bundles, futures = self._line.followers, list(self.futures.items())
        pending: int = sum(f.status == "pending" for key, f in futures if key not in bundles)
        return pending + self._line.unfinished_calls

    # Waits ----------------------------------------------------------------------------------------

    def sync(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a coroutine and wait. A task that waits for other tasks lends them its slot."""
        loop: Any = self.loop
        if not self.asynchronous and (
            self.status != "running"
            or os.getpid() != self._process
            or loop.asyncio_loop.is_closed()
        ):
            self._check_open(func)
        if func is wait_for_futures and call_futures_of(args[:1]):
            func = waits_for_calls(func)
        try:
            if self.asynchronous or getattr(func, "__name__", "") not in WAITS:
                return super().sync(func, *args, **kwargs)
            if current_call() is not None and in_call():
                return self._wait_in_call(func, args, kwargs)
            if caller_executors or "IPython" in sys.modules:
                with display.waiting():
                    return self._wait_here(func, args, kwargs)
            try:
                return super().sync(func, *args, **kwargs)
            finally:
                if not display.is_idle:
                    display.flush()
        except Exception as error:
            keep_copy(error, func, args)
            raise

    def _wait_here(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Wait in a notebook's cell, or in a thread that runs tasks meanwhile."""
        if not caller_executors:
            return super().sync(func, *args, **kwargs)
        kwargs.pop("asynchronous", None)
        timeout = parse_timedelta(kwargs.pop("callback_timeout", None))
        waited = partial(func, *args, **kwargs)
        return wait_in_call(self.loop, lambda: asyncio.wait_for(waited(), timeout))

    def _wait_in_call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Wait in a task, whose slot is lent meanwhile."""
        options = {name: kwargs.pop(name, None) for name in ("asynchronous", "callback_timeout")}
        ended = waits_for_ended(func)
        if ended:
            self._line.made_calls()  # if the result is lost, the wait may be long
            take_lent_slot_back()
        with nullcontext() if ended else slot_lent():
            if any(options.values()):
                return super().sync(func, *args, **options, **kwargs)
            return wait_in_call(self.loop, func, *args, **kwargs)

    # Tasks ----------------------------------------------------------------------------------------

    def submit(  # noqa: PLR0913 - Dask's keywords and ours
        self,
        func: Callable[..., _Result],
        *args: Any,
        tag: str | None = None,
        slots: Any = ONE_SLOT,
        n: int = ONE_SLOT,
        task: str | None = None,
        key: Any = None,
        pure: bool | None = None,
        cache: bool | KeyOptions | None = None,
        errors: str = RAISE,
        **kwargs: Any,
    ) -> Future[_Result]:
        """Run a function on a worker of a pool.

        Parameters
        ----------
        func, *args
            Function and its arguments. A future among the arguments is replaced by its result, even
            if another pool computed the result.
        tag
            Tag of the pool. Without a tag, any worker may run the task.
        slots
            Number of slots of one worker that the task takes. If the function itself has a
            parameter ``slots``, the function gets the value. In this case, use ``n`` for the
            number of slots.
        n
            Another name for ``slots``.
        task
            Name of the task in the manifest, for records and plans. Without ``tag``, the task goes
            to the pool of the task's component.
        pure
            Whether tasks of the same function with the same arguments run only once. The default is
            True only for tasks without a tag on a cluster without pools, so that a function that
            draws random numbers runs each time. Actors are never shared.
        cache
            Whether the result is cached, so that an equal task of any later run gets the result
            without running (see ``docs/resuming.md``). None applies ``cache:`` of the task in the
            manifest, and :func:`scalable.cached`.
        errors
            ``raise``: the result of a failed task raises its exception. ``keep``: the result is a
            :class:`scalable.CallFailed`, whose truth value is False.
        key, **kwargs
            Dask's keywords (``retries``, ``priority``, ``workers``, ``resources``, ...) and
            the keyword arguments of the function.

        Returns
        -------
        Future
            Future of the result. The method does not wait for the task.

        Raises
        ------
        ClusterError
            When no pool has the tag, or no worker of the pool has enough slots.
        TypeError
            When the function itself has a parameter named ``tag``, ``n``, ``task`` or ``errors``,
            when both ``slots`` and ``n`` are given, or when ``slots`` is given for a function that
            accepts any keyword.
        """
        asked, plain = (tag, task, errors), None
        is_plain = (
            type(func) is FunctionType
            and {type(tag), type(task), type(errors)} <= _NAMES
            and slots is n is ONE_SLOT
            and key is pure is cache is None
            and DASK_KEYWORDS.isdisjoint(kwargs)
            and self._routing.defaults is NO_DEFAULTS
            and not get_annotations()
        )
        if is_plain and (known := self._plain.get(func)) is not None:
            plain = known.get(asked)
        if plain is not None:
            pure, key, options = False, f"{plain.name}-{uuid.uuid4()}", plain.options
            annotations = plain.annotations
        else:
            own = func
            n = slots_given(slots, n, func, kwargs)
            route = self._routing.route(func, tag, n, task, kwargs)
            _check_errors(func, errors)
            pure = self._is_pure(pure, route.tag, kwargs)
            purpose = Purpose(task or "", route.tag or "")
            call = self._cache.call(func, args, kwargs, purpose, cache)
            if call is None:
                func = self._cache.resumable(func, kwargs, purpose, cache)
            elif call.found is not None:
                return self._cache.known(key or call.key, call.found, purpose)
            else:
                key, func = key or call.key, call.function
            if key is None:
                name = task or funcname(func)
                key = f"{name}-{tokenize(func, kwargs, *args) if pure else uuid.uuid4()}"
            options, annotations = route.options, route.annotations(key)
            if is_plain and not pure:
                self._note_plain(own, asked, key, route)
        with self._refcount_lock:  # its last future may go meanwhile
            failed = getattr(self.futures.get(key), "status", "") == "error"
            held: Future[Any] | None = Future(key, self) if failed else None
        if held is not None:  # Dask would answer with the failed future
            self._retry_now([held])  # held until then: the task must not be sent anew
        if self._line.lender is not None or current_call() is not None:
            self._line.made_calls()
        sent = in_place(func) if caller_executors else func
        try:
            with annotate(**annotations):
                future = super().submit(sent, *args, key=key, pure=pure, **options, **kwargs)
        except TypeError:
            with explained(name_of(func), lambda: parts_of_call(func, args, kwargs)):
                raise
        return future if errors == RAISE else self._kept([future])[0]

    def _note_plain(self, func: Callable[..., Any], asked: Any, key: str, route: Route) -> None:
        """Note how a task was sent, for the next tasks of the function, unless that may change."""
        name, task = asked[1] or funcname(func), asked[1]
        is_known = TAG_ANNOTATION not in route.noted and (route.tag is None or route.options)
        if is_known and not self._cache.concerns(func, Purpose(task or "", route.tag or "")):
            noted = _PlainTask(name, route.annotations(key), route.options)
            self._plain.setdefault(func, {})[asked] = noted

    def _kept(self, futures: Iterable[Future[Any]]) -> list[Future[Any]]:
        """Return the futures, made to keep failures as values."""
        # A future of another class has its result already.
        return [KeptFuture(f.key, self) if type(f) is Future else f for f in futures]

    def _retry_now(self, futures: list[Future[Any]]) -> None:
        """Run failed tasks again."""
        if self.asynchronous:
            retry_soon(self, futures)
        else:
            self.retry(futures)

    def map(  # noqa: PLR0913 - Dask's keywords and ours
        self,
        func: Callable[..., _Result],
        *iterables: Any,
        tag: str | None = None,
        slots: Any = ONE_SLOT,
        n: int = ONE_SLOT,
        task: str | None = None,
        key: Any = None,
        pure: bool | None = None,
        cache: bool | KeyOptions | None = None,
        errors: str = RAISE,
        **kwargs: Any,
    ) -> list[Future[_Result]]:
        """Run a function on the workers of a pool, once for each element of the iterables.

        Parameters
        ----------
        func, *iterables
            Function, and one iterable for each of its arguments. The shortest iterable sets the
            number of tasks.
        tag, slots, n, task, pure, cache, errors, key, **kwargs
            As in :meth:`submit`. ``key`` may also be a list with one key for each task.

        Returns
        -------
        list of Future
            One future for each task, in the order of the elements.
        """
        n = slots_given(slots, n, func, kwargs)
        route = self._routing.route(func, tag, n, task, kwargs)
        _check_errors(func, errors)
        pure = self._is_pure(pure, route.tag, kwargs)
        self._line.made_calls()
        name, purpose = name_of(func), Purpose(task or "", route.tag or "")
        parts = partial(parts_of_map, func, iterables, kwargs)

        def send(function: Callable[..., Any], *columns: Any, key: Any) -> Any:
            noted = route.annotations(key if isinstance(key, str) else task or name)
            with annotate(**noted), explained(name, parts):
                return super(ScalableClient, self).map(
                    in_place(function), *columns, key=key, pure=pure, **route.options, **kwargs
                )

        known = self.futures.copy()  # a new task may fail before the next lines
        if key is None:
            futures = self._cache.map(func, iterables, kwargs, purpose, cache, send)
        else:
            own = self._cache.resumable(func, kwargs, purpose, cache)
            futures = send(own, *iterables, key=key)
        failed = [f for f in futures if f.key in known and f.status == "error"]
        if failed:
            self._retry_now(failed)
        return futures if errors == RAISE else self._kept(futures)

    def _is_pure(self, pure: bool | None, tag: str | None, options: Mapping[str, Any]) -> bool:
        if options.get("actor") or options.get("actors"):
            return False
        return (tag is None and not self._routing.has_pools()) if pure is None else pure

    def starmap(
        self,
        func: Callable[..., _Result],
        iterable: Iterable[Iterable[Any]],
        *,
        tag: str | None = None,
        **kwargs: Any,
    ) -> list[Future[_Result]]:
        """Run a function on the workers of a pool, once for each tuple of arguments.

        Parameters
        ----------
        func, iterable
            Function, and the positional arguments of each task.
        tag, **kwargs
            As in :meth:`submit`.

        Returns
        -------
        list of Future
            One future for each task, in the order of the elements.
        """
        return [self.submit(func, *args, tag=tag, **kwargs) for args in iterable]

    def sweep(
        self,
        func: Callable[..., _Result],
        parameters: Any,
        *,
        tag: str | None = None,
        slots: Any = ONE_SLOT,
        n: int = ONE_SLOT,
        task: str | None = None,
        cache: bool | KeyOptions | None = None,
        **kwargs: Any,
    ) -> Sweep:
        """Run a function once for each set of parameters.

        Parameters
        ----------
        func
            Function that takes the parameters as keywords.
        parameters
            pandas DataFrame with one column for each parameter, or an iterable of dictionaries.
        tag, slots, n, task, cache, **kwargs
            As in :meth:`submit`, for all tasks.

        Returns
        -------
        Sweep
            The tasks, with a table of parameters, states, results, errors, durations and workers. A
            failed task does not stop the others. The method does not wait for the tasks.

        Raises
        ------
        TypeError
            When ``parameters`` is not a DataFrame or an iterable of dictionaries with string keys,
            or a parameter has the name of a keyword of :meth:`submit`.
        ClusterError
            When no pool has the tag, or no worker of the pool has enough slots.

        Examples
        --------
        >>> sweep = client.sweep(run, [{"seed": 1}, {"seed": 2}], tag="model")  # doctest: +SKIP
        >>> sweep.wait().table()  # doctest: +SKIP
        """
        rows, frame = rows_of(parameters)
        n = slots_given(slots, n, func, kwargs)
        asked = {"tag": tag, "n": n, "task": task, "cache": cache, "errors": KEEP}
        taken = {*asked, "func", *kwargs, *(() if has_slots(func) else ("slots",))}
        hidden = sorted({name for row in rows for name in row} & taken)
        if hidden:
            raise TypeError(
                f"the parameter {hidden[0]!r} of the sweep is also a keyword of submit: "
                "rename it in a wrapper function"
            )
        futures = [self.submit(func, **asked, **kwargs, **row) for row in rows]  # type: ignore[arg-type]
        return Sweep(self, rows, futures, frame)

    def compute(
        self,
        collections: Any,
        *args: Any,
        tag: str | None = None,
        slots: int = ONE_SLOT,
        n: int = ONE_SLOT,
        task: str | None = None,
        resources: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Compute collections on the workers of a pool, and return futures of the results.

        Parameters
        ----------
        collections
            A collection, or a list of collections.
        tag, slots, n, task
            As in :meth:`submit`, for each task of the graphs.
        resources, *args, **options
            Other arguments of ``distributed.Client.compute``.

        Raises
        ------
        ClusterError
            When no pool has the tag, or no worker of the pool has enough slots.
        """
        with self._routing.graphs(tag, slots_given(slots, n), task, resources):
            return super().compute(collections, *args, **options)

    def persist(
        self,
        collections: Any,
        *args: Any,
        tag: str | None = None,
        slots: int = ONE_SLOT,
        n: int = ONE_SLOT,
        task: str | None = None,
        resources: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Compute collections on the workers of a pool, and return collections of the results.

        Parameters
        ----------
        collections, tag, slots, n, task, resources, *args, **options
            As in :meth:`compute`, with the same errors.
        """
        with self._routing.graphs(tag, slots_given(slots, n), task, resources):
            return super().persist(collections, *args, **options)

    def get(  # type: ignore[override]  # noqa: PLR0913 - Dask's further options are keywords
        self,
        dsk: Any,
        keys: Any,
        *,
        sync: bool = True,
        tag: str | None = None,
        slots: int = ONE_SLOT,
        n: int = ONE_SLOT,
        task: str | None = None,
        tags: Mapping[Any, str | None] | None = None,
        cache: bool | KeyOptions | None = None,
        **options: Any,
    ) -> Any:
        """Run the nodes of a graph that ``keys`` needs, and return the results of ``keys``.

        Parameters
        ----------
        dsk
            Plain dict from node names to ``(func, arg, ...)``, values, or other names, or a
            Dask graph.
        keys
            Name of a node, or a (nested) list of names.
        tag, slots, n, task
            As in :meth:`submit`, for all nodes. Without a tag, any worker may run them.
        tags
            Tag by node name, for nodes with another tag than ``tag``. Only for a plain dict.
        cache
            As in :meth:`submit`, for all nodes. The workers compute the cache keys. Only for a
            plain dict.
        sync
            True to wait for the results, False to return futures.
        **options
            Other arguments of ``distributed.Client.get`` (``retries``, ``priority``, ...).

        Returns
        -------
        object
            Results or futures, nested and ordered as ``keys`` is.

        Raises
        ------
        ClusterError
            When the graph has a cycle, a name is unknown or occurs twice in ``keys``, or no pool
            has one of the tags. No node has been started then.
        """
        self._line.made_calls()
        n = slots_given(slots, n)
        resources = options.pop("resources", None)
        if not is_raw(dsk):
            if tags:
                raise ClusterError("tags= needs a plain dict as graph", hint="give tag= instead")
            if cache:
                raise ClusterError("cache= needs a plain dict as graph, not a Dask graph")
            with self._routing.graphs(tag, n, task, resources):
                return super().get(dsk, keys, sync=sync, **options)
        tag, n, task = self._routing.asked(tag, n, task)
        whole = self._routing.annotations(tag, resources, n, task)
        dsk = self._cache.nodes(dsk, tags or {}, Purpose(task or "", tag or ""), cache)
        graph = prepare(dsk, keys, tag, tags)
        routes = {
            t: whole if t == tag else self._routing.annotations(t, resources)
            for t in {tag, *(tags or {}).values()}
        }
        options["actors"] = graph.actors(options.get("actors"))
        with explained("get", lambda: parts_of_graph(dsk)):
            futures = super().get(graph.annotated(routes), graph.keys, sync=False, **options)
        return self._results_of(futures, options) if sync else futures

    def _results_of(self, futures: Any, options: Mapping[str, Any]) -> Any:
        """Return a graph's results. If this method waits, it then releases the futures."""
        gathering = {k: options[k] for k in ("direct", "asynchronous") if k in options}
        try:
            return self.gather(futures, **gathering)
        finally:
            if not (self.asynchronous or options.get("asynchronous")):
                for future in flatten([futures]):
                    future.release()

    @overload
    def gather(
        self, futures: Future[_Result] | CallFuture[_Result], *args: Any, **kwargs: Any
    ) -> _Result: ...
    @overload
    def gather(
        self, futures: list[Future[_Result]] | list[CallFuture[_Result]], *args: Any, **kwargs: Any
    ) -> list[_Result]: ...
    @overload
    def gather(self, futures: Any, *args: Any, **kwargs: Any) -> Any: ...
    def gather(self, futures: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for futures, and return their results.

        Parameters
        ----------
        futures
            Future (including those of executors), or a (nested) list, tuple, set or dict of them.
        *args, **kwargs
            Other arguments of ``distributed.Client.gather`` (``errors``, ``direct``).

        Returns
        -------
        object
            Results, nested as the futures are.
        """
        found = super().gather(futures, *args, **kwargs)
        calls = call_futures_of(futures)
        if not calls or self.asynchronous:
            return found
        if "skip" in (*args[:1], kwargs.get("errors")) and isinstance(found, list):
            failed = {call for call in calls if call.exception() is not None}
            calls -= failed
            found = [each for each in found if each not in failed]
        return pack_data(found, {call: call.result() for call in calls})

    def send(self, obj: _Result) -> Future[_Result]:
        """Upload an object once, for use in many tasks.

        A list is one object here. Dask's ``scatter`` uploads its elements instead.

        Parameters
        ----------
        obj
            Any object that can be pickled.

        Returns
        -------
        Future
            Future to pass instead of the object in the arguments of tasks, even nested in other
            objects.

        Raises
        ------
        TypeError
            When the object cannot be pickled, and the workers are other processes.
        """
        return self._line.upload(obj)

    def profile(self, key: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return the measurements of a task, or Dask's profile of the workers.

        Parameters
        ----------
        key
            Future of a task that has succeeded, failed or been cancelled. Any other object is
            passed to ``distributed.Client.profile``.
        *args, **kwargs
            Other arguments of ``distributed.Client.profile``.

        Returns
        -------
        dict
            Keys as in :meth:`CallFuture.profile`.

        Raises
        ------
        ValueError
            When the task has not finished.
        ClusterError
            When the scheduler was not started by scalable.
        """
        if not isinstance(key, Future):
            return super().profile(key, *args, **kwargs)
        if WIRE not in facts_of(self):
            raise ClusterError("the scheduler of this cluster does not record task profiles")
        row = self._ask(Handler.PROFILE, key=key.key)
        if row is None and key.cancelled():
            return dict.fromkeys(PROFILE) | {"state": "cancelled"}
        if row is None:
            raise ValueError(f"the task {key.key} has not finished")
        return row

    # Debugging ------------------------------------------------------------------------------------

    def recreate_error_locally(self, future: Any) -> Any:
        """Run a failed task again in this process, where a debugger can stop it.

        Parameters
        ----------
        future
            Failed future, or a collection with failed futures. If the task failed because of
            another task, that other task runs.

        Returns
        -------
        object
            The task's result, if it does not fail here.

        Raises
        ------
        ClusterError
            When no task has failed, or the future is an executor's.
        """
        return run_failed_task(self, future)

    def debug(self, future: Any) -> None:
        """Run a failed task again in this process, and open ``pdb`` where it raises.

        Parameters
        ----------
        future
            As in :meth:`recreate_error_locally`.

        Raises
        ------
        ClusterError
            When no task has failed, the future is an executor's, or the task does not fail here.
        """
        debug_failed_task(self, future)

    @property
    def dashboard_link(self) -> str:
        """URL of the cluster's dashboard with its access token, or ``""`` without a dashboard."""
        if self.cluster is not None or self.asynchronous:
            return str(super().dashboard_link)
        if WIRE not in facts_of(self):
            return str(super().dashboard_link)
        return str(self._ask(Handler.LIVE_PAGE))

    def explain(self, about: Any = None) -> Any:
        """Return why a task or a pool waits, or why a task has failed.

        Parameters
        ----------
        about
            Future of a task (including those of executors), tag of a pool, key of a task or its
            prefix, or name of a task. None for all pools, and all queued and blocked tasks.

        Returns
        -------
        Explanation or Explanations
            ``sentence``, ``advice`` and ``details`` about one task, or the explanations of pools
            and of the queued and blocked tasks, grouped by reason. ``print`` shows both. An
            asynchronous client returns an awaitable object.

        Raises
        ------
        ClusterError
            When the scheduler was not started by scalable.
        """
        if isinstance(about, CallFuture):
            return explain_executors(self, about)
        return self.sync(explanation_of, self, about)

    def get_logs(self, about: Any = None) -> Any:
        """Return what tasks have printed and logged, with Dask's messages of their workers.

        Parameters
        ----------
        about
            Future of a task, to return only its last lines; name of a worker; or tag of a pool.
            None for all connected workers.

        Returns
        -------
        dict
            Text by worker name, at most the last 1,000 lines of tasks for each. An asynchronous
            client returns an awaitable object. ``session.logs()`` also has the output of workers
            that have stopped, of programs that tasks start, and of compiled code.

        Raises
        ------
        ClusterError
            When there is no such worker or pool.
        """
        return self.sync(logs_of, about, self.scheduler)

    def _repr_html_(self) -> str:
        overview = overview_of(self)
        facts: list[tuple[str, Any]] = []
        if self.scheduler is not None:
            facts.append(("Scheduler", self.scheduler.address))
        name = "" if overview is None else str(overview.cluster.get("name") or "")
        return render_overview(type(self).__name__, name, self.status, overview, facts=facts)

    def show_output(self) -> Any:
        """Show the output of the cluster's tasks in this process, after their tag in brackets.

        In a notebook it appears in the cell that waits for tasks. A session shows the output of its
        own cluster's tasks without this call. Workers that are threads of this process print here
        anyway. At most 16,000 characters of a worker's output are shown every 0.2 s. An
        asynchronous client returns a coroutine.
        """
        self._line.shows_output = True
        self.subscribe_topic(TOPIC, display.show_event)
        # What ``distributed.print`` prints on the worker has the topic above.
        self.subscribe_topic("print", lambda _: None)
        return self.register_plugin(ShowOutput())

    def register_plugin(self, plugin: Any, name: str | None = None) -> Any:
        """Register a plugin. Raises ClusterError for a NannyPlugin if workers have no nannies."""
        if isinstance(plugin, NannyPlugin):
            workers = self.scheduler_info()["workers"].values()
            if not any(worker.get("nanny") for worker in workers):
                error = ClusterError(
                    f"the NannyPlugin {type(plugin).__name__} has no effect: the workers of this "
                    "cluster have no nannies",
                    hint="use a WorkerPlugin, which runs in each worker, or `env:` of the "
                    "component for environment variables",
                )
                if workers:
                    raise error
                if facts_of(self).get(WIRE):
                    logger.warning("%s", error)
        return super().register_plugin(plugin, name)

    def sync_code(self) -> list[str]:
        """Make workers run the workflow's files as they are now, including edited files.

        This process keeps what it has imported. Needed only after an edit without a reload:
        modules that are reloaded, or imported by a new process, reach the workers automatically.

        Returns
        -------
        list of str
            Names of the modules that differ from what was sent to the workers before, and names of
            other uploaded files that differ.
        """
        return self._code.read_again()

    def worker_count(self, tag: str | None = None) -> int:
        """Return the number of connected workers of a tag, or of all workers without a tag."""
        workers = self._ask("identity", n_workers=-1)["workers"].values()
        return sum(tag is None or tag in worker["resources"] for worker in workers)

    @contextmanager
    def use(
        self,
        tag: str | None = None,
        *,
        slots: int = ONE_SLOT,
        n: int = ONE_SLOT,
        task: str | None = None,
    ) -> Iterator[ScalableClient]:
        """Set the pool of tasks that are submitted without ``tag`` or ``task`` in a block.

        Use it for libraries that submit tasks themselves, such as joblib with its Dask backend. It
        applies to all threads, because such libraries submit tasks from their own threads.

        Parameters
        ----------
        tag, slots, n, task
            As in :meth:`submit`.

        Raises
        ------
        ClusterError
            When no pool has the tag, or no worker of the pool has enough slots.

        Examples
        --------
        >>> with client.use(tag="model"), joblib.parallel_config("dask"):  # doctest: +SKIP
        ...     joblib.Parallel()(joblib.delayed(run)(x) for x in scenarios)
        """
        n = slots_given(slots, n)
        self._routing.route(None, tag, n, task, {})
        before, self._routing.defaults = self._routing.defaults, (tag, n, task)
        try:
            yield self
        finally:
            self._routing.defaults = before

    # Many tasks -----------------------------------------------------------------------------------

    def executor(
        self,
        tag: str | None = None,
        *,
        slots: int = ONE_SLOT,
        n: int = ONE_SLOT,
        task: str | None = None,
        timeout: str | float | None = None,
        stream_output: bool = False,
        record_calls: bool = False,
        cache: bool | KeyOptions | None = None,
    ) -> PoolExecutor:
        """Return an executor that also has the methods of ``multiprocessing.Pool``.

        ``client.pool`` is another name of this method.

        Parameters
        ----------
        tag, slots, n, task
            As in :meth:`submit`.
        timeout
            Longest running time of a task, in seconds or as a string such as ``"5 min"``. A task
            that runs longer is stopped, and its future raises TimeoutError. None for no limit.
        stream_output
            Whether the output of tasks is also printed in this process, line by line.
        record_calls
            True for one row in the run's records for each task, False for one row for each *bundle*
            (a batch of tasks that is sent as one Dask task).
        cache
            As in :meth:`submit`. The workers compute the cache keys and look up the results.

        Raises
        ------
        ClusterError
            When no pool has the tag, no worker of the pool has enough slots, or ``timeout`` is not
            a duration.
        """
        timeout_s = time_limit(timeout)
        if self.asynchronous:
            raise ClusterError("client.executor() needs a client that is not asynchronous")
        n = slots_given(slots, n)
        route = self._routing.route(None, tag, n, task, {})
        tag = route.tag
        self._line.request_slots()
        options = CallOptions(
            name=task or tag or "call",
            tag=tag or "",
            slots_per_call=int(n),
            resources=route.options.get("resources"),
            task=task,
            timeout_s=timeout_s,
            stream_output=stream_output,
            record_calls=record_calls,
        )
        if task in facts_of(self).get(RETRIED, ()):
            logger.warning(
                "task %r has `retries:` or `memory_on_retry:`, which executors ignore: use "
                "submit() or map() of the client for tasks that are to be retried",
                task,
            )
        logger.debug("created executor %s", options)
        return PoolExecutor(
            self._line,
            Dispatcher(self._line, options),
            partial(overview_of, self),
            partial(self._cache.function, purpose=Purpose(task or "", tag or ""), cache=cache),
        )

    pool = executor


def _check_errors(func: Callable[..., Any], errors: str) -> None:
    if errors != RAISE:
        refuse_hidden(func, ["errors"])
    if errors not in (RAISE, KEEP):
        raise ClusterError(
            f"errors={errors!r}: errors must be {RAISE!r} or {KEEP!r}",
            hint="bind a parameter of the function with functools.partial",
        )


def client_of(cluster: Any) -> Any:
    """Return the current client if it is connected through this cluster object, or a new one."""
    with suppress(ValueError):  # there is no current client
        current = ScalableClient.current()
        if current.cluster is cluster:
            return current
    return ScalableClient(cluster)
