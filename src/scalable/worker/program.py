"""Program of a worker process: ``python -m scalable.worker.program [FILE NAME [SCRIPT]]``.

Without arguments, it reads a :class:`.WorkerConfig` as one line from standard input, and exits when
standard input is closed. With ``FILE``, it reads the file, runs ``SCRIPT``, and lives as long as
its scheduler.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import shutil
import signal
import stat
import sys
import threading
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

from distributed.comm.core import connect
from distributed.core import Status, rpc

from scalable.errors import ClusterError
from scalable.harmless import make_logs_harmless
from scalable.protocol import operations
from scalable.protocol.code import in_image
from scalable.protocol.events import SILENT_SCHEDULER
from scalable.protocol.failures import LAST_CHARACTERS, last_lines, read_output_with, without_dask
from scalable.protocol.handlers import Handler, request
from scalable.protocol.importing import Importer, stand_for_script
from scalable.protocol.task_output import TaskStream
from scalable.worker.config import WorkerConfig, apply_to_process, read_file
from scalable.worker.notices import tell_of_notice
from scalable.worker.parent_watch import ParentWatch, read_line, remove_scratch, take_standard_input
from scalable.worker.process_worker import ProcessWorker
from scalable.worker.task_output import LastPrinted

#: Seconds that a new worker waits for the scheduler to accept its connection.
FIRST_ANSWER_TIMEOUT_S = 40.0
#: Seconds without an answer after which the worker writes its first message about that.
FIRST_WORD_S = 10.0
#: Seconds that a worker that lost its connection waits for the scheduler to accept another.
LAST_ANSWER_TIMEOUT_S = 8.0


async def no_answer(config: WorkerConfig, timeout_s: float) -> str | None:
    """Return why the scheduler does not accept a connection in time, or None if it does."""
    security = config.credentials()
    arguments = {} if security is None else security.get_connection_args("worker")
    try:
        comm = await connect(config.scheduler, timeout=timeout_s, **arguments)
    except OSError as error:
        return _refusal(error)
    await comm.close()
    return None


def _refusal(error: BaseException) -> str:
    """Return the operating system's message about a failed connection instead of Dask's."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    words = getattr(cause, "strerror", None) or str(cause)
    return words if cause is not error and words else "no answer"


async def scheduler_answers(config: WorkerConfig) -> bool:
    """Return whether the scheduler answers a new worker. Writes messages while it is silent."""
    # The last line of a worker's output is the reason that its manager shows.
    where = f"{SILENT_SCHEDULER}{config.scheduler}"
    if await no_answer(config, FIRST_WORD_S) is None:
        return True
    sys.stderr.write(f"{where} has not answered for {FIRST_WORD_S:g} s; it is retried\n")
    why = await no_answer(config, FIRST_ANSWER_TIMEOUT_S - FIRST_WORD_S)
    if why is None:
        return True
    sys.stderr.write(
        f"{where} does not answer ({why}; tried for {FIRST_ANSWER_TIMEOUT_S:g} s): "
        "the worker exits\n"
    )
    return False


async def refuse_second_start(config: WorkerConfig) -> None:
    """Exit if a worker of the same name has started before."""
    security = config.credentials()
    arguments = {} if security is None else security.get_connection_args("worker")
    scheduler = rpc(config.scheduler, timeout=FIRST_ANSWER_TIMEOUT_S, connection_args=arguments)
    try:
        may_begin = await request(scheduler, Handler.BEGIN, worker=config.name)
    finally:
        await scheduler.close_rpc()
    if not may_begin:
        sys.stderr.write(f"worker {config.name} has started before: its manager will replace it\n")
        sys.exit(operations.BEGAN_BEFORE)


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


def run_with_lifeline(config: WorkerConfig, lifeline: ParentWatch) -> None:
    """Run a worker that exits with the process that owns it."""
    lifeline.hold(config.local_directory)
    _run(config, serve(config))


def run_from_file(path: Path, name: str, preload: Sequence[str] = ()) -> None:
    """Run a worker that lives as long as its scheduler."""
    config = read_file(path, name, preload)
    _run(config, serve_while_scheduler_lives(config))


def _refuse_breakpoint(*_: object, **__: object) -> None:
    raise RuntimeError(
        "breakpoint() in a worker process, which has no terminal: run the task with "
        "synchronous=True (scalable run --synchronous), or call client.debug(future) after it has "
        "failed. Set PYTHONBREAKPOINT to use another debugger"
    )


def _run(config: WorkerConfig, work: Coroutine[Any, Any, Ending]) -> None:
    apply_to_process(config)
    stand_for_script()
    if "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = _refuse_breakpoint
    keep_last_output()
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
        run_with_lifeline(config, ParentWatch(take_standard_input(), parent=parent))


# Serving ------------------------------------------------------------------------------------------

logger = logging.getLogger("scalable.worker")

CONNECT_TIMEOUT_S = 60.0
HAND_OVER_TIMEOUT_S = 20.0
#: Seconds that a worker has to close. Without a scheduler no client can fetch its results.
CLOSE_TIMEOUT_S = 10.0
_POLL_S = 0.2


class Ending(Enum):
    """Way in which a worker stops: by a signal, closed, or closed while tasks run."""

    TOLD = "told"
    CLOSED = "closed"
    CALLS_RUN = "tasks run"


async def serve(config: WorkerConfig) -> Ending:
    """Run the worker until it stops. Raises TimeoutError if no scheduler answers within 60 s."""
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
        preload=list(map(run_once, config.preload)),
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
            logger.debug("worker %s exits after a signal", config.name)
            closing.append(loop.create_task(_end(worker, hand_over=config.hand_over)))

    loop.add_signal_handler(signal.SIGTERM, close)
    keep_signals_from_children()
    try:
        await worker
    except RuntimeError as error:  # Dask's: the last line of the output is to have the reason
        raise ClusterError(f"worker {config.name} cannot start: {error.__cause__}") from error
    watch = None
    if config.notice_file:
        watch = loop.create_task(tell_of_notice(worker, Path(config.notice_file)))
    has_closed = await _close_of(worker)
    if watch is not None:
        watch.cancel()
    if closing:
        return Ending.TOLD
    return Ending.CLOSED if has_closed else Ending.CALLS_RUN


def keep_signals_from_children() -> None:
    """Give forked children of tasks default signal actions, so that SIGTERM spares the worker."""
    own = {signal.SIGTERM, signal.SIGINT}
    here = threading.local()

    def before() -> None:
        here.mask = signal.pthread_sigmask(signal.SIG_BLOCK, own)

    def after() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, here.mask)

    def in_child() -> None:
        signal.set_wakeup_fd(-1)
        for number in own:
            signal.signal(number, signal.SIG_DFL)
        after()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=in_child)


async def _close_of(worker: Any) -> bool:
    """Wait until the worker has closed. Return False if its tasks prevent that."""
    finished = asyncio.ensure_future(worker.finished())
    while worker.status is not Status.closing and not finished.done():
        await asyncio.wait([finished], timeout=_POLL_S)
    await asyncio.wait([finished], timeout=CLOSE_TIMEOUT_S)
    if not finished.done():
        logger.warning("worker %s exits although its tasks have not finished", worker.name)
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


def run_once(script: str) -> str:
    """Run a preload script once, not twice as Dask does, and return its module name for Dask."""
    if not script.endswith(".py") or "://" in script:
        return script
    name = Path(script).stem
    if not name.isidentifier() or name in sys.modules:
        name = f"preload_script_{len(sys.modules)}"
    spec = importlib.util.spec_from_file_location(name, script)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return name


# Recent output ------------------------------------------------------------------------------------

_STDOUT, _STDERR = 1, 2
#: Number of characters that are read to find the last lines that are not Dask's log messages.
_READ_CHARACTERS = 4 * LAST_CHARACTERS


def keep_last_output() -> None:
    """Add what tasks print to their failures, and the process's latest output to overviews."""
    recent: deque[str] = deque(maxlen=200)
    printed = LastPrinted()

    def keep(text: str) -> bool:
        recent.append(text[-LAST_CHARACTERS:])
        printed.add(text)
        return False

    sys.stdout, sys.stderr = TaskStream(sys.stdout, keep), TaskStream(sys.stderr, keep)
    of_process = _end_of_file if _is_file(_STDERR) else lambda: _last_printed("".join(list(recent)))
    read_output_with(of_process, printed.take)


def _last_printed(text: str) -> str | None:
    """Return the last lines of an output, without Dask's log messages."""
    return last_lines(without_dask(text)) or None


def _is_file(descriptor: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _end_of_file() -> str | None:
    """Return the last lines of the file that receives standard error."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    try:
        # The descriptor itself may be open for writing only.
        with Path(f"/proc/self/fd/{_STDERR}").open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _READ_CHARACTERS))
            data = file.read(_READ_CHARACTERS)
    except OSError:
        return None
    if size > _READ_CHARACTERS:
        data = data.partition(b"\n")[2] or data  # a line that was cut is not recognised as Dask's
    return _last_printed(data.decode(errors="replace"))


if __name__ == "__main__":
    main()
