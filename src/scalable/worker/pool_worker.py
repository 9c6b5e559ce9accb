"""A Dask worker that measures the resources used by each task."""

from __future__ import annotations

import asyncio
import heapq
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
from distributed import Client, Worker
from distributed.client import default_client
from distributed.comm.core import CommClosedError
from distributed.metrics import context_meter
from distributed.utils import in_async_call
from distributed.utils_comm import retry
from distributed.worker_state_machine import (
    ExecuteFailureEvent,
    ExecuteSuccessEvent,
    GatherDepSuccessEvent,
)

from scalable import settings
from scalable.cache.calls import outcome_listener
from scalable.dask_compat import check_version
from scalable.dask_compat.client import close_at_once
from scalable.dask_compat.comm import release_closed, share_memory
from scalable.dask_compat.tasks import CarriedNode
from scalable.dask_compat.worker import (
    SharingWorker,
    drop_idle_connections,
    fail_waiting_call,
    failure_for_clients,
    forget_workers,
    unreadable,
    waiting_calls,
)
from scalable.errors import ScalableError
from scalable.model.cache_outcomes import CacheOutcome
from scalable.protocol.code import ArchiveError, CarriedFiles, CodeTable, locate
from scalable.protocol.failures import recent_output, shown_arguments
from scalable.protocol.handlers import Handler, WorkerHandler, offer, request
from scalable.protocol.importing import Importer, here
from scalable.protocol.lending import CallInterrupted, wait_in_call
from scalable.protocol.measured import FAILURE, USAGE, addition, cache_addition
from scalable.protocol.operations import LEFT, MANAGER_KEY, WIRE, WIRE_VERSION
from scalable.protocol.servers import GuardedHttp, PrivateNode, read_frames_without_collection
from scalable.worker.bundles import offer_interrupts, running_bundle
from scalable.worker.checkpoints import WorkerCheckpoints
from scalable.worker.slots import SlotLender
from scalable.worker.task_output import KeptOutput, OutputSender, task_streams

if TYPE_CHECKING:
    from scalable.client.client import ScalableClient


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for what belongs to the end of a worker, and is reported elsewhere."""
    text, error = record.getMessage(), record.exc_info and record.exc_info[0]
    is_heartbeat = error is CommClosedError and "during heartbeat" in text
    is_refused = text.startswith("Scheduler was unaware of this worker")
    return not (is_heartbeat or is_refused or text.endswith("ended with CancelledError"))


for name in ("distributed.worker", "distributed.worker.state_machine"):
    logging.getLogger(name).addFilter(_is_news)


class PoolWorker(GuardedHttp, PrivateNode, SharingWorker):
    """Worker of a pool, which measures the CPU seconds of each task's thread."""

    def __init__(
        self, *args: Any, manager: str = "", log_dir: str | None = None, **kwargs: Any
    ) -> None:
        check_version()
        read_frames_without_collection()
        share_memory()
        release_closed()
        super().__init__(*args, **kwargs)
        self.code_of_calls = CodeOfCalls(self)
        self.slot_lender = SlotLender(self, self._used_memory)
        #: Sends the output of tasks. None until a client requests it.
        self.output: OutputSender | None = None
        log = re.sub(r"[^\w.-]", "_", f"{self.name}") + ".log"
        self.kept_output = KeptOutput(None if log_dir is None else Path(log_dir) / log)
        self.checkpoints = WorkerCheckpoints(self)
        self.call_client = CallClient(self, self.slot_lender)
        self.extensions["call-client"] = self.call_client  # Dask closes it before the threads stop
        offer_interrupts(self)
        self.stream_handlers[LEFT] = partial(forget_workers, self)
        self.startup_information[WIRE] = lambda _: WIRE_VERSION
        offer(self, {WorkerHandler.SHOWN_CALL: self._shown_call})
        if manager:
            self.startup_information[MANAGER_KEY] = lambda _: manager
        task_streams.attach()
        self._is_attached = True

    async def close(self, *args: Any, **kwargs: Any) -> Any:
        """Close the worker, and stop to keep the output of its tasks."""
        if self._is_attached:
            self._is_attached = False
            task_streams.detach()
        return await super().close(*args, **kwargs)

    def get_logs(self, start: float = 0, n: int | None = None, timestamps: bool = False) -> Any:
        """Return Dask's messages of this worker and the output of its tasks, the newest first."""
        printed = [(at, "OUTPUT", line) for at, _, line in self.kept_output.lines if at >= start]
        logged = super().get_logs(start=start, timestamps=True)
        rows = heapq.merge(logged, reversed(printed), key=lambda row: row[0], reverse=True)
        return [row if timestamps else row[1:] for row in islice(rows, n)]

    async def execute(self, key: Any, *, stimulus_id: str) -> Any:
        """Run a task, and add the resources it used to its Dask timings."""
        usage, remembered = self._begin(), list[CacheOutcome]()
        outcome_listener.set(remembered.append)  # each task has a context of its own
        task = self.state.tasks.get(key)
        run_id = -1 if task is None else task.run_id
        await self.code_of_calls.know(task)
        try:
            with context_meter.add_callback(usage.observe):
                event = await super().execute(key, stimulus_id=stimulus_id)
                if isinstance(event, ExecuteFailureEvent):
                    event = failure_for_clients(event)
        except (SystemExit, KeyboardInterrupt, CallInterrupted) as error:
            # Unhandled, this error would stop the event loop, and with it the worker or the
            # session.
            failure = RuntimeError(f"the task raised {error!r}")
            event = ExecuteFailureEvent.from_exception(
                failure, key=key, run_id=run_id, stimulus_id=f"call-exited-{time.time()}"
            )
        if self.checkpoints.begun and self.checkpoints.has(key):
            succeeded = isinstance(event, ExecuteSuccessEvent)
            await asyncio.to_thread(self.checkpoints.end, key, succeeded=succeeded)
        if key in self.slot_lender.calls:
            self.slot_lender.ended(key)
        if self.output is not None and self.output.is_due:
            self.output.flush()
        if task is not None:
            task.startstops.append(addition(USAGE, usage.end()))
            if remembered:
                task.startstops.append(cache_addition(remembered))
            if isinstance(event, ExecuteFailureEvent):
                task.startstops.append(self._failure_entry(task))
        return event

    def send_printed(self) -> None:
        """Send printed output of tasks ahead of the next message. Runs in the event loop."""
        if self.output is not None:
            self.output.flush()

    def _failure_entry(self, task: Any) -> Any:
        """Return the facts about a failed task as an entry of its Dask timings."""
        known = getattr(task.run_spec, "failure", None) or {}
        return addition(FAILURE, {**known, "worker": str(self.name)})

    async def gather_dep(
        self, worker: str, to_gather: Collection[Any], total_nbytes: int, *, stimulus_id: str
    ) -> Any:
        """Load the modules of waiting tasks, then fetch their arguments from another worker."""
        gather = super().gather_dep

        def fetch(keys: Collection[Any]) -> Any:
            return gather(worker, keys, total_nbytes, stimulus_id=stimulus_id)

        return await fetch_arguments(self, worker, to_gather, fetch)

    def _shown_call(self, key: Any = None) -> dict[str, Any]:
        """Return this worker's facts about a task, without running code of the values' classes."""
        printed = None if key is None else self.kept_output.of(str(key))
        answer: dict[str, Any] = {"output": printed or recent_output()}
        if key is None:
            return answer
        given = None
        if (bundle := running_bundle(str(key))) is not None:
            answer["position"], answer["since_s"], given = bundle.running_call()
        elif (task := self.state.tasks.get(key)) is not None:
            given = getattr(task.run_spec, "given", lambda: None)()
        if given is not None and settings.records_arguments():
            answer["arguments"] = shown_arguments(*given)
        return answer

    def _begin(self) -> ThreadUsage:
        return ThreadUsage()

    def peak_memory(self) -> int | None:
        """Return the peak memory in bytes since the running task started, or None if unknown."""
        return None

    def _used_memory(self) -> float:
        """Return the share of the memory limit that the process uses, or 0 without a limit."""
        limit = self.memory_manager.memory_limit
        return self.monitor.get_process_memory() / limit if limit else 0.0

    def _get_client(self, timeout: float | None = None) -> Client:
        """Return the client for nested tasks. It routes by tag."""
        return self.call_client.get(timeout)


class ThreadUsage:
    """CPU seconds of one task's thread. Memory is not measured, since tasks share the process."""

    _cpu_s: float | None = None

    def observe(self, label: Any, value: float, unit: str) -> None:
        """Add a measurement of Dask's context meter."""
        if label == "thread-cpu" and unit == "seconds":
            self._cpu_s = (self._cpu_s or 0.0) + value

    def end(self) -> dict[str, float | int | None]:
        return {"cpu_s": self._cpu_s, "peak_memory": None}


# Arguments ----------------------------------------------------------------------------------------

logger = logging.getLogger("scalable.worker")

#: Fetches the values of some keys. The result is an event of Dask's worker.
Fetch = Callable[[Collection[Any]], Awaitable[Any]]


async def fetch_arguments(
    worker: PoolWorker, source: str, keys: Collection[Any], fetch: Fetch
) -> Any:
    """Fetch arguments of tasks from another worker. Tasks with unreadable arguments fail."""
    await _use_code_of_calls(worker, keys)
    event = await fetch(keys)
    if unreadable(event) is None:
        return event
    drop_idle_connections(worker, source)
    if len(keys) == 1:
        _fail_calls(worker, next(iter(keys)), event)
        return event
    data: dict[Any, Any] = {}
    read: GatherDepSuccessEvent | None = None
    for key in keys:  # one that cannot be unpickled does not affect the others
        one = await fetch([key])
        if isinstance(one, GatherDepSuccessEvent):
            data.update(one.data)
            read = one
        elif unreadable(one) is not None:
            drop_idle_connections(worker, source)
            _fail_calls(worker, key, one)
        else:  # the other worker is busy, or gone: Dask fetches all keys again
            return one
    return event if read is None else replace(read, data=data)  # the missing ones are not here


async def _use_code_of_calls(worker: PoolWorker, keys: Collection[Any]) -> None:
    """Load the code of the tasks that wait for keys, before the values are unpickled."""
    importer = here()
    if importer is None:
        return
    for call in waiting_calls(worker, keys):
        await worker.code_of_calls.know(call)
        if isinstance(call.run_spec, CarriedNode):
            importer.use(call.run_spec.code)


def _fail_calls(worker: Worker, key: Any, event: Any) -> None:
    """Fail the tasks that wait for an argument that cannot be unpickled."""
    error = unreadable(event)
    importer = here()
    name = f"worker {worker.name}" if importer is None else importer.name
    for call in waiting_calls(worker, [key]):
        shown = getattr(call.run_spec, "shown", str(call.key))
        if isinstance(error, ModuleNotFoundError):
            told: Exception = ModuleNotFoundError(str(error), name=error.name)
            locate(told, name, f"an argument of task {shown!r}")
        else:
            told = RuntimeError(
                f"Argument {key!r} of task {shown!r} cannot be unpickled on {name}: {error!r}. "
                "Its class must be importable there, and must be able to load the pickled state."
            )
        logger.debug("task %s fails: argument %s: %r", call.key, key, error)
        fail_waiting_call(worker, call, told)


# Client of tasks ----------------------------------------------------------------------------------


class CallClient:
    """Client through which the tasks of one worker submit other tasks.
    It is the process's default client if that is connected to the same scheduler.
    """

    def __init__(self, worker: Worker, lender: SlotLender) -> None:
        self._worker, self._lender = worker, lender
        self._own: ScalableClient | None = None
        self._connecting: asyncio.Future[Any] | None = None

    def get(self, timeout: float | None = None) -> ScalableClient:
        """Return a client of the worker's scheduler that routes by tag (``timeout`` in seconds)."""
        given = self._given()
        if given is not None:
            return given
        if in_async_call(self._worker.loop):
            return self._own_client(timeout)
        # The client is made in the event loop: an interrupt of the task that needs it first would
        # leave it half made, for all later tasks too.
        client: ScalableClient = wait_in_call(self._worker.loop, self._connected, timeout)
        return client

    async def close(self) -> None:
        """Close the worker's own client."""
        if self._own is not None and self._own.status != "closed":
            await close_at_once(self._own)

    def _given(self) -> ScalableClient | None:
        """Return the process's default client if it belongs to the worker's cluster."""
        from scalable.client.client import ScalableClient

        client = _default_client()
        if not isinstance(client, ScalableClient) or client.status != "running":
            return None
        scheduler = client.scheduler
        if scheduler is None or scheduler.address != self._worker.scheduler.address:
            return None
        return client

    async def _connected(self, seconds: float | None) -> ScalableClient:
        client = self._own_client(seconds)
        if self._connecting is not None:
            await asyncio.shield(self._connecting)  # others wait for it too
        return client

    def _own_client(self, timeout: float | None) -> ScalableClient:
        """Return the worker's own client, which may not be connected yet."""
        from scalable.client.client import ScalableClient

        if self._own is not None and self._own.status not in ("closing", "closed"):
            return self._own
        worker = self._worker
        client = ScalableClient(
            worker.scheduler,
            loop=worker.loop,
            security=worker.security,
            set_as_default=_default_client() is None,
            asynchronous=True,
            direct_to_workers=True,
            name="worker",
            timeout=timeout or dask.config.get("distributed.comm.timeouts.connect"),
        )
        logger.debug("client %s is created for the tasks of %s", client.id, worker.address)
        client._serve_calls_of(self._lender)  # noqa: SLF001 - not for users
        self._own, self._connecting = client, asyncio.ensure_future(client)
        self._connecting.add_done_callback(self._forget_failed)
        return client

    def _forget_failed(self, connecting: asyncio.Future[Any]) -> None:
        """Drop a client that could not connect. The next task creates another one."""
        failed = connecting.cancelled() or connecting.exception() is not None
        if failed and connecting is self._connecting and self._own is not None:
            logger.debug("client %s cannot connect: %s", self._own.id, connecting)
            self._worker.loop.add_callback(close_at_once, self._own)
            self._own = None


def _default_client() -> Any:
    try:
        return default_client()
    except ValueError:
        return None


# Code ---------------------------------------------------------------------------------------------


class CodeOfCalls:
    """Fetcher of the module versions and file archives that tasks need."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        #: Running fetch by code id: each is fetched once, however many tasks wait for it.
        self._fetches: dict[str, asyncio.Task[None]] = {}

    async def know(self, task: Any) -> None:
        """Fetch the code of a task if this process lacks it. Without the code, the task fails."""
        importer, node = here(), getattr(task, "run_spec", None)
        if importer is None or not isinstance(node, CarriedNode) or importer.knows(node.code):
            return
        fetch = self._fetches.get(node.code)
        if fetch is None:
            fetch = asyncio.create_task(self._fetch(importer, node.code))
            self._fetches[node.code] = fetch
            fetch.add_done_callback(lambda _: self._fetches.pop(node.code, None))
        await asyncio.shield(fetch)

    async def _fetch(self, importer: Importer, code: str) -> None:
        fetch, what = partial(self._fetch_once, importer, code), f"the request for code {code}"
        try:
            await retry(fetch, count=5, delay_min=0.2, delay_max=5.0, operation=what)
        except (ArchiveError, ScalableError, OSError) as error:
            logger.warning("code %s cannot be used: %s", code, error)

    async def _fetch_once(self, importer: Importer, code: str) -> None:
        scheduler = self._worker.scheduler
        table: CodeTable | None = await request(scheduler, Handler.CODE_TABLE, code=code)
        if table is None:
            logger.warning("the scheduler no longer has code %s", code)
            return
        if (files := importer.missing_files(table)) is not None:
            data = await self._archive(files)
            if data is None:
                return
            await asyncio.to_thread(importer.trees.add, files, data)
            importer.drop_old_files(self._running())
        missing = await asyncio.to_thread(importer.missing_sources, table)
        sources = await request(scheduler, Handler.SOURCES, digests=missing) if missing else {}
        logger.debug("code %s: %d sources are not in files here", code, len(missing))
        importer.versions.add(table, sources, code)

    async def _archive(self, files: CarriedFiles) -> bytes | None:
        parts: list[bytes] = []
        while True:
            asked = {"digest": files.digest, "part": len(parts)}
            answer = await request(self._worker.scheduler, Handler.FILES, **asked)
            if not answer:
                logger.warning("the scheduler does not have archive %s", files.digest)
                return None
            parts.append(answer[1])
            if len(parts) == answer[0]:
                return b"".join(parts)

    def _running(self) -> set[str]:
        """Return the code ids of the running tasks."""
        state = self._worker.state
        specs = (task.run_spec for task in state.executing | state.long_running)
        return {spec.code for spec in specs if isinstance(spec, CarriedNode)}
