"""Program of a worker process: ``python -m scalable.worker.program [FILE NAME [SCRIPT]]``.

Without arguments, it reads a :class:`.WorkerConfig` as one line from standard input, and exits when
that is closed. With ``FILE``, it reads that, runs ``SCRIPT``, and lives as long as its scheduler.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sys
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from distributed.comm.core import connect
from distributed.core import rpc

from scalable.harmless import make_logs_harmless
from scalable.protocol import exit_codes
from scalable.protocol.events import SILENT_SCHEDULER
from scalable.protocol.handlers import SchedulerCalls
from scalable.worker.config import WorkerConfig, apply_to_process, read_file
from scalable.worker.lifeline import Lifeline, read_line, remove_scratch, take_standard_input
from scalable.worker.recent_output import remember_output
from scalable.worker.serving import Ending, serve

#: Seconds in which a scheduler accepts the connection of a new worker.
FIRST_ANSWER_TIMEOUT_S = 40.0
#: Seconds after which its silence is written for the first time.
FIRST_WORD_S = 10.0
#: Seconds in which a scheduler accepts another connection after that of the worker is lost.
LAST_ANSWER_TIMEOUT_S = 8.0


async def no_answer(config: WorkerConfig, timeout_s: float) -> str | None:
    """Return why the worker's scheduler accepts no connection in time, or None if it does."""
    security = config.credentials()
    arguments = {} if security is None else security.get_connection_args("worker")
    try:
        comm = await connect(config.scheduler, timeout=timeout_s, **arguments)
    except OSError as error:
        return _refusal(error)
    await comm.close()
    return None


def _refusal(error: BaseException) -> str:
    """Return the operating system's message for a failed connection instead of Dask's."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    words = getattr(cause, "strerror", None) or str(cause)
    return words if cause is not error and words else "no answer"


async def scheduler_answers(config: WorkerConfig) -> bool:
    """Return whether a new worker reaches its scheduler. If not, write that soon and at the end."""
    # The last line of a worker's output is the reason that its manager shows.
    where = f"{SILENT_SCHEDULER}{config.scheduler}"
    if await no_answer(config, FIRST_WORD_S) is None:
        return True
    sys.stderr.write(f"{where} has not answered for {FIRST_WORD_S:g} s; it is tried again\n")
    why = await no_answer(config, FIRST_ANSWER_TIMEOUT_S - FIRST_WORD_S)
    if why is None:
        return True
    sys.stderr.write(
        f"{where} does not answer ({why}; tried for {FIRST_ANSWER_TIMEOUT_S:g} s): "
        "the worker ends\n"
    )
    return False


async def refuse_second_start(config: WorkerConfig) -> None:
    """Exit if a worker of the same name has started before.

    A container that is started again, or the replacement of a lost pod, would otherwise be a second
    worker under a name whose loss its manager has noticed or will notice.
    """
    security = config.credentials()
    arguments = {} if security is None else security.get_connection_args("worker")
    scheduler = rpc(config.scheduler, timeout=FIRST_ANSWER_TIMEOUT_S, connection_args=arguments)
    try:
        may_begin = await SchedulerCalls(scheduler).begin(config.name)
    finally:
        await scheduler.close_rpc()
    if not may_begin:
        sys.stderr.write(f"worker {config.name} has begun before: its manager replaces it\n")
        sys.exit(exit_codes.BEGAN_BEFORE)


async def serve_while_scheduler_lives(config: WorkerConfig) -> Ending:
    """Run the worker, and remove its cluster's files if the scheduler has stopped."""
    ending = Ending.CLOSED
    if await scheduler_answers(config):
        if config.once:
            await refuse_second_start(config)
        ending = await serve(config)
        if ending is Ending.TOLD or not config.clear_away:
            return ending
        if await no_answer(config, LAST_ANSWER_TIMEOUT_S) is None:
            return ending
    if config.clear_away:
        shutil.rmtree(config.clear_away, ignore_errors=True)
    return ending


def run_with_lifeline(config: WorkerConfig, lifeline: Lifeline) -> None:
    """Run a worker that exits with the process that owns it."""
    lifeline.hold(config.local_directory)
    _run(config, serve(config))


def run_from_file(path: Path, name: str, preload: Sequence[str] = ()) -> None:
    """Run a worker that lives as long as its scheduler."""
    config = read_file(path, name, preload)
    _run(config, serve_while_scheduler_lives(config))


def _run(config: WorkerConfig, work: Coroutine[Any, Any, Ending]) -> None:
    apply_to_process(config)
    remember_output()
    # Our scratch directory contains Dask's and is removed first: Dask's warnings would mislead.
    logging.getLogger("distributed.diskutils").setLevel(logging.CRITICAL)
    try:
        asyncio.run(_end_with_calls(config, work))
    finally:
        remove_scratch(config.local_directory)


async def _end_with_calls(config: WorkerConfig, work: Coroutine[Any, Any, Ending]) -> None:
    if await work is Ending.CALLS_RUN:
        remove_scratch(config.local_directory)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(0)  # Python would wait for the threads of the tasks


def main() -> None:
    """Read the configuration and run the worker."""
    # Credentials come from standard input or from a file that only its owner can read, never from
    # an argument or the environment. Python's ssl module reads them only from files: Dask writes
    # them to a private directory while it loads them. The form with a file is for workers on other
    # machines, and for workers that outlive the process which starts them.
    parent = os.getppid()
    make_logs_harmless()
    if len(sys.argv) > 2:
        run_from_file(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
    else:
        config = WorkerConfig(**json.loads(read_line()))
        run_with_lifeline(config, Lifeline(take_standard_input(), parent=parent))


if __name__ == "__main__":
    main()
