"""Programs that run in pods which something starts again."""

import asyncio
import subprocess
import sys

import pytest
from distributed import Scheduler

from scalable.clusters.programs import keeper
from scalable.protocol import operations
from scalable.worker.config import WorkerConfig
from scalable.worker.program import refuse_second_start


def test_a_program_that_may_run_once_is_not_started_again(tmp_path):
    mark = tmp_path / "began"
    command = [sys.executable, "-m", "scalable.clusters.programs.once", mark, sys.executable, "-c"]
    first = subprocess.run([*command, "raise SystemExit(3)"], check=False)
    again = subprocess.run([*command, "print('runs')"], check=False, capture_output=True)
    assert first.returncode == 3
    assert (again.returncode, again.stdout) == (operations.STARTED_AGAIN, b"")
    assert b"not started again" in again.stderr


async def scheduler_at(port=0):
    return await Scheduler(host="127.0.0.1", port=port, dashboard_address=":0", dashboard=False)


def test_the_keeper_ends_soon_after_the_scheduler(monkeypatch):
    monkeypatch.setattr(keeper, "PERIOD_S", 0.05)
    monkeypatch.setattr(keeper, "ANSWER_TIMEOUT_S", 1.0)
    monkeypatch.setattr(keeper, "CLOSED_S", 0.25)

    async def run():
        scheduler = await scheduler_at()
        keeping = asyncio.ensure_future(keeper.wait_for_end(scheduler.address, None))
        await asyncio.wait([keeping], timeout=0.4)
        assert not keeping.done()
        await scheduler.close()
        return await asyncio.wait_for(keeping, 60)

    assert "has not answered" in asyncio.run(run())


def test_the_keeper_ends_when_another_scheduler_answers(monkeypatch):
    monkeypatch.setattr(keeper, "PERIOD_S", 0.05)

    async def run():
        first = await scheduler_at()
        port = first.port
        keeping = asyncio.ensure_future(keeper.wait_for_end(first.address, None))
        await asyncio.wait([keeping], timeout=0.4)
        await first.close()
        second = await scheduler_at(port)
        reason = await asyncio.wait_for(keeping, 60)
        await second.close()
        return reason

    assert "another scheduler" in asyncio.run(run())


def test_a_worker_of_a_name_that_has_begun_ends_before_it_connects():
    async def run():
        begun = set()

        async def begin(worker):
            return worker not in begun and not begun.add(worker)

        scheduler = await scheduler_at()
        scheduler.handlers["scalable_begin"] = begin
        config = WorkerConfig(scheduler.address, "w", once=True)
        await refuse_second_start(config)
        with pytest.raises(SystemExit) as caught:
            await refuse_second_start(config)
        await scheduler.close()
        return caught.value.code

    assert asyncio.run(run()) == operations.BEGAN_BEFORE
