"""Running, waiting and cancelled bundles of a worker.

A *bundle* is a batch of tasks that a client sends as one Dask task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from distributed import Worker, get_worker

from scalable.protocol.bundles import ALL, EVERY
from scalable.protocol.dask_seams.worker import (
    is_waiting,
    offer_on_stream,
    send_to_scheduler,
    task_of,
)
from scalable.protocol.handlers import SchedulerCalls
from scalable.protocol.messages import load_calls
from scalable.protocol.operations import INTERRUPT, RETURNED
from scalable.worker.bundle_run import BundleRun
from scalable.worker.interrupts import interrupt_task

logger = logging.getLogger("scalable.worker")

#: Seconds for which a bundle waits for the scheduler's answer to the report of its start.
CONFIRM_S = 30.0
#: Largest number of waiting bundles whose cancelled tasks are noted. Cancelled tasks of other
#: bundles run, and their results are ignored.
MOST_CANCELLED = 1000

_running: dict[str, BundleRun] = {}
#: Positions of the cancelled tasks, by key of a waiting bundle.
_cancelled: dict[str, set[int]] = {}


def run_bundle(
    header: Mapping[str, Any], payload: bytes, references: Mapping[Any, Any]
) -> dict[int, Any] | None:
    """Run a bundle in a thread of a Dask worker. Return values too large for a message.

    ``header`` contains ``key``, ``client``, ``functions`` (digest and bytes of each), ``timeout_s``
    or None, ``code`` (id of the tasks' code), ``profile`` and ``record`` (measure each task for the
    client or the records), ``confirm`` (report the start to the scheduler and wait for its answer
    before the first task), ``process`` (id of the process that prints the output, or empty) and
    ``first_tries`` (names of first attempts by position, for tasks that were sent before).

    ``payload`` contains the indexes of functions (None if all tasks have the first one), positional
    and keyword arguments (None if there are none). ``references`` contains the values of the
    futures within the arguments. The returned values are by position of their task.
    """
    worker = get_worker()
    offer_on_stream(worker, INTERRUPT, partial(interrupt, worker))
    run = BundleRun(worker, header, load_calls(payload, references), references)
    _running[run.key] = run
    logger.debug("bundle %s begins", run.key)
    try:
        run.skip(_cancelled.pop(run.key, set()))  # later cancellations reach the run directly
        if not header["confirm"]:
            run.send_begun()
        else:
            told = SchedulerCalls(worker.scheduler).bundle_begun(header["key"], header["client"])
            loop: Any = worker.loop
            asyncio.run_coroutine_threadsafe(told, loop.asyncio_loop).result(CONFIRM_S)
        return run.run() or None
    finally:
        del _running[run.key]


def running_bundle(key: str) -> BundleRun | None:
    """Return the bundle with this key if it runs in this process, or None."""
    return _running.get(key)


def interrupt(worker: Worker, key: Any, number: int | None, client: str) -> None:
    """Interrupt a task, or give back a waiting bundle. Already finished is success.

    ``number`` is the position of the task in its bundle, None if the Dask task is not a bundle,
    ``EVERY`` to give back a bundle that has not started to ``client``, or ``ALL`` to stop a Dask
    task that runs.
    """
    if number == ALL and key in _running:
        _running[key].end()
    elif number is None or number == ALL:
        interrupt_task(worker, key)
    elif number == EVERY:
        if is_waiting(worker, key):
            logger.debug("bundle %s is given back", key)
            _note_cancelled(key, EVERY)
            message = {"op": RETURNED, "client": client, "key": key, "numbers": EVERY}
            send_to_scheduler(worker, message)
    elif (run := _running.get(key)) is not None:
        run.interrupt(number)
    elif task_of(worker, key) is not None:  # the bundle waits on this worker
        logger.debug("call %d of bundle %s is cancelled before the bundle begins", number, key)
        _note_cancelled(key, number)


def _note_cancelled(key: str, number: int) -> None:
    _cancelled.setdefault(key, set()).add(number)
    while len(_cancelled) > MOST_CANCELLED:
        del _cancelled[next(iter(_cancelled))]
