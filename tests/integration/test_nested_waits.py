"""Calls that wait for nested calls out of sight, after their release, again, or through threads."""

import concurrent.futures
import threading
import time
import uuid

import pytest
from distributed import as_completed, get_client, wait

from scalable.scheduler import explaining
from scalable.worker import slots

MANIFEST = """\
version: 1
project: {name: waits}
targets:
  local: {provider: local, processes: %s}
components:
  a: {}
"""


def notice_soon():
    slots.UNSEEN_WAIT_S, slots.BUSY_WAIT_S, slots.WATCH_S = 0.1, 0.2, 0.05
    slots.LEND_EVERY_S = 60.0


@pytest.fixture(scope="module", params=[True, False], ids=["processes", "threads"])
def client(request, running_session):
    with (
        running_session(MANIFEST % str(request.param).lower(), workers=1) as session,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name in ("UNSEEN_WAIT_S", "BUSY_WAIT_S", "WATCH_S", "LEND_EVERY_S"):
            patch.setattr(slots, name, getattr(slots, name))  # set back for other tests
        patch.setattr(explaining, "WAIT_BEFORE_WORD_S", 1e9)  # calls that cannot run do not fail
        session.client.run(notice_soon)
        yield session.client


in_processes = pytest.mark.parametrize("client", [True], ids=["processes"], indirect=True)


def nap(seconds):
    time.sleep(seconds)
    return 1


# Waits out of sight after a wait that was seen ----------------------------------------------------


def by_as_completed_after_wait():
    client = get_client()
    futures = [client.submit(nap, 0.05, tag="a") for _ in range(4)]
    _, others = wait(futures, return_when="FIRST_COMPLETED")
    return sum(1 for _ in as_completed(others)) and 1


def by_event_after_wait():
    client, over = get_client(), threading.Semaphore(0)
    futures = [client.submit(nap, 0.05, tag="a") for _ in range(4)]
    for future in futures:
        future.add_done_callback(lambda _: over.release())
    wait(futures, return_when="FIRST_COMPLETED")
    for _ in futures:
        over.acquire()
    return 1


def by_pool_futures_after_result():
    with get_client().pool(tag="a") as pool:
        futures = [pool.submit(nap, 0.05) for _ in range(4)]
        futures[0].result()
        concurrent.futures.wait(futures)
        return 1


def by_busy_polling():
    client = get_client()
    future = client.submit(nap, 0.05, tag="a")
    while not future.done():
        pass
    return 1


@pytest.mark.parametrize(
    "way",
    [
        by_as_completed_after_wait,
        by_event_after_wait,
        by_pool_futures_after_result,
        by_busy_polling,
    ],
)
def test_a_call_that_waits_out_of_sight_lends_its_slot(client, way):
    assert client.submit(way, tag="a").result(timeout=60) == 1


# Waits of calls that nobody wants any more --------------------------------------------------------


def wait_when_told(path):
    (path / "began").touch()
    while not (path / "go").exists():
        time.sleep(0.01)
    get_client().submit(nap, 0, tag="a").result()
    (path / "ended").touch()


def states(dask_worker):
    return [task.state for task in dask_worker.state.tasks.values()]


def test_a_call_whose_future_was_released_lends_its_slot(client, tmp_path, eventually):
    parent = client.submit(wait_when_told, tmp_path, tag="a")
    eventually((tmp_path / "began").exists)
    parent.release()
    eventually(lambda: any("cancelled" in found for found in client.run(states).values()))
    (tmp_path / "go").touch()
    assert client.submit(nap, 0, tag="a").result(timeout=60) == 1
    eventually((tmp_path / "ended").exists)


# Waits for calls without tag ----------------------------------------------------------------------


def wait_for_untagged(path):
    client = get_client()
    client.submit(nap, 0, tag="a").result()
    (path / "waited").touch()
    while not (path / "other-began").exists():
        time.sleep(0.01)
    time.sleep(0.15)  # the other call waits, so that all threads are taken
    untagged = client.submit(nap, 0)
    time.sleep(0.15)  # the worker has begun the call, and has no thread for it
    return untagged.result()


def wait_for_other(path):
    future = get_client().get_dataset("parent")
    (path / "other-began").touch()
    return future.result()


def test_a_call_without_tag_gets_a_thread_when_its_parent_waits(client, tmp_path, eventually):
    parent = client.submit(wait_for_untagged, tmp_path, tag="a")
    client.publish_dataset(parent=parent)
    eventually((tmp_path / "waited").exists)
    other = client.submit(wait_for_other, tmp_path)
    assert parent.result(timeout=60) == other.result(timeout=60) == 1


# Waits in threads that a call has started --------------------------------------------------------


def by_own_threads():
    client = get_client()
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        futures = [threads.submit(lambda: client.submit(nap, 0, tag="a").result())] * 3
        return sum(future.result() for future in futures) // 3


@in_processes
def test_a_call_that_waits_through_its_own_threads_lends_its_slot(client):
    assert client.submit(by_own_threads, tag="a").result(timeout=60) == 1


# How much runs and waits at once ------------------------------------------------------------------


def running_in(path):
    return len(list(path.glob("began-*"))) - len(list(path.glob("ended-*")))


def count_while(path, act):
    """Return the number of tasks that were between the beginning and the end of `act` at once."""
    name = uuid.uuid4()
    (path / f"began-{name}").touch()
    running = running_in(path)
    act()
    (path / f"ended-{name}").touch()
    return running


def begin_and_make_a_call_that_waits(path):
    (path / f"began-{uuid.uuid4()}").touch()
    return get_client().submit(nap, 0, workers=["nowhere"])


def wait_for_result(path):
    begin_and_make_a_call_that_waits(path).result()


def wait_for_pool(path):
    waiting = begin_and_make_a_call_that_waits(path)
    with get_client().pool(tag="a") as pool:
        pool.submit(nap, waiting).result()


@pytest.mark.parametrize("wait", [wait_for_result, wait_for_pool])
def test_queued_calls_do_not_all_wait_for_nested_calls_at_once(client, wait, tmp_path, eventually):
    calls = client.map(wait, [tmp_path] * 30, tag="a")
    try:
        eventually(lambda: running_in(tmp_path) >= slots.WAITING_PER_SLOT)
        time.sleep(0.2)  # time for others to begin
        assert running_in(tmp_path) < 20  # without a limit all 30
    finally:
        client.cancel(calls)
    assert client.submit(nap, 0, tag="a").result(timeout=60) == 1


def compute(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))


def wait_unseen_and_compute(path):
    client, over = get_client(), threading.Event()
    client.submit(nap, 0, tag="a").add_done_callback(lambda _: over.set())
    over.wait()
    return count_while(path, lambda: compute(0.25))


@in_processes
def test_calls_that_compute_after_an_unseen_wait_do_not_add_up(client, tmp_path):
    calls = client.map(wait_unseen_and_compute, [tmp_path] * 3, tag="a")
    assert max(client.gather(calls)) <= 2
