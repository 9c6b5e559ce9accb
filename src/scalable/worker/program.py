"""The program of a worker process: ``python -m scalable.worker.program``.

Without arguments, the program reads one line of JSON from standard input (see
:class:`.WorkerConfig`), so that credentials never appear in an argument or in the environment.
(Python's ssl module reads credentials only from files: Dask writes them to a private directory
while it loads them.) Standard input stays open: when it ends, the parent has ended, and the worker
ends with all its children.

With the arguments ``FILE NAME [SCRIPT]``, the program reads the configuration from ``FILE``, which
only the file's owner can read, and the worker lives as long as its scheduler. This form is for
workers on other machines and for workers that outlive the process which starts them. ``SCRIPT``
runs before the worker starts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from distributed.comm.core import connect

from scalable.worker.config import WorkerConfig, apply_to_process, read_file
from scalable.worker.lifeline import Lifeline, read_line, remove_scratch, take_standard_input
from scalable.worker.serving import serve

ATTEMPTS = 4
ANSWER_TIMEOUT_S = 10.0


async def scheduler_answers(config: WorkerConfig) -> bool:
    """Return whether the worker's scheduler accepts a connection; try ``ATTEMPTS`` times."""
    security = config.credentials()
    arguments = {} if security is None else security.get_connection_args("worker")
    for attempt in range(ATTEMPTS):
        try:
            comm = await connect(config.scheduler, timeout=ANSWER_TIMEOUT_S, **arguments)
        except OSError:
            if attempt < ATTEMPTS - 1:
                await asyncio.sleep(1)
        else:
            await comm.close()
            return True
    return False


async def serve_while_scheduler_lives(config: WorkerConfig) -> None:
    """Run the worker, and remove its cluster's files if the scheduler has ended.

    Parameters
    ----------
    config
        Settings of the worker.
    """
    if await scheduler_answers(config):
        told = await serve(config)
        if told or await scheduler_answers(config):
            return
    else:
        sys.stderr.write(f"the scheduler {config.scheduler} does not answer: the worker ends\n")
    if config.clear_away:
        shutil.rmtree(config.clear_away, ignore_errors=True)


def run_with_lifeline(config: WorkerConfig, lifeline: Lifeline) -> None:
    """Run a worker that ends with the process it belongs to.

    Parameters
    ----------
    config
        Settings of the worker.
    lifeline
        Connection to the process that owns the worker.
    """
    lifeline.hold(config.local_directory)
    _run(config, serve(config))


def run_from_file(path: Path, name: str, preload: Sequence[str] = ()) -> None:
    """Run a worker that lives as long as its scheduler.

    Parameters
    ----------
    path
        File with the configuration that the workers of a pool share.
    name
        Name of this worker.
    preload
        Scripts to run before the worker starts.
    """
    config = read_file(path, name, preload)
    _run(config, serve_while_scheduler_lives(config))


def _run(config: WorkerConfig, work: Coroutine[Any, Any, object]) -> None:
    apply_to_process(config)
    # Our scratch directory contains Dask's and is removed first: Dask's warnings would mislead.
    logging.getLogger("distributed.diskutils").setLevel(logging.CRITICAL)
    try:
        asyncio.run(work)
    finally:
        remove_scratch(config.local_directory)


def main() -> None:
    """Read the configuration and run the worker."""
    parent = os.getppid()
    if len(sys.argv) > 2:
        run_from_file(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
    else:
        config = WorkerConfig(**json.loads(read_line()))
        run_with_lifeline(config, Lifeline(take_standard_input(), parent=parent))


if __name__ == "__main__":
    main()
