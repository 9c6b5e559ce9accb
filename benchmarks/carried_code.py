"""Measure how the files of a workflow reach many workers that do not see them.

::

    python benchmarks/carried_code.py [--workers 50] [--size 5] [--parts 0.25 1 5]

The scheduler and each worker are real processes, forked from one that has imported everything,
with TLS on loopback. For each size of the parts in MB: the time in which the client packs and sends
an archive; the time until a call on each worker has imported a module and read a file from it; the
number of times that the scheduler sent the archive; and, in seconds of the CPU, what the scheduler
did meanwhile, and the longest time for which its event loop was busy with one thing. All stand
beside the same for calls without an archive.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from distributed import Security

from scalable.client.client import ScalableClient
from scalable.client.own_files import own_files
from scalable.protocol import archive
from scalable.protocol.credentials import new_credentials, security_of
from scalable.protocol.importing import Importer
from scalable.protocol.private_directory import make_private
from scalable.scheduler.pool_scheduler import PoolScheduler
from scalable.worker.config import WorkerConfig, security_fields
from scalable.worker.program import serve

TAG = "a"
TIMEOUT_S = 300
MODULE = """
from pathlib import Path

def where():
    return len((Path(__file__).parent / "data.bin").read_bytes())
"""
CALLER = "def call():\n    import carried_lazily\n    return carried_lazily.where()\n"


def credentials() -> dict[str, str]:
    authority, certificate, key = new_credentials()
    roles = {f"tls_{role}_cert": certificate for role in ("client", "scheduler", "worker")}
    keys = {name.replace("_cert", "_key"): key for name in roles}
    return {"tls_ca_file": authority, **roles, **keys}


def forked(run: Callable[[], Any]) -> int:
    """Run a function in a forked process; return the id of the process."""
    process = os.fork()
    if process:
        return process
    try:
        run()
    finally:
        os._exit(0)


async def schedule(pem: dict[str, str], pipe: int, part: int) -> None:
    archive.PART = part
    Importer("the scheduler").install()
    scheduler = PoolScheduler(
        host="127.0.0.1", port=0, protocol="tls://", security=security_of(pem), dashboard=False
    )
    await scheduler
    scheduler.code.carry()
    os.write(pipe, scheduler.address.encode() + b"\n")
    await scheduler.finished()


def work(address: str, security: Security, name: str) -> None:
    config = WorkerConfig(
        scheduler=address,
        name=name,
        resources={TAG: 1},
        local_directory=str(make_private("scalable")),
        security=security_fields(security),
        shares_files=False,
    )
    asyncio.run(serve(config))
    shutil.rmtree(config.local_directory, ignore_errors=True)


async def watch_loop(dask_scheduler: Any = None) -> None:
    """Keep the longest CPU time between two turns of the event loop, and its sum."""
    dask_scheduler.busy_s, dask_scheduler.longest_s = time.thread_time(), 0.0

    async def watch() -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            dask_scheduler.longest_s = max(dask_scheduler.longest_s, time.thread_time() - began)
            await asyncio.sleep(0.001)

    dask_scheduler.watching = asyncio.ensure_future(watch())


async def busy(dask_scheduler: Any = None) -> tuple[float, float]:
    """Return the CPU seconds since the last time, and the longest turn; begin anew."""
    now = time.thread_time()
    found = now - dask_scheduler.busy_s, dask_scheduler.longest_s
    dask_scheduler.busy_s, dask_scheduler.longest_s = now, 0.0
    return found


def times_sent(dask_scheduler: Any = None) -> int:
    return sum(dask_scheduler.code.files.sent.values())


def nothing() -> int:
    return 0


def on_each(client: ScalableClient, function: Callable[[], Any]) -> tuple[float, list[Any]]:
    """Return the seconds that a call on each worker takes, and the results."""
    workers = list(client.scheduler_info(n_workers=-1)["workers"])
    began = time.perf_counter()
    calls = [client.submit(function, workers=[worker], pure=False) for worker in workers]
    results = client.gather(calls)
    return time.perf_counter() - began, results


def measure(workers: int, size: int, part: int) -> dict[str, float]:
    archive.PART = part
    pem = credentials()
    security = security_of(pem)
    reading, writing = os.pipe()
    started = [forked(lambda: asyncio.run(schedule(pem, writing, part)))]
    with os.fdopen(reading) as pipe:
        address = pipe.readline().strip()
    names = [f"{TAG}-{number}" for number in range(workers)]
    started += [forked(partial(work, address, security, name)) for name in names]
    try:
        with ScalableClient(address, security=security, tags=[TAG]) as client:
            client.wait_for_workers(workers, timeout=TIMEOUT_S)
            client.run_on_scheduler(watch_loop)
            on_each(client, nothing)
            client.run_on_scheduler(busy)
            plain_s, _ = on_each(client, nothing)
            plain_cpu_s, plain_turn_s = client.run_on_scheduler(busy)
            before = client.run_on_scheduler(times_sent)
            Path("data.bin").write_bytes(random.Random(part).randbytes(size))
            began = time.perf_counter()
            client.sync_code()
            sent_s = time.perf_counter() - began
            caller = importlib.import_module("carried_caller")
            carried_s, results = on_each(client, caller.call)
            cpu_s, turn_s = client.run_on_scheduler(busy)
            assert results == [size] * workers, results
            return {
                "client s": sent_s,
                "workers s": carried_s,
                "(without) s": plain_s,
                "times sent": client.run_on_scheduler(times_sent) - before,
                "scheduler's CPU s": cpu_s,
                "(without) CPU s": plain_cpu_s,
                "longest turn CPU ms": 1000 * turn_s,
                "(without) CPU ms": 1000 * plain_turn_s,
            }
    finally:
        for process in reversed(started):
            os.kill(process, signal.SIGKILL)
        for process in started:
            os.waitpid(process, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--size", type=float, default=5.0, help="MB of files")
    parser.add_argument("--parts", type=float, nargs="+", default=[1.0], help="MB of one message")
    chosen = parser.parse_args()
    logging.getLogger("distributed").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="scalable-bench-") as place:
        os.environ["TMPDIR"] = str(Path(place) / "scratch")
        Path(os.environ["TMPDIR"]).mkdir(mode=0o700)
        project = Path(place) / "project"
        project.mkdir()
        os.chdir(project)
        (project / "carried_lazily.py").write_text(MODULE)
        (project / "carried_caller.py").write_text(CALLER)
        (project / "data.bin").write_bytes(b"")
        sys.modules["__main__"].__file__ = str(project / "script.py")
        sys.path.insert(0, str(project))
        for part in chosen.parts:
            pid = os.fork()  # each measure in a process without threads of the one before
            if not pid:
                own_files.read_again()
                found = measure(chosen.workers, int(chosen.size * 1e6), int(part * 2**20))
                shown = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
                print(
                    f"{chosen.workers} workers, {chosen.size:g} MB, parts of {part:g} MiB: {shown}"
                )
                sys.stdout.flush()
                os._exit(0)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
