"""The program of a worker process: ``python -m scalable.worker.program``.

Without arguments it reads one line of JSON from standard input (see :class:`WorkerConfig`):
credentials thus never appear in an argument or the environment. (Python's ssl module takes them
from files only, so Dask writes them to a private directory for the moment of loading.) Standard
input then stays open as the lifeline: when it ends, its parent is gone, and the worker with all its
children ends.

With the arguments ``FILE NAME [SCRIPT]``, for workers on other machines and those that outlive who
started them, the configuration comes from that file, which only its owner can read, and the worker
lives as long as its scheduler does. The script runs before the worker.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dask
from distributed import Security
from distributed.comm.core import connect
from distributed.core import Status

logger = logging.getLogger("scalable.worker")

CONNECT_TIMEOUT_S = 60.0
PARENT_INTERVAL_S = 1.0
HAND_OVER_TIMEOUT_S = 20.0
ATTEMPTS = 4
ANSWER_TIMEOUT_S = 10.0
#: Variable that names the scratch directory where whoever starts the worker has made one.
SCRATCH = "SCALABLE_SCRATCH"
_SECURITY_FIELDS = ("tls_ca_file", "tls_worker_cert", "tls_worker_key")


@dataclass(frozen=True)
class WorkerConfig:
    """What a worker process needs to know.

    Attributes
    ----------
    scheduler
        Address to connect to.
    name
        Name of the worker.
    nthreads
        Calls that it runs at once.
    resources
        Dask resources that it offers: its tag.
    memory_limit
        Bytes; 0 for no limit.
    host
        Address to listen on.
    local_directory
        Scratch directory of this worker alone; removed when it ends.
    preload
        Scripts to run before the worker starts.
    sys_path
        Entries that the module search path must have, so that the workflow's modules are found.
    security
        PEM texts of the cluster's authority and of the worker's own certificate and key.
    interface
        Network interface to listen on, instead of ``host``.
    ports
        Port or range of ports (``"40000:41000"``) to listen on; empty for any.
    hand_over
        Whether a worker that is told to end hands its results to others first.
    manager
        Id of the manager that it belongs to; empty for none.
    clear_away
        Whether the directory of the file that this was read from goes with the scheduler: that of
        a cluster which nobody else clears away after.
    dask_config
        Dask's configuration in the parent, as ``dask.config.serialize`` writes it.
    """

    scheduler: str
    name: str
    nthreads: int = 1
    resources: Mapping[str, float] = field(default_factory=dict)
    memory_limit: int = 0
    host: str = "127.0.0.1"
    local_directory: str = ""
    preload: tuple[str, ...] = ()
    sys_path: tuple[str, ...] = ()
    security: Mapping[str, str] = field(default_factory=dict)
    interface: str = ""
    ports: str = ""
    hand_over: bool = False
    manager: str = ""
    clear_away: bool = False
    dask_config: str = ""

    def to_line(self) -> bytes:
        """One line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"


def security_fields(security: Security | None) -> dict[str, str]:
    """What a worker needs of a cluster's credentials; empty without encryption."""
    if security is None or not security.require_encryption:
        return {}
    return {name: str(getattr(security, name)) for name in _SECURITY_FIELDS}


def serialized_config() -> str:
    """Dask's configuration in this process, for workers; empty where it holds live objects."""
    try:
        return str(dask.config.serialize(dask.config.config))
    except TypeError as error:
        logger.warning("workers start with Dask's default configuration: %s", error)
        return ""


async def serve(config: WorkerConfig) -> bool:
    """Run the worker until it ends.

    Returns
    -------
    bool
        Whether it was told to end, by a signal.

    Raises
    ------
    TimeoutError
        When the scheduler does not answer within 60 s.
    """
    from scalable.worker.pool_worker import ProcessWorker

    security = _security(config) if config.security else None
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
        security=security,
        death_timeout=CONNECT_TIMEOUT_S,
        manager=config.manager,
    )
    loop = asyncio.get_running_loop()
    closing: list[asyncio.Task[Any]] = []

    def close() -> None:
        if worker.status is not Status.running and not closing:
            # Dask's worker would go on to register, and be given work that dies with it.
            remove_scratch(config.local_directory)
            os._exit(0)
        if not closing:
            closing.append(loop.create_task(_end(worker, hand_over=config.hand_over)))

    loop.add_signal_handler(signal.SIGTERM, close)
    await worker
    await worker.finished()
    return bool(closing)


async def _end(worker: Any, *, hand_over: bool) -> None:
    if hand_over:
        # Its calls begin again elsewhere at once, and count as nobody's fault.
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
    # Not waiting for what still runs: that would last until the place kills us, scratch and all.
    await worker.close(reason="terminated", nanny=False, executor_wait=False)


def end_with_parent(lifeline: int, parent: int, scratch: str) -> None:
    """Wait until the parent is gone, then end this process and its whole group.

    Parameters
    ----------
    lifeline
        File descriptor whose other end the parent holds.
    parent
        Its process id: another process that it forked may hold the other end too.
    scratch
        Directory to remove first.
    """
    watch_from_outside(lifeline, scratch)
    while os.getppid() == parent:
        readable, _, _ = select.select([lifeline], [], [], PARENT_INTERVAL_S)
        if readable and not os.read(lifeline, 4096):
            break
    remove_scratch(scratch)
    os.killpg(0, signal.SIGKILL)


def watch_from_outside(lifeline: int, scratch: str) -> None:
    """Have a small process do the same: a call that holds Python's lock stops every thread here.

    It leaves this process's children, so that it is not counted among a call's, but not its group.
    """
    # A shell gives what it runs in the background no standard input: hence another number.
    script = (
        "exec 3<&0 >/dev/null 2>&1; "
        '( while read -r _ <&3; do :; done; rm -rf -- "$1"; kill -s KILL -- "-$2" ) &'
    )
    with suppress(FileNotFoundError):  # an image without a shell
        subprocess.run(
            ["/bin/sh", "-c", script, "watch", scratch, str(os.getpgrp())],
            stdin=lifeline,
            check=False,
            timeout=10,
        )


def remove_scratch(scratch: str) -> None:
    """Remove a worker's own directory."""
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)


async def scheduler_is_there(config: WorkerConfig) -> bool:
    """Whether a worker's scheduler answers; asks a few times, with a second in between."""
    arguments = _security(config).get_connection_args("worker") if config.security else {}
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


def _security(config: WorkerConfig) -> Security:
    return Security(require_encryption=True, **config.security)


def read_lifeline() -> tuple[WorkerConfig, int]:
    """Read the configuration from standard input, and take that away from what calls may read."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 65536)
        if not part:
            sys.exit("this program is started by scalable, with its configuration on stdin")
        line += part
    lifeline = os.dup(0)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    return WorkerConfig(**json.loads(line)), lifeline


def read_file(path: Path, name: str, preload: Sequence[str] = ()) -> WorkerConfig:
    """Read the configuration that the workers of a pool share.

    Parameters
    ----------
    path
        The file.
    name
        Name of this worker.
    preload
        Scripts to run before the worker starts.

    Raises
    ------
    SystemExit
        When others than its owner may read the file.
    """
    try:
        mode, text = path.stat().st_mode, path.read_text()
    except FileNotFoundError:
        sys.stderr.write(f"{path} is gone, and its cluster with it: nothing to do\n")
        sys.exit(0)
    if mode & 0o077:
        sys.exit(f"{path} can be read by others: it holds credentials, so it is not used")
    # Calls and what they start are not told of it: the directory is this worker's alone.
    scratch = os.environ.pop(SCRATCH, "") or tempfile.mkdtemp(prefix="scalable-")
    own = {"name": name, "local_directory": scratch, "preload": tuple(preload)}
    values = json.loads(text) | own
    return WorkerConfig(**values)


async def serve_while_scheduler_lives(config: WorkerConfig, shared: Path) -> None:
    """Run the worker; clear away what its cluster left behind where the scheduler is gone.

    Parameters
    ----------
    config
        What the worker needs to know.
    shared
        The directory of its configuration.
    """
    if await scheduler_is_there(config):
        told = await serve(config)
        if told or await scheduler_is_there(config):
            return
    else:
        sys.stderr.write(f"no scheduler at {config.scheduler} any more: nothing to do\n")
    if config.clear_away:
        shutil.rmtree(shared, ignore_errors=True)


def main() -> None:
    """Read the configuration, hold the lifeline where there is one, serve."""
    parent = os.getppid()
    if len(sys.argv) > 2:
        path = Path(sys.argv[1])
        config = read_file(path, sys.argv[2], sys.argv[3:])
        work: Coroutine[Any, Any, object] = serve_while_scheduler_lives(config, path.parent)
    else:
        config, lifeline = read_lifeline()
        work = serve(config)
        arguments = (lifeline, parent, config.local_directory)
        threading.Thread(target=end_with_parent, args=arguments, daemon=True).start()
    sys.path.extend(entry for entry in config.sys_path if entry not in sys.path)
    if config.dask_config:
        dask.config.update(dask.config.global_config, dask.config.deserialize(config.dask_config))
    # Our scratch directory holds Dask's, and goes first: what Dask says of that is only noise.
    logging.getLogger("distributed.diskutils").setLevel(logging.CRITICAL)
    try:
        asyncio.run(work)
    finally:
        remove_scratch(config.local_directory)


if __name__ == "__main__":
    main()
