"""Running of a Dask worker in its own process, from start to exit."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

from distributed.core import Status

from scalable.protocol.code import in_image
from scalable.protocol.importing import Importer
from scalable.worker.config import WorkerConfig
from scalable.worker.lifeline import remove_scratch
from scalable.worker.notices import tell_of_notice
from scalable.worker.process_worker import ProcessWorker

logger = logging.getLogger("scalable.worker")

CONNECT_TIMEOUT_S = 60.0
HAND_OVER_TIMEOUT_S = 20.0
#: Seconds in which a worker closes. Without a scheduler no client can fetch its results.
CLOSE_TIMEOUT_S = 10.0
_POLL_S = 0.2


class Ending(Enum):
    """Way in which a worker stops: requested by a signal, closed, or closed while tasks run."""

    TOLD = "told"
    CLOSED = "closed"
    CALLS_RUN = "calls run"


async def serve(config: WorkerConfig) -> Ending:
    """Run the worker until it stops. TimeoutError if the scheduler does not answer within 60 s."""
    Importer(
        in_image(f"worker {config.name}"),
        shares_files=config.shares_files,
        directory=config.local_directory,
    ).install()
    worker = ProcessWorker(
        config.scheduler,
        name=config.name,
        nthreads=config.nthreads,
        resources=dict(config.resources),
        memory_limit=config.memory_limit,
        host=None if config.interface else config.host or None,
        interface=config.interface or None,
        port=config.ports or None,
        local_directory=config.local_directory,
        preload=list(config.preload),
        security=config.credentials(),
        death_timeout=CONNECT_TIMEOUT_S,
        manager=config.manager,
    )
    loop = asyncio.get_running_loop()
    closing: list[asyncio.Task[Any]] = []

    def close() -> None:
        if worker.status is not Status.running and not closing:
            # A worker that is still starting would register, and receive tasks that are then lost.
            remove_scratch(config.local_directory)
            os._exit(0)
        if not closing:
            logger.debug("worker %s ends: told by a signal", config.name)
            closing.append(loop.create_task(_end(worker, hand_over=config.hand_over)))

    loop.add_signal_handler(signal.SIGTERM, close)
    await worker
    watch = None
    if config.notice_file:
        watch = loop.create_task(tell_of_notice(worker, Path(config.notice_file)))
    has_closed = await _close_of(worker)
    if watch is not None:
        watch.cancel()
    if closing:
        return Ending.TOLD
    return Ending.CLOSED if has_closed else Ending.CALLS_RUN


async def _close_of(worker: Any) -> bool:
    """Wait until the worker has closed. Return False if its tasks keep it from closing."""
    finished = asyncio.ensure_future(worker.finished())
    while worker.status is not Status.closing and not finished.done():
        await asyncio.wait([finished], timeout=_POLL_S)
    await asyncio.wait([finished], timeout=CLOSE_TIMEOUT_S)
    if not finished.done():
        logger.warning("worker %s ends although its calls have not ended", worker.name)
    return bool(finished.done())


async def _end(worker: Any, *, hand_over: bool) -> None:
    if hand_over:
        # Its tasks run again elsewhere at once, and the scheduler counts no failure for them.
        with suppress(OSError, TimeoutError):
            await asyncio.wait_for(
                worker.scheduler.retire_workers(
                    workers=[worker.address],
                    close_workers=False,
                    remove=True,
                    stimulus_id=f"terminated-{worker.name}",
                ),
                HAND_OVER_TIMEOUT_S,
            )
    # Running tasks are not awaited: the provider would kill the process before they finish.
    await worker.close(reason="terminated", nanny=False, executor_wait=False)
