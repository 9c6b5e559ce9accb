"""The client that routes calls to pools by tag."""

from __future__ import annotations

import logging
import sys
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dask import annotate  # type: ignore[attr-defined]
from dask.base import tokenize
from dask.core import flatten
from dask.utils import funcname
from distributed import Client, Future
from distributed.client import futures_of

from scalable.client.calls.dispatcher import Dispatcher, Options
from scalable.client.calls.executor import PoolExecutor, check_timeout
from scalable.client.graphs import is_raw, prepare
from scalable.client.routing import ONE_SLOT, Routing
from scalable.errors import ClusterError
from scalable.protocol.lending import in_call, made_calls, slot_lent, sync_in_call
from scalable.protocol.measured import PROFILE
from scalable.protocol.operations import (
    BACKLOG,
    BEGUN,
    BUNDLES,
    INTERRUPT,
    OUTCOMES,
    PRINTED,
    PROFILES,
    RETURNED,
    SLOTS,
    TIMED_OUT,
    WAITING_TOPIC,
)
from scalable.scheduler.bundle_relay import BundleRelay

logger = logging.getLogger("scalable.client")


#: Dask's coroutines that end when calls do.
_WAITS = frozenset({"_gather", "_result", "_exception", "_traceback", "_wait"})


def _is_worth_saying(record: logging.LogRecord) -> bool:
    """Whether asyncio's record is not one of Dask's own for each call of an interrupted gather."""
    error = record.exc_info[0] if record.exc_info else None
    return error is None or error.__name__ != "AllExit"


logging.getLogger("asyncio").addFilter(_is_worth_saying)
# It tells of each connection that ends with something unsent: at the end of a session, mostly.
logging.getLogger("distributed.batched").setLevel(logging.WARNING)


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
        self._routing = Routing(self, tasks or {}, labels or {}, tags)
        self._pool_slots: dict[str, int] | None = None
        self._dispatchers: weakref.WeakSet[Dispatcher] = weakref.WeakSet()
        self._bundles: dict[str, Dispatcher] = {}
        #: Whether the scheduler can end calls that run; None before it was asked.
        self._interrupts: bool | None = None
        super().__init__(address, *args, **kwargs)
        self._stream_handlers |= {
            OUTCOMES: self._hear_of_bundle("outcomes"),
            RETURNED: self._hear_of_bundle("returned"),
            TIMED_OUT: self._hear_of_bundle("timed_out"),
            BEGUN: self._hear_of_bundle("begun"),
            PRINTED: _print,
            SLOTS: self._hear_of_slots,
        }

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
        tag, route, notes = self._routing.route(func, tag, n, task, kwargs)
        pure = tag is None if pure is None else pure
        if key is None:
            name = task or funcname(func)
            key = f"{name}-{tokenize(func, kwargs, *args) if pure else uuid.uuid4()}"
        self._run_failed_again([key])
        made_calls()
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
        tag, route, notes = self._routing.route(func, tag, n, task, kwargs)
        pure = tag is None if pure is None else pure
        key = task if key is None else key
        made_calls()
        with notes(key or funcname(func)):
            futures = super().map(func, *iterables, key=key, pure=pure, **route, **kwargs)
        failed = [f for f in futures if f.status == "error"]
        if failed:
            self._retry_now(failed)
        return list(futures)

    def starmap(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        *,
        tag: str | None = None,
        **kwargs: Any,
    ) -> list[Future[Any]]:
        """Run a function on the workers of a pool, once with each element's elements.

        Parameters
        ----------
        func, iterable
            What to call, and its positional arguments for each call.
        tag, **kwargs
            As in :meth:`submit`.

        Returns
        -------
        list of Future
            In the order of the elements.
        """
        return [self.submit(func, *args, tag=tag, **kwargs) for args in iterable]

    def get(  # type: ignore[override]  # Dask's further options are taken by keyword
        self,
        dsk: Any,
        keys: Any,
        *,
        sync: bool = True,
        tag: str | None = None,
        tags: Mapping[Any, str | None] | None = None,
        **options: Any,
    ) -> Any:
        """Run what some nodes of a graph need, and return their results.

        Parameters
        ----------
        dsk
            Name -> ``(func, arg, ...)``, value, or name of another node; or a graph of Dask's.
        keys
            A name, or a list of names and of such lists.
        tag
            The pool of all nodes. Without it, any worker may run them.
        tags
            Name -> tag of the nodes that differ.
        sync
            Whether to wait for the results, rather than to return futures.
        **options
            As in ``distributed.Client.get`` (``retries``, ``priority``, ``actors``, ...).

        Returns
        -------
        object
            The results, or their futures, in the shape and order of ``keys``.

        Raises
        ------
        ClusterError
            Before anything starts: for cycles, names that are no nodes, names that are asked for
            twice, and tags that no pool has.
        """
        made_calls()
        resources = options.pop("resources", None)
        if not is_raw(dsk):
            if tags:
                raise ClusterError("tags= names nodes of a plain dict", hint="give tag= instead")
            with annotate(**self._routing.annotations(tag, resources)):
                return super().get(dsk, keys, sync=sync, **options)
        graph = prepare(dsk, keys, tag, tags)
        routes = {t: self._routing.annotations(t, resources) for t in {tag, *(tags or {}).values()}}
        options["actors"] = graph.actors(options.get("actors"))
        futures = super().get(graph.annotated(routes), graph.keys, sync=False, **options)
        if not sync:
            return futures
        gathering = {k: options[k] for k in ("direct", "asynchronous") if k in options}
        try:
            return self.gather(futures, **gathering)
        finally:
            if not (self.asynchronous or options.get("asynchronous")):
                for future in flatten([futures]):
                    future.release()

    def send(self, obj: Any) -> Future[Any]:
        """Upload an object once, for use in many calls.

        Returns
        -------
        Future
            Stands for the object wherever it appears in the arguments of a call, also deep within
            them.
        """
        (future,) = self.scatter([obj], hash=False, direct=self._is_near())
        return future  # type: ignore[no-any-return]

    def listen(self) -> None:
        """Log here what the scheduler of a cluster elsewhere has to say of calls that wait."""
        self.subscribe_topic(WAITING_TOPIC, _log_words)

    def profile(self, key: Any = None, *args: Any, **kwargs: Any) -> Any:
        """What a call took: given its future. Otherwise as ``distributed.Client.profile``.

        Parameters
        ----------
        key
            A future whose call has ended, also where it failed.
        *args, **kwargs
            Dask's own.

        Returns
        -------
        dict
            As :meth:`CallFuture.profile` gives it.

        Raises
        ------
        ValueError
            When the call has not ended.
        ClusterError
            When the scheduler is not one of ours.
        """
        if not isinstance(key, Future):
            return super().profile(key, *args, **kwargs)
        if not self.ask("get_metadata", keys=[PROFILES], default=False):
            raise ClusterError("the scheduler of this cluster keeps no profiles of calls")
        row = self.ask("scalable_profile", key=key.key)
        if row is None and key.cancelled():
            return dict.fromkeys(PROFILE) | {"state": "cancelled"}
        if row is None:
            raise ValueError(f"the call {key.key} has not ended")
        return row

    def worker_count(self, tag: str | None = None) -> int:
        """Connected workers of a tag, 0 for an unknown one; all of them without a tag."""
        workers = self.ask("identity", n_workers=-1)["workers"].values()
        return sum(tag is None or tag in worker["resources"] for worker in workers)

    def sync(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a coroutine and wait; a call that waits for others lends them its slot meanwhile."""
        waits = getattr(func, "__name__", "") in _WAITS
        if not waits or self.asynchronous or not in_call():
            return super().sync(func, *args, **kwargs)
        options = {name: kwargs.pop(name, None) for name in ("asynchronous", "callback_timeout")}
        with slot_lent():
            if any(options.values()):
                return super().sync(func, *args, **options, **kwargs)
            return sync_in_call(self.loop, func, *args, **kwargs)

    # Many calls ---------------------------------------------------------------------------------

    def pool(
        self,
        tag: str | None = None,
        *,
        n: int = ONE_SLOT,
        task: str | None = None,
        timeout: float | None = None,
        stream_output: bool = False,
        record_calls: bool = False,
    ) -> PoolExecutor:
        """An executor for many calls, with the verbs of ``multiprocessing.Pool`` beside it.

        Parameters
        ----------
        tag, n, task
            As in :meth:`submit`.
        timeout
            Longest running time of a call in seconds; beyond it the call is ended, and its future
            has a TimeoutError. None without limit.
        stream_output
            Whether what the calls print is printed here too, line by line.
        record_calls
            Whether the run's records get a row for each call, and not only for each bundle.

        Raises
        ------
        ClusterError
            When no pool has the tag, or no worker of it can hold ``n`` slots.
        """
        check_timeout(timeout)
        if self.asynchronous:
            raise ClusterError("a pool of calls needs a client that is not asynchronous")
        tag, route, _ = self._routing.route(None, tag, n, task, {})
        if self._pool_slots is None:
            if not self.ask("get_metadata", keys=[BUNDLES], default=False):
                # A scheduler that is not ours can learn it.
                self.register_plugin(BundleRelay())
            self._pool_slots = {}
            self._pool_slots = self.ask("scalable_follow_slots", client=self.id)
        options = Options(timeout, stream_output, record_calls)
        dispatcher = Dispatcher(
            self, task or tag or "call", tag or "", int(n), route.get("resources"), task, options
        )
        self._dispatchers.add(dispatcher)
        return PoolExecutor(self, dispatcher)

    def slots_of(self, tag: str) -> int:
        """Slots that the connected workers of a tag have; of all workers without a tag."""
        return (self._pool_slots or {}).get(tag, 0)

    def in_loop(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function in the event loop, soon; from any thread."""
        assert self.loop is not None
        self.loop.add_callback(function, *args)

    def in_loop_after(self, seconds: float, function: Callable[..., Any]) -> None:
        """Call a function in the event loop, after some seconds; from the loop alone."""
        assert self.loop is not None
        self.loop.call_later(seconds, function)

    def tell_backlog(self, pool: str, tag: str, task: str, calls: int) -> None:
        """Tell the scheduler how many calls wait in this client."""
        if self.status == "running":
            message = {"op": BACKLOG, "pool": pool, "tag": tag, "task": task, "calls": calls}
            self._send_to_scheduler(message)

    async def fetched(self, future: Future[Any]) -> Any:
        """The result of a future of this client, in its event loop."""
        (result,) = await self._gather([future], direct=self._is_near())
        return result

    def _is_near(self) -> bool | None:
        """Whether workers can be reached without the scheduler; None where Dask is to decide.

        That is sure where all of the cluster listens on this machine alone.
        """
        address = getattr(self.scheduler, "address", "")
        return True if "://127." in address else None

    def interrupt(self, key: Any, number: int | None = None) -> None:
        """End a call that runs: the task itself, or one of its calls where it is a bundle."""
        self._send_to_scheduler({"op": INTERRUPT, "key": key, "number": number})

    def follow_bundle(self, key: str, dispatcher: Dispatcher) -> None:
        """Have a dispatcher told what becomes of a bundle."""
        self._bundles[key] = dispatcher

    def forget_bundle(self, key: str) -> None:
        """A bundle has ended."""
        self._bundles.pop(key, None)

    def _hear_of_bundle(self, what: str) -> Callable[..., None]:
        def hear(key: str, **message: Any) -> None:
            dispatcher = self._bundles.get(key)
            if dispatcher is not None:
                try:
                    getattr(dispatcher, what)(key, **message)
                except Exception as error:
                    dispatcher.erred(key, error)  # nobody waits for what cannot be understood
                    raise

        return hear

    def _hear_of_slots(self, slots: dict[str, int]) -> None:
        self._pool_slots = slots
        for dispatcher in list(self._dispatchers):
            dispatcher.wake()

    async def _cancel(self, futures: Any, *args: Any, **kwargs: Any) -> None:
        """Cancel calls; one that runs and that nobody else waits for is ended."""
        assert self.scheduler is not None
        if self._interrupts is None:
            self._interrupts = await self.scheduler.get_metadata(keys=[BUNDLES], default=False)
        if self._interrupts:
            for future in futures_of(futures):
                self.interrupt(future.key)
        await super()._cancel(futures, *args, **kwargs)

    async def _close(self, *args: Any, **kwargs: Any) -> None:
        """Close; calls of pools that have not ended never will."""
        for dispatcher in list(self._dispatchers):
            dispatcher.close()
        await super()._close(*args, **kwargs)

    def _handle_cancelled_keys(self, keys: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        super()._handle_cancelled_keys(keys, *args, **kwargs)
        for key in keys:
            self._lose_bundle(key)

    def _handle_restart(self) -> None:
        super()._handle_restart()
        for key in list(self._bundles):
            self._lose_bundle(key)

    async def _reconnect(self) -> None:
        sent = list(self._bundles)  # Dask forgets its futures then
        await super()._reconnect()
        for key in sent:
            self._lose_bundle(key)

    def _lose_bundle(self, key: Any) -> None:
        if key in self._bundles:
            self._bundles[key].lost(key)
        if key in self._bundles:
            error = ClusterError(
                "the call was lost: the cluster was restarted, or lost an object that was sent",
                hint="send large objects again, and make the call again",
            )
            self._bundles[key].erred(key, error)

    def _handle_key_in_memory(
        self,
        key: Any = None,
        type: Any = None,  # noqa: A002 - Dask's name
        workers: Any = None,
    ) -> None:
        super()._handle_key_in_memory(key, type, workers)
        if key in self._bundles:
            self._bundles[key].in_memory(key)

    def _handle_task_erred(
        self, key: Any = None, exception: Any = None, traceback: Any = None
    ) -> None:
        super()._handle_task_erred(key, exception, traceback)
        if key in self._bundles:
            self._bundles[key].erred(key, self.futures[key].exception)

    def ask(self, operation: str, **arguments: Any) -> Any:
        """What the scheduler answers."""
        assert self.scheduler is not None
        return self.sync(getattr(self.scheduler, operation), **arguments)

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


def _print(key: str, text: str, **_: Any) -> None:
    """Show what a call has printed."""
    del key
    sys.stdout.write(text)
    sys.stdout.flush()


def _log_words(event: tuple[float, Any]) -> None:
    logger.warning("%s", event[1])
