"""`ScalableClient`: a Dask client that sends each task to the pool with the task's tag.

A *pool* is a group of equal workers. Its *tag* is the name of the Dask resource that its workers
offer. A *slot* is the capacity for one task on a worker.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar, overload

from dask.base import tokenize
from dask.core import flatten
from dask.utils import funcname
from distributed import Future
from distributed.utils_comm import pack_data

from scalable.cache.key import KeyOptions
from scalable.client.backlog import CallOptions, time_limit
from scalable.client.caching_client import CachingClient
from scalable.client.debugging import debug_failed_task, run_failed_task
from scalable.client.dispatcher import Dispatcher
from scalable.client.executor import PoolExecutor
from scalable.client.futures import CallFuture, call_futures_of
from scalable.client.graphs import is_raw, prepare
from scalable.client.kept_failures import KEEP, RAISE
from scalable.client.overviews import overview_of
from scalable.client.routing import (
    ONE_SLOT,
    Routing,
    ask_known_slots,
    has_slots,
    slots_given,
)
from scalable.client.sweep import Sweep, rows_of
from scalable.client.unsendable import (
    explained,
    name_of,
    parts_of_call,
    parts_of_graph,
    parts_of_map,
)
from scalable.errors import ClusterError
from scalable.model.cache_settings import CacheSettings
from scalable.protocol.handlers import Handler
from scalable.protocol.measured import PROFILE
from scalable.protocol.operations import PROFILES, TASKS
from scalable.protocol.synchronous import in_place

logger = logging.getLogger("scalable.client")
_Result = TypeVar("_Result")


class ScalableClient(CachingClient):
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
        routing = Routing(
            lambda: not self.asynchronous,
            lambda: ask_known_slots(self._ask, self.cluster),
            lambda: self._scheduler_facts.get(TASKS) if tasks is None else tasks,
            labels or {},
            tags,
        )
        super().__init__(routing, address, *args, remembering=remembering, **kwargs)
        # Dask sets a method of the instance.
        self.__dict__.pop("recreate_error_locally", None)

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
            parameter ``slots``, the function gets the value. Give ``n`` for the number of slots
            then.
        n
            Another name of ``slots``.
        task
            Name of the task in the manifest, for records and plans. Without ``tag``, the task goes
            to the pool of the task's component.
        pure
            Whether tasks of the same function with the same arguments run only once. The default is
            True only for tasks without a tag on a cluster without pools, so that a function that
            draws random numbers runs each time. Actors are never shared.
        cache
            Whether the result is cached, so that an equal task of any later run gets the result
            without running (see ``docs/resuming.md``). None leaves it to ``cache:`` of the task in
            the manifest, and to :func:`scalable.cached`.
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
        n = slots_given(slots, n, func, kwargs)
        tag, route, notes = self._routing.route(func, tag, n, task, kwargs)
        self._check_errors(func, errors)
        pure = self._is_pure(pure, tag, kwargs)
        call = self._cached_call(func, args, kwargs, (tag, task, cache))
        if call is None:
            func = self._resumable_function(func, kwargs, (tag, task, cache))
        elif call.found is not None:
            return self._known(key or call.key, call.found, tag, task)
        else:
            key, func = key or call.key, call.function
        if key is None:
            name = task or funcname(func)
            key = f"{name}-{tokenize(func, kwargs, *args) if pure else uuid.uuid4()}"
        self._run_failed_again([key])
        self._line.made_calls()
        with notes(key), explained(name_of(func), lambda: parts_of_call(func, args, kwargs)):
            future = super().submit(in_place(func), *args, key=key, pure=pure, **route, **kwargs)
        return self._kept([future], errors)[0]

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
        tag, route, notes = self._routing.route(func, tag, n, task, kwargs)
        self._check_errors(func, errors)
        pure = self._is_pure(pure, tag, kwargs)
        self._line.made_calls()
        name = name_of(func)
        parts = partial(parts_of_map, func, iterables, kwargs)

        def send(function: Callable[..., Any], *columns: Any, key: Any) -> Any:
            with notes(key if isinstance(key, str) else task or name), explained(name, parts):
                return super(ScalableClient, self).map(
                    in_place(function), *columns, key=key, pure=pure, **route, **kwargs
                )

        asked = tag, task, cache
        known = self.futures.copy()  # a new task may fail before the next lines
        if key is None:
            futures = self._map_cached(func, iterables, kwargs, asked, send)
        else:
            futures = send(self._resumable_function(func, kwargs, asked), *iterables, key=key)
        failed = [f for f in futures if f.key in known and f.status == "error"]
        if failed:
            self._retry_now(failed)
        return self._kept(futures, errors)

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
            with self._routed(tag, n, task, resources):
                return super().get(dsk, keys, sync=sync, **options)
        tag, n, task = self._routing.asked(tag, n, task)
        whole = self._routing.annotations(tag, resources, n, task)
        dsk = self._cached_nodes(dsk, tags or {}, (tag, task, cache))
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
        if not self._ask("get_metadata", keys=[PROFILES], default=False):
            raise ClusterError("the scheduler of this cluster keeps no profiles of tasks")
        row = self._ask(Handler.PROFILE, key=key.key)
        if row is None and key.cancelled():
            return dict.fromkeys(PROFILE) | {"state": "cancelled"}
        if row is None:
            raise ValueError(f"the task {key.key} has not ended")
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
        if not self._ask("get_metadata", keys=[PROFILES], default=False):
            return str(super().dashboard_link)
        return str(self._ask(Handler.LIVE_PAGE))

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

        It is for libraries that submit tasks themselves, such as joblib with its Dask backend. It
        holds for all threads, because such libraries submit from threads of their own.

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

    # Many tasks ---------------------------------------------------------------------------------

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
        tag, route, _ = self._routing.route(None, tag, n, task, {})
        self._follow_slots()
        options = CallOptions(
            name=task or tag or "call",
            tag=tag or "",
            slots_per_call=int(n),
            resources=route.get("resources"),
            task=task,
            timeout_s=timeout_s,
            stream_output=stream_output,
            record_calls=record_calls,
        )
        self._warn_of_retries(task)
        logger.debug("executor made: %s", options)
        return PoolExecutor(
            self._line,
            Dispatcher(self._line, options),
            partial(overview_of, self),
            partial(self._cached_function, tag=tag, task=task, cache=cache),
        )

    pool = executor


def client_of(cluster: Any) -> Any:
    """Return the current client if it is connected through this cluster object, or a new one."""
    with suppress(ValueError):  # there is no current client
        current = ScalableClient.current()
        if current.cluster is cluster:
            return current
    return ScalableClient(cluster)
