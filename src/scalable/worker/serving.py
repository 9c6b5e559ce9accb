"""Running of a Dask worker in a process of its own, from start to end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress
from typing import Any

from distributed.core import Status

from scalable.protocol.importing import Importer
from scalable.worker.config import WorkerConfig
from scalable.worker.lifeline import remove_scratch
from scalable.worker.process_worker import ProcessWorker

logger = logging.getLogger("scalable.worker")

CONNECT_TIMEOUT_S = 60.0
HAND_OVER_TIMEOUT_S = 20.0


async def serve(config: WorkerConfig) -> bool:
    """Run the worker until it ends.

    Returns
    -------
    bool
        Whether a signal told the worker to end.

    Raises
    ------
    TimeoutError
        If the scheduler does not answer within 60 s.
    """
    Importer(f"worker {config.name}").install()
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
            # A worker that is still starting would register, and receive calls that are then lost.
            remove_scratch(config.local_directory)
            os._exit(0)
        if not closing:
            logger.debug("worker %s ends: told by a signal", config.name)
            closing.append(loop.create_task(_end(worker, hand_over=config.hand_over)))

    loop.add_signal_handler(signal.SIGTERM, close)
    await worker
    await worker.finished()
    return bool(closing)


async def _end(worker: Any, *, hand_over: bool) -> None:
    if hand_over:
        # Its calls run again elsewhere at once, and the scheduler counts no failure for them.
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
    # Running calls are not awaited: the provider would kill the process before they end.
    await worker.close(reason="terminated", nanny=False, executor_wait=False)
