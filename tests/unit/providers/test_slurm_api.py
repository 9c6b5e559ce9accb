"""Slurm's commands: whose jobs they ask for, and that they hold up nothing else."""

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from scalable.errors import ProviderError
from scalable.providers.slurm import api
from scalable.providers.slurm.api import COMMANDS_AT_ONCE, Slurm

HUNG_S = 30.0
#: More commands than asyncio's pool of threads ever has threads.
COMMANDS = 40


@pytest.fixture
def hung(monkeypatch):
    """Commands that end when the test ends; an event is set by the first one."""
    begun, release = threading.Event(), threading.Event()
    running = []

    def run(arguments, **_):
        running.append(arguments)
        begun.set()
        release.wait(HUNG_S)
        raise api.subprocess.TimeoutExpired(arguments, 0)

    monkeypatch.setattr(api.shutil, "which", lambda name: sys.executable)
    monkeypatch.setattr(api.subprocess, "run", run)
    yield begun, release, running
    release.set()


def test_other_work_in_threads_goes_on_while_slurm_hangs(hung):
    begun, release, running = hung

    async def main():
        slurm = Slurm()
        asked = [asyncio.create_task(slurm.queue()) for _ in range(COMMANDS)]
        await asyncio.to_thread(begun.wait, HUNG_S)
        try:
            return await asyncio.wait_for(asyncio.to_thread(lambda: "done"), HUNG_S / 3)
        finally:
            assert len(running) <= COMMANDS_AT_ONCE
            release.set()
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(answer, ProviderError) for answer in answers)

    assert asyncio.run(main()) == "done"


async def test_two_clients_of_slurm_do_not_wait_for_each_other(hung):
    _, release, running = hung
    first, second = Slurm(), Slurm()
    asked = [asyncio.create_task(first.queue()) for _ in range(COMMANDS)]
    while len(running) < COMMANDS_AT_ONCE:
        await asyncio.sleep(0.01)
    asked.append(asyncio.create_task(second.partitions()))
    while "partition" not in running[-1]:
        await asyncio.sleep(0.01)
    release.set()
    await asyncio.gather(*asked, return_exceptions=True)


# Users --------------------------------------------------------------------------------------------

UID = os.getuid()
LINES = f"1|N/A|ours|RUNNING|None|1:00|{UID}|\n2|N/A|theirs|RUNNING|None|1:00|{UID + 1}|\n"


@pytest.fixture
def squeue(monkeypatch):
    """What squeue was called with; like Slurm's, it succeeds with nothing for an unknown user."""
    calls, known = [], {str(UID)}

    def run(arguments, **_):
        calls.append(arguments)
        asked = [a.partition("=")[2] for a in arguments if a.startswith("--user=")]
        if asked and asked[0] not in known:
            error = f"squeue: error: Invalid user: {asked[0]}\n\n"
            return subprocess.CompletedProcess(arguments, 0, "", error)
        return subprocess.CompletedProcess(arguments, 0, LINES, "")

    monkeypatch.setattr(api.shutil, "which", lambda name: sys.executable)
    monkeypatch.setattr(api.subprocess, "run", run)
    return calls, known


def test_jobs_are_those_of_the_uid_whatever_the_user_is_called(squeue, monkeypatch):
    for name in ("USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody-else")
    assert [e.name for e in asyncio.run(Slurm().queue())] == ["ours"]
    assert f"--user={UID}" in squeue[0][0]


async def test_a_uid_without_a_name_finds_its_jobs_too(squeue):
    calls, known = squeue
    known.clear()
    slurm = Slurm()
    assert [[e.name for e in await slurm.queue()] for _ in range(2)] == [["ours"], ["ours"]]
    assert len(calls) == 3  # it has learnt that the user cannot be asked for
