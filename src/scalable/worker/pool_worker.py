"""A Dask worker that measures what each call uses and keeps to its memory limit."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import dask
import psutil
from distributed import Client, Worker
from distributed.client import default_client
from distributed.core import Status
from distributed.metrics import context_meter
from distributed.utils import in_async_call
from distributed.worker_state_machine import ExecuteFailureEvent

from scalable.protocol.lending import CallInterrupted
from scalable.protocol.measured import USAGE_ACTION
from scalable.protocol.operations import INTERRUPT, MANAGER_KEY
from scalable.protocol.quiet_http import QuietHttp
from scalable.units import format_bytes
from scalable.worker.bundles import interrupt
from scalable.worker.slots import SlotLender

logger = logging.getLogger("scalable.worker")

MEMORY_INTERVAL_S = 0.2
#: Share of the limit at which a worker ends itself; Dask's nanny does the same at 0.95.
TERMINATE_FRACTION = 0.95
#: Exit code of a worker that ended itself for its memory.
OUT_OF_MEMORY = 71
#: Exit code of a worker that ended itself because an interrupted call did not end.
CALL_DID_NOT_END = 72
#: Moving results away may take so long.
RETIRE_TIMEOUT_S = 60.0


class PoolWorker(QuietHttp, Worker):
    """A worker of a pool, in the user's process: CPU seconds of each call are the thread's.

    Parameters
    ----------
    *args, **kwargs
        As Dask's worker takes them.
    manager
        Id of the worker manager that it belongs to; its scheduler is told.
    """

    def __init__(self, *args: Any, manager: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.slot_lender = SlotLender(self)
        self.stream_handlers[INTERRUPT] = partial(interrupt, self)
        if manager:
            self.startup_information[MANAGER_KEY] = lambda _: manager

    async def execute(self, key: Any, *, stimulus_id: str) -> Any:
        """Run a call, and send what it used along with its timings."""
        usage = self._begin()
        task = self.state.tasks.get(key)
        run_id = -1 if task is None else task.run_id
        try:
            with context_meter.add_callback(usage.observe):
                event = await super().execute(key, stimulus_id=stimulus_id)
        except (SystemExit, KeyboardInterrupt, CallInterrupted) as error:
            # Left alone it would end the event loop: the worker, and with threads the session.
            failure = RuntimeError(f"the call ended with {error!r}")
            event = ExecuteFailureEvent.from_exception(
                failure, key=key, run_id=run_id, stimulus_id=f"call-exited-{time.time()}"
            )
        self.slot_lender.ended(key)
        if task is not None:
            now = time.time()
            entry: Any = {"action": USAGE_ACTION, "start": now, "stop": now, **usage.end()}
            task.startstops.append(entry)
        return event

    def _begin(self) -> _ThreadUsage:
        return _ThreadUsage()

    def peak_memory(self) -> int | None:
        """Bytes at most since the running call began; None where its process is not its own."""
        return None

    def _get_client(self, timeout: float | None = None) -> Client:
        """The client of calls that make calls: it knows of tags, as the user's own does."""
        try:
            given = default_client()
        except ValueError:
            given = None
        if given is None and self._client is None:
            from scalable.client.client import ScalableClient

            self._client = ScalableClient(
                self.scheduler,
                loop=self.loop,
                security=self.security,
                set_as_default=True,
                asynchronous=in_async_call(self.loop),
                direct_to_workers=True,
                name="worker",
                timeout=timeout or dask.config.get("distributed.comm.timeouts.connect"),
            )
            self._initialized_clients.add(self._client)
        return super()._get_client(timeout)


class _ThreadUsage:
    """What the thread of one call used. Its process's memory says nothing about the call."""

    def __init__(self) -> None:
        self._cpu_s: float | None = None

    def observe(self, label: Any, value: float, unit: str) -> None:
        if label == "thread-cpu" and unit == "seconds":
            self._cpu_s = (self._cpu_s or 0.0) + value

    def end(self) -> dict[str, float | int | None]:
        return {"cpu_s": self._cpu_s, "peak_memory": None}


class ProcessWorker(PoolWorker):
    """A worker that has a process to itself.

    With one slot, a call is charged the CPU seconds of the whole process and of the children that
    it waited for; with more, those of its thread. Peak memory is the process's high-water mark
    during the call and, sampled every 0.2 s, that of its children with it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._gives_up = False
        self.memory_watch = MemoryWatch(self.memory_manager.memory_limit)
        self.memory_watch.start()

    def _begin(self) -> _ThreadUsage:
        return _ProcessUsage(self.memory_watch, alone=self.state.nthreads == 1)

    def peak_memory(self) -> int | None:
        """Bytes at most since the running call began."""
        return self.memory_watch.end()

    def give_up_on_call(self, key: str, shown: str) -> None:
        """End this process because a call that was to end does not: results are moved first.

        Nothing more is begun, and other calls that run here are waited for.
        """
        if not self._gives_up:
            self._gives_up = True
            self.loop.add_callback(self._give_up_on_call, key, shown)

    async def _give_up_on_call(self, key: str, shown: str) -> None:
        logger.warning("a call of %s was to end and does not: this worker ends itself", shown)
        self.batched_stream.send(
            {
                "op": "worker-status-change",
                "status": Status.closing_gracefully.name,
                "stimulus_id": f"call-does-not-end-{time.time()}",
            }
        )
        while self._others_run(key):  # noqa: ASYNC110
            await asyncio.sleep(MEMORY_INTERVAL_S)
        with suppress(OSError, TimeoutError):
            retiring = self.scheduler.retire_workers(
                workers=[self.address], stimulus_id=f"call-does-not-end-{time.time()}"
            )
            await asyncio.wait_for(retiring, RETIRE_TIMEOUT_S)
        os._exit(CALL_DID_NOT_END)

    def _others_run(self, key: str) -> bool:
        """Whether calls run but for one, and those that wait: what for may have to run here."""
        return any(
            str(task.key) != key and not self.slot_lender.lends(task.key)
            for task in self.state.executing | self.state.long_running
        )


class _ProcessUsage(_ThreadUsage):
    def __init__(self, watch: MemoryWatch, *, alone: bool) -> None:
        super().__init__()
        self._watch = watch
        self._began = _process_cpu_s() if alone else None
        watch.begin(reset=alone)

    def end(self) -> dict[str, float | int | None]:
        cpu_s = self._cpu_s if self._began is None else _process_cpu_s() - self._began
        return {"cpu_s": cpu_s, "peak_memory": self._watch.end()}


def _process_cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class MemoryWatch(threading.Thread):
    """Samples the memory of this process and its children; ends the process over its limit.

    Parameters
    ----------
    limit
        Bytes, or None for no limit.

    Notes
    -----
    The high-water mark (VmHWM) is set back by writing 5 to ``/proc/self/clear_refs``, see
    proc(5). Where that is not allowed, the samples alone count.
    """

    def __init__(self, limit: int | None) -> None:
        super().__init__(name="scalable-memory-watch", daemon=True)
        self._limit = limit
        self._process = psutil.Process()
        self._sampled = 0

    def begin(self, *, reset: bool) -> None:
        """Start to measure the peak of a call; without ``reset`` other calls share it."""
        if reset:
            self._sampled = 0
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")

    def end(self) -> int | None:
        """Peak in bytes since :meth:`begin`, or None where the system does not tell."""
        return max(_high_water_mark() or 0, self._sampled) or None

    def run(self) -> None:
        """Sample until the process ends."""
        while True:
            time.sleep(MEMORY_INTERVAL_S)
            with suppress(psutil.Error, OSError):
                used = self._used()
                self._sampled = max(self._sampled, used)
                if self._limit and used > TERMINATE_FRACTION * self._limit:
                    self._terminate(used)

    def _used(self) -> int:
        used = int(self._process.memory_info().rss)
        for child in self._process.children(recursive=True) if _has_children() else ():
            with suppress(psutil.Error):
                used += int(child.memory_info().rss)
        return used

    def _terminate(self, used: int) -> None:
        assert self._limit is not None
        message = (
            f"out of memory: {format_bytes(used)} used, the limit is {format_bytes(self._limit)}; "
            "the worker ends itself\n"
        )
        os.write(2, message.encode())
        for child in self._process.children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
        os._exit(OUT_OF_MEMORY)


def _has_children() -> bool:
    # A look at each thread's list is much cheaper than psutil's walk through all of /proc.
    try:
        return any(p.read_text() for p in Path("/proc/self/task").glob("*/children"))
    except OSError:
        return True


def _high_water_mark() -> int | None:
    try:
        with open("/proc/self/status", "rb") as status:  # noqa: PTH123 - on the path of each call
            for line in status:
                if line.startswith(b"VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None
