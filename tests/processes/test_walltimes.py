"""Workers whose walltime is nearly over: their results, and tasks that are too long for it."""

import asyncio
import os
import signal
import time

import pytest
from distributed.scheduler import KilledWorker

from scalable import ScalableSession
from scalable.protocol.failures import WalltimeReached


@pytest.fixture
def session():
    session = ScalableSession.local({"m": 2}, processes=True)
    with session as client:
        client.wait_for_workers(2, timeout=60)
        yield session


def made(value):
    return [value] * 1000


def runs_until(path):
    with open(f"{path}-starts", "a") as starts:
        starts.write(f"{os.getpid()}\n")
    while not os.path.exists(path):
        time.sleep(0.02)
    return "done"


def started(starts):
    return len(starts.read_text().split()) if starts.exists() else 0


def worker_of(session, key):
    """Name and process of the worker that runs a task or has its result."""
    (address,) = eventually_holders(session, key)
    facts = session.client.scheduler_info()["workers"][address]
    return facts["name"], session.client.run(os.getpid, workers=[address])[address]


def eventually_holders(session, key):
    client = session.client
    deadline = time.monotonic() + 60
    while True:
        found = [a for a, keys in client.processing().items() if key in keys]
        found = found or list(client.who_has().get(key, ()))
        if len(found) == 1 or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def ends(session, worker, left_s, walltime_s):
    """Say what a manager says of a worker whose job ends soon."""
    removals = session.cluster.manager.controller.removals

    async def drain():
        removals.drain({worker: "its walltime ends"}, {worker: (left_s, walltime_s)})

    loop = session.client.loop.asyncio_loop
    asyncio.run_coroutine_threadsafe(drain(), loop).result(30)


def test_results_leave_a_worker_while_its_task_runs(session, tmp_path, eventually):
    client, gate = session.client, tmp_path / "gate"
    result = client.submit(made, 7, tag="m", key="kept")
    result.result()
    name, pid = worker_of(session, "kept")
    address = next(iter(client.who_has([result])["kept"]))
    running = client.submit(
        runs_until,
        str(gate),
        tag="m",
        key="long",
        workers=[address],
        allow_other_workers=True,
    )
    eventually(lambda: os.path.exists(f"{gate}-starts"))
    ends(session, name, 30.0, 60.0)
    eventually(lambda: address not in client.who_has([result])["kept"])
    assert address in eventually_holders(session, "long"), "the task still runs there"
    os.kill(pid, signal.SIGKILL)
    assert result.result() == made(7)
    gate.touch()
    assert running.result(timeout=60) == "done"


def test_a_task_that_is_longer_than_the_walltime_fails_the_second_time(
    session, tmp_path, eventually, caplog
):
    client, gate = session.client, tmp_path / "gate"
    starts = tmp_path / "gate-starts"
    task = client.submit(runs_until, str(gate), tag="m", key="long", task="plain", pure=False)
    for number in (1, 2):
        eventually(lambda number=number: started(starts) == number)
        eventually(lambda: any(client.processing().values()))
        name, pid = worker_of(session, "long")
        assert pid == int(starts.read_text().split()[-1])
        # The heartbeat reports that the task has run for half of the time.
        eventually(lambda: any(c["state"] == "running" for c in [running_of(session, "long")]))
        ends(session, name, 1.0, 1.0)
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(KilledWorker) as caught:
        task.result(timeout=60)
    assert isinstance(caught.value, WalltimeReached)
    assert "task 'plain' ran" in str(caught.value)
    assert "until the walltime (00:00:01) of its worker" in str(caught.value)
    assert "set a longer walltime" in str(caught.value)
    eventually(lambda: "It is started again" in caplog.text)
    assert len(starts.read_text().split()) == 2


def running_of(session, key):
    """State of a task on its worker, once a heartbeat has reported half a second of it."""

    def look(dask_scheduler):
        task = dask_scheduler.tasks.get(key)
        worker = None if task is None else task.processing_on
        ran_s = 0.0 if worker is None else worker.executing.get(task, 0.0)
        return {"state": "running" if ran_s > 0.6 else "starting"}

    return session.client.run_on_scheduler(look)


def test_a_task_that_was_started_late_is_not_too_long(session, tmp_path, eventually):
    client, gate = session.client, tmp_path / "gate"
    starts = tmp_path / "gate-starts"
    task = client.submit(runs_until, str(gate), tag="m", key="long", pure=False)
    for number in (1, 2, 3):
        eventually(lambda number=number: started(starts) == number)
        name, pid = worker_of(session, "long")
        ends(session, name, 1.0, 3600.0)
        os.kill(pid, signal.SIGKILL)
    gate.touch()
    assert task.result(timeout=60) == "done"
