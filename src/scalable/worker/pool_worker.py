"""A Dask worker that measures the resources which each task uses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from functools import partial
from typing import Any

from distributed import Client
from distributed.metrics import context_meter
from distributed.worker_state_machine import ExecuteFailureEvent, ExecuteSuccessEvent

from scalable.caching.hearing import heard_by
from scalable.protocol.code import located
from scalable.protocol.dask_seams.arguments import seams as argument_seams
from scalable.protocol.dask_seams.shared_frames import share_memory
from scalable.protocol.dask_seams.shared_results import SharingWorker
from scalable.protocol.dask_seams.shared_results import seams as result_seams
from scalable.protocol.dask_seams.worker import (
    change_priorities,
    close_with_worker,
    failure_for_clients,
    forget_workers,
    offer_on_stream,
)
from scalable.protocol.guarded_http import GuardedHttp
from scalable.protocol.handlers import offer
from scalable.protocol.importing import here
from scalable.protocol.lending import CallInterrupted
from scalable.protocol.machine_kind import MACHINE_KIND, machine_kind
from scalable.protocol.measured import FAILURE, USAGE, addition, remembered_addition
from scalable.protocol.operations import INTERRUPT, LEFT, MANAGER_KEY, PRIORITIES
from scalable.protocol.private_node import PrivateNode
from scalable.protocol.thread_frames import read_frames_without_collection
from scalable.protocol.worker_calls import WorkerHandler
from scalable.spec.remembered import RememberedOutcome
from scalable.worker.arguments import fetch_arguments
from scalable.worker.bundles import interrupt
from scalable.worker.call_client import CallClient
from scalable.worker.checkpoints import WorkerCheckpoints
from scalable.worker.code import CodeOfCalls
from scalable.worker.shown_calls import shown_call
from scalable.worker.slots import SlotLender


class PoolWorker(GuardedHttp, PrivateNode, SharingWorker):
    """Worker of a pool, which measures the CPU seconds of the thread of each task."""

    def __init__(self, *args: Any, manager: str = "", **kwargs: Any) -> None:
        argument_seams.check()
        result_seams.check()
        read_frames_without_collection()
        share_memory()
        super().__init__(*args, **kwargs)
        self.code_of_calls = CodeOfCalls(self)
        self.slot_lender = SlotLender(self, self._used_memory)
        self.checkpoints = WorkerCheckpoints(self)
        self.call_client = CallClient(self, self.slot_lender)
        close_with_worker(self, "call-client", self.call_client)
        self.stream_handlers[INTERRUPT] = partial(interrupt, self)
        offer_on_stream(self, PRIORITIES, partial(change_priorities, self))
        offer_on_stream(self, LEFT, partial(forget_workers, self))
        for operation in (PRIORITIES, LEFT):
            self.startup_information[operation] = lambda _: True
        self.startup_information[MACHINE_KIND] = lambda _: machine_kind()
        offer(self, {WorkerHandler.SHOWN_CALL: self._shown_call})
        if manager:
            self.startup_information[MANAGER_KEY] = lambda _: manager

    async def execute(self, key: Any, *, stimulus_id: str) -> Any:
        """Run a task, and add the resources that the task used to its Dask timings."""
        usage, remembered = self._begin(), list[RememberedOutcome]()
        task = self.state.tasks.get(key)
        run_id = -1 if task is None else task.run_id
        await self.code_of_calls.know(task)
        try:
            with context_meter.add_callback(usage.observe), heard_by(remembered.append):
                event = await super().execute(key, stimulus_id=stimulus_id)
                event = failure_for_clients(event, partial(self._explained, task))
        except (SystemExit, KeyboardInterrupt, CallInterrupted) as error:
            # Unhandled, this error would stop the event loop, and with it the worker or the
            # session.
            failure = RuntimeError(f"the call ended with {error!r}")
            event = ExecuteFailureEvent.from_exception(
                failure, key=key, run_id=run_id, stimulus_id=f"call-exited-{time.time()}"
            )
        if self.checkpoints.has(key):
            succeeded = isinstance(event, ExecuteSuccessEvent)
            await asyncio.to_thread(self.checkpoints.end, key, succeeded=succeeded)
        self.slot_lender.ended(key)
        if task is not None:
            task.startstops.append(addition(USAGE, usage.end()))
            if remembered:
                task.startstops.append(remembered_addition(remembered))
            if isinstance(event, ExecuteFailureEvent):
                task.startstops.append(self._failure_entry(task))
        return event

    def _failure_entry(self, task: Any) -> Any:
        """Return the facts about a failed task, as an entry for the timings of its Dask task."""
        known = getattr(task.run_spec, "failure", None) or {}
        return addition(FAILURE, {**known, "worker": str(self.name)})

    def _explained(self, task: Any, error: BaseException) -> BaseException | None:
        """Return the error of a task that lacks a module, with the name of this worker, or None."""
        importer = here()
        if importer is None:  # the process of the user
            return None
        shown = getattr(getattr(task, "run_spec", None), "shown", None)
        return located(error, importer.name, f"call {shown!r}" if shown else "a call")

    async def gather_dep(
        self, worker: str, to_gather: Collection[Any], total_nbytes: int, *, stimulus_id: str
    ) -> Any:
        """Fetch arguments from another worker, with the modules of the tasks that need them."""
        gather = super().gather_dep

        def fetch(keys: Collection[Any]) -> Any:
            return gather(worker, keys, total_nbytes, stimulus_id=stimulus_id)

        return await fetch_arguments(self, worker, to_gather, fetch, self.code_of_calls.know)

    def _shown_call(self, key: Any = None) -> dict[str, Any]:
        return shown_call(self, key)

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
        """Return the client with which tasks submit nested tasks. This client routes by tag."""
        return self.call_client.get(timeout)


class ThreadUsage:
    """CPU seconds of one task's thread. Memory is not measured: all tasks share the process."""

    def __init__(self) -> None:
        self._cpu_s: float | None = None

    def observe(self, label: Any, value: float, unit: str) -> None:
        """Add a measurement of Dask's context meter."""
        if label == "thread-cpu" and unit == "seconds":
            self._cpu_s = (self._cpu_s or 0.0) + value

    def end(self) -> dict[str, float | int | None]:
        return {"cpu_s": self._cpu_s, "peak_memory": None}
