"""Worker processes whose scheduler was killed."""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest
from distributed import Client

from detached import change_constants
from scalable.worker.config import WorkerConfig

SCHEDULER = """
import asyncio
from distributed import Scheduler

async def main():
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        print(scheduler.address, flush=True)
        await scheduler.finished()

asyncio.run(main())
"""
#: Less than four attempts of ten seconds to reach the scheduler again.
BOUND_S = 40.0


@pytest.fixture
def scheduler():
    process = subprocess.Popen([sys.executable, "-c", SCHEDULER], stdout=subprocess.PIPE, text=True)
    process.address = process.stdout.readline().strip()
    yield process
    process.kill()
    process.communicate(timeout=30)


def wait_in_a_thread_that_is_no_daemon():
    import threading

    threading.Thread(target=threading.Event().wait).start()
    threading.Event().wait()


def test_a_busy_worker_ends_soon_after_its_scheduler_and_removes_its_files(
    scheduler, tmp_path, eventually, monkeypatch
):
    change_constants(tmp_path, monkeypatch, worker__program={"LAST_ANSWER_TIMEOUT_S": 1.0})
    files = tmp_path / "embedded"
    files.mkdir()
    config = WorkerConfig(scheduler.address, "w", clear_away=str(files))
    (tmp_path / "config.json").write_text(json.dumps(asdict(config)))
    (tmp_path / "config.json").chmod(0o600)
    command = [sys.executable, "-m", "scalable.worker.program", tmp_path / "config.json", "w"]
    worker = subprocess.Popen(command)
    try:
        with Client(scheduler.address) as client:
            client.wait_for_workers(1, timeout=60)
            future = client.submit(wait_in_a_thread_that_is_no_daemon)
            eventually(client.processing)
            eventually(lambda: client.run(lambda dask_worker: bool(dask_worker.active_threads)))
            scheduler.kill()
            worker.wait(timeout=BOUND_S)
            del future
        assert not files.exists()
    finally:
        worker.kill()
        worker.wait(timeout=30)
