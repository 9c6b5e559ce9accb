"""`BundleClient`: a Dask client that sends bundles, and lends slots while tasks wait.

A *bundle* is a batch of tasks that is sent as one Dask task. A *slot* is the capacity for one task
on a worker. A task that waits for other tasks lends its slot to them.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import dask
from dask.utils import key_split, parse_timedelta
from distributed import Client, Future, Scheduler
from distributed.diagnostics.plugin import NannyPlugin
from distributed.protocol.pickle import dumps, loads
from distributed.scheduler import KilledWorker
from distributed.utils import in_async_call

from scalable.client.executor_connection import ExecutorConnection, with_reasons
from scalable.client.futures import call_futures_of, waits_for_calls
from scalable.client.own_code import Snapshot, names_of, note_code, own_code, own_files
from scalable.client.task_output import display
from scalable.client.unsendable import unsendable_result, with_package
from scalable.dask_compat.client import (
    AnnotatingClient,
    add_stream_handlers,
    is_wait,
    keep_copy,
    seams,
    send_to_scheduler,
    state_of,
    survive_unpickling,
    wait_for_futures,
    waits_for_ended,
)
from scalable.dask_compat.comm import share_memory
from scalable.errors import ClusterError
from scalable.protocol.code import STRICT, ImageVersions, in_image, missing_module, parts_of
from scalable.protocol.handlers import Handler, SchedulerCalls
from scalable.protocol.importing import here
from scalable.protocol.lending import Lender, in_call, slot_lent, take_lent_slot_back, wait_in_call
from scalable.protocol.messages import restored
from scalable.protocol.operations import (
    BUNDLES,
    CARRIES,
    CODE,
    CODE_ANNOTATION,
    ENDING_TOPIC,
    VERSIONS,
    WAITING_TOPIC,
)
from scalable.protocol.synchronous import runs_here
from scalable.protocol.task_output import TOPIC, ShowOutput
from scalable.scheduler.bundle_relay import BundleRelay

# Carrying client ----------------------------------------------------------------------------------


class CarryingClient(AnnotatingClient):
    """A client that reports its loaded modules to the scheduler, and uploads files.

    It uploads files only if the scheduler reports that some of its workers do not share this
    machine's file system.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Code id that was last sent to the scheduler.
        self._told_code = ""
        self._carries = False
        note_code()
        super().__init__(*args, **kwargs)

    def _hear_of_code(
        self, changed: list[str] | None = None, carry: bool = False, **_: Any
    ) -> None:
        """Handle a message about code: upload files from now on, or warn about changed modules."""
        if carry and here() is None:
            self._carries = True
            assert self.loop is not None
            self.loop.add_callback(self._carry_own)
        if changed:
            logger.warning(
                "the cluster had loaded another version of %s; for tasks of this process, "
                "workers load the version of this process",
                names_of(changed),
            )

    async def _connected(self) -> None:
        """Upload the files of this process's workflow before the first task, if necessary."""
        await super()._connected()
        add_stream_handlers(self, {CODE: self._hear_of_code})
        self._carries = self._carries or bool(self._scheduler_facts.get(CARRIES))
        if self._carries and here() is None:
            await self._carry_own()

    async def _carry_own(self) -> None:
        """Upload the files of this process's workflow as they are now."""
        own_files.read_again()
        table, snapshot = await asyncio.to_thread(own_files.carried_with, own_code.table())
        self._tell(table)
        if snapshot is not None:
            await self._carry(snapshot)

    def _code(self) -> str:
        """Send this process's loaded code to the scheduler, and return the code's id.

        The id is empty if the scheduler was not started by scalable.
        """
        if not self._scheduler_facts.get(CODE):
            return ""
        importer = here()
        if importer is not None:  # a task submits tasks: they need what it has
            return importer.current
        table, snapshot = own_code.table(), None
        if self._carries:
            table, snapshot = own_files.carried_with(table)
        if self._tell(table) and snapshot is not None:
            assert self.loop is not None
            if self.asynchronous or in_async_call(self.loop):
                self.loop.add_callback(self._carry, snapshot)  # the scheduler waits for it
            else:
                self.sync(self._carry, snapshot)
        return table.id

    def _tell(self, table: Any) -> bool:
        """Send the table of loaded modules to the scheduler. Return False if it was sent before."""
        if table.id == self._told_code:
            return False
        self._told_code = table.id
        sources = own_code.sources()
        if table.files is not None:
            carried = own_files.digests()
            sources = {d: source for d, source in sources.items() if d not in carried}
        send_to_scheduler(self, {"op": CODE, "table": table.to_message(), "sources": sources})
        return True

    async def _carry(self, snapshot: Snapshot) -> None:
        """Send the snapshot's archive to the scheduler unless the scheduler already has it."""
        calls, digest = SchedulerCalls(self.scheduler), snapshot.about.digest
        if not await calls.lacks_files(digest):
            logger.debug("archive %s is on the scheduler already", digest)
            return
        parts = parts_of(snapshot.data)
        for number, part in enumerate(parts):
            await calls.take_files(digest, number, len(parts), bytes(part))
        logger.debug("archive %s was sent in %d parts", digest, len(parts))

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
        changed = own_code.read_again()
        if self._carries:
            modules = {module.path for module in own_code.table().modules.values()}
            changed += own_files.read_again(except_for=modules)
        self._code()
        return changed

    def _annotations_of_graph(self) -> dict[str, Any]:
        """Return the annotation with the code id of this process."""
        code = self._code()
        return {CODE_ANNOTATION: code} if code else {}


# Bundle client ------------------------------------------------------------------------------------


def _is_not_all_exit(record: logging.LogRecord) -> bool:
    """Return False for asyncio's log records about ``AllExit`` after an interrupted gather."""
    error = record.exc_info[0] if record.exc_info else None
    return error is None or error.__name__ != "AllExit"


logger = logging.getLogger("scalable.client")
logging.getLogger("asyncio").addFilter(_is_not_all_exit)
# distributed.batched logs each connection that is closed with unsent messages, which is usual when
# a session is closed.
logging.getLogger("distributed.batched").setLevel(logging.WARNING)


async def _wait(futures: Iterable[Future[Any]]) -> None:
    """Wait until tasks have finished, failed or been cancelled."""
    await asyncio.gather(*(state_of(future).wait() for future in futures))


class BundleClient(CarryingClient):
    """A ``distributed.Client`` that reports the progress of bundles to their executors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        seams.check()
        leave_out_our_frames()
        share_memory()
        survive_unpickling()
        self._line = ExecutorConnection(self, self._code)
        self._news = Notifications(self, lambda: self._line.lender is not None, self._end_all)
        #: Result of a query to the scheduler whether it can interrupt running tasks, or None before
        #: it.
        self._can_interrupt: bool | None = None
        super().__init__(*args, **kwargs)
        add_stream_handlers(self, self._line.handlers())
        self._news.subscribe()

    def sync(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a coroutine and wait. A task that waits for other tasks lends them its slot."""
        try:
            return self._sync(func, *args, **kwargs)
        except Exception as error:
            keep_copy(error, func, args)
            raise

    def _sync(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        if func is wait_for_futures and call_futures_of(args[:1]):
            func = waits_for_calls(func)
        if not is_wait(func) or self.asynchronous:
            return super().sync(func, *args, **kwargs)
        if not in_call():
            if waits_for_ended(func) and display.is_empty and not runs_here():
                return super().sync(func, *args, **kwargs)
            with display.waiting():
                if not runs_here():
                    return super().sync(func, *args, **kwargs)
                kwargs.pop("asynchronous", None)
                timeout = parse_timedelta(kwargs.pop("callback_timeout", None))
                waited = partial(func, *args, **kwargs)
                return wait_in_call(self.loop, lambda: asyncio.wait_for(waited(), timeout))
        options = {name: kwargs.pop(name, None) for name in ("asynchronous", "callback_timeout")}
        self._check_open()
        ended = waits_for_ended(func)
        if ended:
            self._line.made_calls()  # if the result is lost, the wait may be long
            take_lent_slot_back()
        with nullcontext() if ended else slot_lent():
            if any(options.values()):
                return super().sync(func, *args, **options, **kwargs)
            return wait_in_call(self.loop, func, *args, **kwargs)

    def _graph_to_futures(self, *args: Any, **kwargs: Any) -> Any:
        futures = super()._graph_to_futures(*args, **kwargs)
        if runs_here() and not self.asynchronous:
            self.sync(_wait, futures.values())  # runs them in this thread
        return futures

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
        """Register a plugin. ClusterError for a NannyPlugin if the workers have no nannies."""
        if isinstance(plugin, NannyPlugin):
            workers = self.scheduler_info()["workers"].values()
            if not any(worker.get("nanny") for worker in workers):
                error = ClusterError(
                    f"the NannyPlugin {type(plugin).__name__} would do nothing: the workers of "
                    "this cluster have no nannies",
                    hint="use a WorkerPlugin, which runs in each worker, or `env:` of the "
                    "component for environment variables",
                )
                if workers:
                    raise error
                if self._scheduler_facts.get(CODE):
                    logger.warning("%s", error)
        return super().register_plugin(plugin, name)

    def _serve_calls_of(self, lender: Lender) -> None:
        """Mark the client as used only by the tasks of one worker, given its lender of slots."""
        self._line.lender = lender

    async def _close_at_once(self) -> None:
        """Close the client in the event loop, without waiting for the scheduler's answer."""
        await self._close(fast=True)

    def _follow_slots(self) -> None:
        """Ask the scheduler to report the slots of each tag, now and after each change."""
        if self._line.knows_slots:
            return
        if not self._ask("get_metadata", keys=[BUNDLES], default=False):
            # The scheduler was not started by scalable.
            self.register_plugin(BundleRelay())
        self._line.set_slots({})
        self._line.set_slots(self._ask(Handler.FOLLOW_SLOTS, client=self.id))

    async def _reconnected(self) -> None:
        """Renew the subscriptions to slots and notifications, which the scheduler has lost."""
        self._news.subscribe()
        if not self._line.knows_slots:
            return
        try:
            assert self.scheduler is not None
            follow = getattr(self.scheduler, Handler.FOLLOW_SLOTS)
            self._line.reconnected(await follow(client=self.id))
        except OSError as error:  # the connection broke again, and will be restored
            logger.debug("could not resume the reports of slots for client %s: %r", self.id, error)

    def _ask(self, operation: str, **arguments: Any) -> Any:
        """Call an operation of the scheduler by its name, and return the answer."""
        self._check_open()
        assert self.scheduler is not None
        return self.sync(getattr(self.scheduler, operation), **arguments)

    def _scheduler_known(self) -> None:
        """Compare the versions in the scheduler's image with those of this process."""
        compare_versions(self._scheduler_facts)

    def _explained(self, error: Any) -> Any:
        """Return the error to show in place of a task's error."""
        restored(error)
        cause = getattr(error, "__cause__", None)
        if isinstance(error, RuntimeError) and isinstance(cause, ModuleNotFoundError):
            image = ImageVersions.from_message(self._scheduler_facts.get(VERSIONS) or ["", {}, ""])
            where = in_image("the scheduler", image.image)
            return with_package(missing_module(cause, "the graph", where))
        return with_package(error)

    def _unreadable(self, error: TypeError, keys: list[Any]) -> TypeError | None:
        """Return the error for a result that cannot be pickled, or None for other errors."""
        call = f"task {key_split(keys[0])!r}" if len(keys) == 1 else "a task"
        return unsendable_result(error, call)

    def _explains_later(self, key: Any, exception: Any) -> bool:
        """Return whether an error reports lost workers without the reasons."""
        is_bundle = key in self._line.followed_keys
        return not is_bundle and isinstance(exception, bytes) and b"KilledWorker" in exception

    async def _explained_later(self, key: Any, exception: Any) -> Any:
        """Return the error of a task with lost workers, including the reasons for the losses."""
        error = loads(exception)
        if not isinstance(error, KilledWorker):
            return exception
        return dumps(await with_reasons(self, error, key))

    def _unfinished_calls(self) -> int:
        """Return the number of tasks that wait or run, including those of executors."""
        bundles = self._line.followed_keys
        futures = list(self.futures.items())
        pending: int = sum(f.status == "pending" for key, f in futures if key not in bundles)
        return pending + self._line.unfinished_calls

    # Dask's events ------------------------------------------------------------------------------

    def _known_tasks(self) -> list[Any]:
        """Return the keys of the bundles that were sent and have not finished."""
        return self._line.followed()

    def _task_in_memory(self, key: Any) -> None:
        """Notify the executor of a bundle that the bundle's Dask task has succeeded."""
        self._line.task_in_memory(key)

    def _task_erred(self, key: Any, error: BaseException) -> None:
        """Notify the executor of a bundle that the bundle's Dask task has failed."""
        self._line.task_erred(key, error)

    def _task_lost(self, key: Any, *, with_all: bool) -> None:
        """Notify the executor that the scheduler no longer has the Dask task of a bundle."""
        self._line.task_lost(key, with_all=with_all)

    async def _before_cancel(self, keys: list[Any]) -> None:
        """Ask the scheduler to interrupt running tasks, except those another client waits for."""
        assert self.scheduler is not None
        if self._can_interrupt is None:
            self._can_interrupt = await self.scheduler.get_metadata(keys=[BUNDLES], default=False)
        if self._can_interrupt:
            for key in keys:
                self._line.interrupt(key)

    def _end_all(self, error: ClusterError) -> None:
        """Fail all unfinished tasks and all later ones, because the cluster stops."""
        self._line.close(error)
        self._fail_all(error)

    def _before_close(self) -> None:
        """Fail all unfinished tasks of this client's executors."""
        self._line.close()


# Frames -------------------------------------------------------------------------------------------

_PACKAGE = Path(__file__).parents[1]
#: Pattern of what each setting leaves out: names of modules in the source that Dask records for a
#: computation, and files in tracebacks.
_PATTERNS = {
    "distributed.diagnostics.computations.ignore-modules": rf"{_PACKAGE.name}(\.|$)",
    "admin.traceback.shorten": rf"{re.escape(str(_PACKAGE))}[\\/]",
}


def leave_out_our_frames() -> None:
    """Hide this package's frames in tracebacks and in the source code that Dask records."""
    for setting, pattern in _PATTERNS.items():
        known = dask.config.get(setting, None)
        if isinstance(known, list) and pattern not in known:
            dask.config.set({setting: [*known, pattern]})


# Image versions -----------------------------------------------------------------------------------

_told: set[str] = set()


def compare_versions(facts: Mapping[str, Any]) -> None:
    """Warn about version differences between this process and the scheduler's image.
    Raises ClusterError for another release of ``distributed``, unless the target allows it.
    """
    message = facts.get(VERSIONS)
    if not message:
        return
    there = ImageVersions.from_message(message)
    differing = there.differences()
    if STRICT in differing and not there.allows_mismatch:
        image, here = differing[STRICT]
        raise ClusterError(
            f"image {there.image} has {STRICT} {image}, and this process has {STRICT} {here}: "
            "other releases encode messages differently",
            hint=f"use an image with {STRICT} {here} (docs/images.md shows how to make one), "
            f"install {STRICT} {image} here, or set allow_version_mismatch: true in the target",
        )
    if not differing:
        return
    words = ", ".join(f"{name} {image} (here {here})" for name, (image, here) in differing.items())
    told = f"image {there.image} has other versions: {words}; tasks and results may not be readable"
    if told not in _told:
        _told.add(told)
        logger.warning("%s", told)


# Notifications ------------------------------------------------------------------------------------


class Notifications:
    """Receiver of the scheduler's notifications in a client outside the scheduler's process.
    ``in_call`` returns whether only tasks use the client. When the cluster starts to stop, ``end``
    is called once with the error for all tasks.
    """

    def __init__(
        self, client: Client, in_call: Callable[[], bool], end: Callable[[ClusterError], None]
    ) -> None:
        self._client, self._in_call, self._end = client, in_call, end
        self._ends = False

    def subscribe(self) -> None:
        """Subscribe to the scheduler's notifications. A new connection has to subscribe again."""
        if not isinstance(getattr(self._client.cluster, "scheduler", None), Scheduler):
            self._client.subscribe_topic(WAITING_TOPIC, self._waiting)
            self._client.subscribe_topic(ENDING_TOPIC, self._ending)

    def _waiting(self, event: tuple[float, Any]) -> None:
        clients, words = event[1]["clients"], event[1]["words"]
        if not self._in_call() and (not clients or self._client.id in clients):
            logger.warning("%s", words)

    def _ending(self, event: tuple[float, Any]) -> None:
        if self._in_call() or self._ends:
            return
        self._ends = True
        name, reason = event[1]["name"], event[1]["reason"]
        error = ClusterError(
            f"{f'cluster {name!r}' if name else 'the cluster'} has ended: {reason}",
            hint="start a cluster, and submit the tasks again",
        )
        logger.warning("%s", error.message)
        self._end(error)
