"""Slurm's client commands. Each has a timeout, and errors contain Slurm's own message."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import subprocess
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import psutil

from scalable import settings
from scalable.errors import ProviderError
from scalable.manager.launcher import LimitReachedError
from scalable.providers.slurm.queue import (
    SQUEUE_FORMAT,
    Element,
    is_job_limit,
    is_transient,
    parse_config,
    parse_queue,
    parse_record,
    user_is_unknown,
)
from scalable.providers.slurm.render import overriding

logger = logging.getLogger("scalable.providers.slurm")

Result = TypeVar("Result")

COMMAND_TIMEOUT_S = 30.0
#: Number of commands that run at the same time. Others are queued.
COMMANDS_AT_ONCE = 8
#: Maximum number of jobs in one scancel command, because a command line is limited.
CANCEL_BATCH = 500
DEFAULT_MAX_ARRAY_SIZE = 1001
#: Prefixes of variables with which users filter jobs. They are removed, so that the commands list
#: every job of the user.
_FILTERS = ("SQUEUE_", "SCANCEL_", "SLURM_CLUSTERS")

#: Variables that were named in a warning, because sbatch does not get them.
_named: set[str] = set()


def wait_for(asked: Coroutine[Any, Any, Result]) -> Result:
    """Run a request to Slurm and return its result, even inside a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(asked)
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, asked).result()


class Slurm:
    """Runs Slurm's client commands as the current user, in threads outside the event loop."""

    def __init__(self, timeout_s: float = COMMAND_TIMEOUT_S) -> None:
        self.commands = 0
        self._timeout_s = timeout_s
        # User names are unreliable: USER may name another user, and a uid may have no name.
        self._uid = os.getuid()
        self._filters = True
        self._threads = ThreadPoolExecutor(COMMANDS_AT_ONCE, thread_name_prefix="slurm-command")

    async def submit(
        self, script: str, *, array: str | None, comment: str, test_only: bool = False
    ) -> int:
        """Submit a script, and return the job's id. ``test_only`` only checks it, and returns 0."""
        arguments = ["sbatch", "--parsable", f"--comment={comment}"]
        if array is not None:
            arguments.append(f"--array={array}")
        if test_only:
            arguments.append("--test-only")
        hidden = overriding(script) & os.environ.keys()
        if new := sorted(hidden - _named):
            _named.update(new)
            logger.warning(
                "not passed to sbatch: %s, which would override the manifest's values",
                ", ".join(f"{name}={os.environ[name]}" for name in new),
            )
        try:
            shown = await self._run(arguments, script, without=hidden)
        except ProviderError as error:
            if error.transient or "invalid partition" not in error.message.lower():
                raise
            raise ProviderError(error.message, hint=await self._known_partitions()) from None
        if test_only:
            return 0
        job = shown.strip().rpartition("\n")[2].partition(";")[0]
        if not job.isdigit():
            # The job may be in the queue anyway. The next request finds it there.
            said = shown.strip() or "nothing"
            raise ProviderError(
                f"sbatch did not print a job id; its output: {said}", transient=True
            )
        return int(job)

    async def queue(self) -> list[Element]:
        """Return the user's jobs that Slurm still lists, one item per array element."""
        asked = ["squeue", "--noheader", "--array", "--states=all", f"--format={SQUEUE_FORMAT}"]
        while True:
            by_user = [f"--user={self._uid}"] if self._filters else []
            done = await self._complete([*asked, *by_user])
            if not self._filters or not user_is_unknown(done.stderr):
                break
            # squeue exits with 0 and an empty list. Without --user it lists the uid of every job.
            logger.debug("squeue does not accept user %d, so all jobs are listed", self._uid)
            self._filters = False
        return [e for e in parse_queue(done.stdout) if e.uid in (None, self._uid)]

    async def cancel(self, elements: Sequence[str]) -> None:
        """Cancel jobs and array elements (``12_3``). Finished ones are ignored."""
        for start in range(0, len(elements), CANCEL_BATCH):
            await self._run(["scancel", "--quiet", *elements[start : start + CANCEL_BATCH]])

    async def max_array_size(self) -> int:
        """Return the largest size of a job array. 0 or 1 means that arrays are disabled."""
        value = parse_config(await self._run(["scontrol", "show", "config"]), "MaxArraySize")
        return int(value) if value and value.isdigit() else DEFAULT_MAX_ARRAY_SIZE

    async def partitions(self) -> list[dict[str, str]]:
        shown = await self._run(["scontrol", "show", "partition", "--oneliner"])
        return [record for line in shown.splitlines() if (record := parse_record(line))]

    async def _known_partitions(self) -> str:
        """Return a hint with the partitions that the user may see."""
        try:
            names = (await self._run(["sinfo", "--noheader", "--format=%R"])).split()
        except ProviderError as error:
            return f"sinfo lists the partitions; it failed here: {error.message}"
        return f"the partitions are {', '.join(sorted(set(names)))}: set queue in the target"

    async def nodes(self) -> list[dict[str, str]]:
        shown = await self._run(["scontrol", "show", "node", "--oneliner"])
        return [record for line in shown.splitlines() if (record := parse_record(line))]

    async def _run(
        self,
        arguments: Sequence[str],
        standard_input: str | None = None,
        without: Iterable[str] = (),
    ) -> str:
        return (await self._complete(arguments, standard_input, without)).stdout

    async def _complete(
        self,
        arguments: Sequence[str],
        standard_input: str | None = None,
        without: Iterable[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        hidden = frozenset(without)
        environment = {
            key: value
            for key, value in settings.outside_job(os.environ).items()
            if not key.startswith(_FILTERS) and key not in hidden
        }
        name = arguments[0]
        if shutil.which(name) is None:
            raise ProviderError(f"{name} is not on PATH", hint="run this on a login node")
        run = partial(
            subprocess.run,
            list(arguments),
            input=standard_input,
            stdin=None if standard_input is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",  # an invalid byte in another job's name is harmless
            env=environment,
            timeout=self._timeout_s,
            check=False,
        )
        self.commands += 1
        logger.debug("running %s", arguments)
        try:
            done = await asyncio.get_running_loop().run_in_executor(self._threads, run)
        except subprocess.TimeoutExpired:
            raise ProviderError(
                f"{name} did not answer within {self._timeout_s:g} s", transient=True
            ) from None
        if done.returncode < 0:
            message = f"{name} was killed by signal {-done.returncode}"
            raise ProviderError(message, transient=True)
        if done.returncode:
            words = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
            logger.debug("%s was refused: %s", name, words)
            message = f"Slurm refused {name}: {words}"
            if is_job_limit(words):
                raise LimitReachedError(message)
            raise ProviderError(message, transient=is_transient(words))
        return done


# Network ------------------------------------------------------------------------------------------

PORTS_TRIED = 200


def address_of(interface: str) -> str:
    """Return an interface's IPv4 address, or raise ProviderError with a list of the interfaces."""
    addresses: dict[str, str] = {}
    for name, found in psutil.net_if_addrs().items():
        for address in found:
            if address.family == socket.AF_INET:
                addresses.setdefault(name, address.address)  # Dask takes the first, too
    if interface not in addresses:
        known = ", ".join(f"{name} ({address})" for name, address in sorted(addresses.items()))
        raise ProviderError(
            f"there is no network interface {interface!r} with an IPv4 address here",
            hint=f"choose one of: {known}",
        )
    return addresses[interface]


def free_port(host: str, first: int) -> int:
    """Return the first free port from ``first`` on, or raise ProviderError after 200 ports."""
    for port in range(first, min(first + PORTS_TRIED, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise ProviderError(
        f"no port of {first} to {first + PORTS_TRIED - 1} is free on {host}",
        hint="set scheduler_port",
    )
