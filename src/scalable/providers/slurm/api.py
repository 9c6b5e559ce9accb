"""Slurm's commands. Each has a timeout; errors carry Slurm's own message."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

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
#: Number of commands that run at the same time; further ones wait for their turn.
COMMANDS_AT_ONCE = 8
#: Largest number of jobs that one scancel names: the length of a command line is limited.
CANCEL_BATCH = 500
DEFAULT_MAX_ARRAY_SIZE = 1001
#: Beginnings of variables by which users filter jobs. They are removed, so that the commands show
#: every job of the user.
_FILTERS = ("SQUEUE_", "SCANCEL_")


def wait_for(asked: Coroutine[Any, Any, Result]) -> Result:
    """Run a request to Slurm and return its result, also from inside a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(asked)
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, asked).result()


class Slurm:
    """The commands of Slurm's client, run as the present user.

    The commands run in threads of this object, so that a Slurm that does not answer delays nothing
    else.

    Parameters
    ----------
    timeout_s
        Seconds that each command may take.

    Attributes
    ----------
    commands
        Number of commands that were run.
    """

    def __init__(self, timeout_s: float = COMMAND_TIMEOUT_S) -> None:
        self.commands = 0
        self._timeout_s = timeout_s
        # Names are no help: USER may be another's, and a uid need not have a name at all.
        self._uid = os.getuid()
        self._filters = True
        self._threads = ThreadPoolExecutor(COMMANDS_AT_ONCE, thread_name_prefix="slurm-command")

    async def submit(
        self, script: str, *, array: str | None, comment: str, test_only: bool = False
    ) -> int:
        """Submit a batch script; return the job's id.

        Parameters
        ----------
        script
            Text of the script.
        array
            Indices of the array, or None for one job.
        comment
            Comment that squeue shows.
        test_only
            Whether Slurm only checks that it would accept the script; the id is 0 then.
        """
        arguments = ["sbatch", "--parsable", f"--comment={comment}"]
        if array is not None:
            arguments.append(f"--array={array}")
        if test_only:
            arguments.append("--test-only")
        shown = await self._run(arguments, script, without=overriding(script))
        if test_only:
            return 0
        job = shown.strip().rpartition("\n")[2].partition(";")[0]
        if not job.isdigit():
            # The job may be in the queue nevertheless, where the next request finds it.
            said = shown.strip() or "nothing"
            raise ProviderError(f"sbatch did not name a job; it said: {said}", transient=True)
        return int(job)

    async def queue(self) -> list[Element]:
        """Return the user's jobs that Slurm still lists; each element of an array is one item."""
        asked = ["squeue", "--noheader", "--array", "--states=all", f"--format={SQUEUE_FORMAT}"]
        while True:
            by_user = [f"--user={self._uid}"] if self._filters else []
            done = await self._complete([*asked, *by_user])
            if not self._filters or not user_is_unknown(done.stderr):
                break
            # squeue succeeds with an empty list. The jobs of all users are listed with their uids.
            logger.debug("squeue knows no user %d: all jobs are asked for", self._uid)
            self._filters = False
        return [e for e in parse_queue(done.stdout) if e.uid in (None, self._uid)]

    async def cancel(self, elements: Sequence[str]) -> None:
        """Cancel jobs and elements (``12_3``); ended ones are ignored."""
        for start in range(0, len(elements), CANCEL_BATCH):
            await self._run(["scancel", "--quiet", *elements[start : start + CANCEL_BATCH]])

    async def max_array_size(self) -> int:
        """Return the largest size of a job array; 0 or 1 means that arrays are disabled."""
        value = parse_config(await self._run(["scontrol", "show", "config"]), "MaxArraySize")
        return int(value) if value and value.isdigit() else DEFAULT_MAX_ARRAY_SIZE

    async def partitions(self) -> list[dict[str, str]]:
        """Return every partition, as ``scontrol`` describes it."""
        shown = await self._run(["scontrol", "show", "partition", "--oneliner"])
        return [record for line in shown.splitlines() if (record := parse_record(line))]

    async def nodes(self) -> list[dict[str, str]]:
        """Return every node, as ``scontrol`` describes it."""
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
            for key, value in os.environ.items()
            if not key.startswith(_FILTERS) and key not in hidden
        }
        name = arguments[0]
        if shutil.which(name) is None:
            raise ProviderError(f"{name} is not on the PATH", hint="is this a login node?")
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
