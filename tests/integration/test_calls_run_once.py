"""Calls of executors begin once, and none is lost: cancelled calls, leaving workers, lost inputs."""

import gc
import os
import signal
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait

import pytest
from distributed import Client, Status, get_client

from manifests import TWO_POOLS
from scalable import ScalableClient
from scalable.dask_compat.scheduler import Stealing
from scalable.protocol.operations import EVERY
from scalable.scheduler import pool_scheduler
from scalable.worker import bundles

MANIFEST, WORKERS = TWO_POOLS, 3


pytestmark = pytest.mark.usefixtures("lost_soon")


def set_grace():
    bundles.INTERRUPT_GRACE_S = 0.2


@pytest.fixture
def client(session, eventually):
    # A test before may have ended a worker, which is replaced.
    eventually(lambda: [session.client.worker_count(tag) for tag in "ab"] == [2, 1])
    session.client.run(set_grace, on_error="ignore")
    return session.client


def double(x):
    return 2 * x


def note(path, x, gate=None):
    """Leave a line for each start of a call, and wait for a file."""
    with path.open("a") as file:
        file.write(f"{x}\n")
    if gate is not None:
        until_open(gate)
    return x


def stick(path, x):
    """Leave a line, and ignore every interrupt."""
    note(path, x)
    while True:
        try:
            while True:
                time.sleep(0.01)
        except BaseException:  # noqa: BLE001 - that is what is tried
            pass


def until_open(gate):
    while not gate.exists():
        time.sleep(0.01)


def starts(path):
    return path.read_text().split() if path.exists() else []


def begin_together(pool, calls, gate):
    """Submit tasks that travel in one bundle: the calls before were quick, and a slot is taken."""
    list(pool.map(double, range(2000)))
    blocker = pool.submit(until_open, gate)
    [pool.submit(double, x) for x in range(4)]
    futures = [pool.submit(*call) for call in calls]
    gate.touch()
    blocker.result(timeout=60)
    return futures


def test_a_cancelled_call_that_does_not_end_does_not_begin_again(client, tmp_path, eventually):
    path = tmp_path / "starts"
    with client.pool(tag="b") as pool:
        calls = [(stick, path, "stuck"), *((note, path, x) for x in range(100))]
        stuck, *others = begin_together(pool, calls, tmp_path / "together")
        eventually(lambda: "stuck" in starts(path))
        stuck.cancel()
        assert wait(others, timeout=60).not_done == set()
    assert sorted(starts(path)) == sorted(["stuck", *map(str, range(100))])


def ask_back_and_move(dask_scheduler):
    """Ask waiting bundles back, and move them to the pool's other worker at the same time."""
    stealing = Stealing(dask_scheduler)
    workers = [w for w in dask_scheduler.workers.values() if "a" in w.resources]
    waiting = [(w, task) for w in workers for task in stealing.movable(w)[1:]]
    for victim, task in waiting:
        (client,) = task.who_wants
        dask_scheduler.relay.interrupt(task.key, EVERY, client.client_key)
        stealing.move(task, victim, next(w for w in workers if w is not victim))
    return len(waiting)


def test_calls_that_are_asked_back_while_they_move_run_once(client, gate, tmp_path, eventually):
    path = tmp_path / "starts"
    pool = client.pool(tag="a")
    futures = [pool.submit(note, path, x, gate) for x in range(40)]
    eventually(lambda: len(starts(path)) == 2)
    eventually(lambda: client.run_on_scheduler(ask_back_and_move) > 0)
    gate.touch()
    assert [future.result(timeout=60) for future in futures] == list(range(40))
    assert sorted(starts(path), key=int) == list(map(str, range(40)))


def begin_and_end(path, gate):
    note(path, "begun", gate)
    note(path, "ended")


def test_a_worker_is_busy_although_no_client_wants_its_task(
    session, client, gate, tmp_path, eventually
):
    path = tmp_path / "starts"
    with Client(client.scheduler.address, security=client.security, set_as_default=False) as other:
        future = other.submit(begin_and_end, path, gate, resources={"b": 1})
        eventually(lambda: starts(path))
        future.cancel()
        (worker,) = [w for w in session.cluster.scheduler.workers.values() if "b" in w.resources]
        session.cluster.scale("b", 0)
        eventually(lambda: worker.status is Status.closing_gracefully)
        time.sleep(0.2)  # whether it is idle is looked at every 0.1 s
        assert client.worker_count("b") == 1
        gate.touch()
        eventually(lambda: client.worker_count("b") == 0)
    assert starts(path) == ["begun", "ended"]
    session.cluster.scale("b", 1)


def parent(path, gate):
    """Wait for another task, which waits for a file."""
    note(path, "parent")
    get_client().submit(until_open, gate, tag="a").result()


def test_a_call_that_waits_for_another_runs_once_although_its_worker_is_given_up(
    client, session, tmp_path, gate, eventually
):
    path, inventory = tmp_path / "starts", session.cluster.manager.inventory
    (first,) = inventory.names("b")
    waiting = client.submit(parent, path, gate, tag="b")
    eventually(lambda: starts(path) == ["parent"])
    stuck = client.submit(stick, path, "stuck", tag="b")  # in the slot of the task that waits
    eventually(lambda: starts(path) == ["parent", "stuck"])
    stuck.cancel()
    eventually(lambda: first not in inventory.names("b"), "a successor")
    assert client.submit(double, 1, tag="b").result(timeout=60) == 2
    gate.touch()
    waiting.result(timeout=60)
    eventually(lambda: first not in inventory.existing(), "the worker's end")
    assert starts(path) == ["parent", "stuck"]


def is_there(address, dask_scheduler):
    return address in dask_scheduler.workers


def test_ended_calls_do_not_run_again_when_their_worker_is_retired(
    client, tmp_path, gate, eventually
):
    path = tmp_path / "starts"
    with client.pool(tag="b") as pool, ThreadPoolExecutor() as threads:
        calls = [(note, path, x) for x in range(60)]
        calls.insert(10, (note, path, "long", gate))
        futures = begin_together(pool, calls, tmp_path / "together")
        # Ended calls do not wait for the end of their bundle.
        eventually(lambda: "long" in starts(path))
        wait(futures[:10], timeout=60)
        assert not futures[10].done()
        (address,) = client.run_on_scheduler(
            lambda dask_scheduler: [
                ws.address for ws in dask_scheduler.workers.values() if "b" in ws.resources
            ]
        )
        retired = threads.submit(client.retire_workers, [address])
        eventually(lambda: not client.run_on_scheduler(is_there, address))
        gate.touch()
        retired.result(timeout=60)
        assert wait(futures, timeout=60).not_done == set()
    found = starts(path)
    assert [found.count(str(x)) for x in range(60)] == [1] * 60


# Arguments and results ----------------------------------------------------------------------------


def fail_late(x, gate):
    until_open(gate)
    raise KeyError(x)


def late(x, gate):
    until_open(gate)
    return x


class Unsendable:
    """An object that can be made, and looks too large for a message, but cannot be sent."""

    def __sizeof__(self):
        return 1 << 24

    def __reduce__(self):
        raise ValueError("cannot be sent")


def make(sendable):
    return bytes(2_000_000) if sendable else Unsendable()


def end_a_worker(client):
    """Kill the worker that holds the most uploaded objects, and return how many were there."""
    held = {w: len(keys) for w, keys in client.has_what().items()}
    victim = max(held, key=held.get)
    os.kill(client.run(os.getpid, on_error="ignore")[victim], signal.SIGKILL)
    return held[victim]


def test_a_failed_argument_fails_its_call_alone(client, gate):
    with client.pool(tag="a") as pool:
        list(pool.map(double, range(2000)))  # many calls fit a bundle
        failed = client.submit(fail_late, "bad", gate, tag="b", pure=False)
        arguments = [*range(100), failed, *range(100)]
        futures = [pool.submit(double, x) for x in arguments]
        results = pool.imap(double, arguments)
        gate.touch()
        outcomes = [future.exception(timeout=60) for future in futures]
        assert [type(e) for e in outcomes if e is not None] == [KeyError]
        assert isinstance(outcomes[100], KeyError)
        assert [next(results) for _ in range(100)] == [2 * x for x in range(100)]
        with pytest.raises(KeyError):
            next(results)
        assert list(results) == [2 * x for x in range(100)]


def test_calls_behind_a_late_argument_do_not_wait_for_it(client, gate):
    with client.pool(tag="a") as pool:
        release = client.submit(late, 1, gate, tag="b", pure=False)
        behind = [pool.submit(double, {"nested": release}) for _ in range(5)]
        behind += [pool.submit(double, release) for _ in range(5)]
        others = [pool.submit(double, x) for x in range(100)]
        assert [f.result(timeout=60) for f in others] == [2 * x for x in range(100)]
        assert not any(f.done() for f in behind)
        pool.terminate()
        assert wait(behind, timeout=60).not_done == set()
        release.cancel()


def test_a_large_result_that_cannot_be_sent_fails_its_call_alone(client, gate):
    with client.pool(tag="b") as pool:
        sendable = [True, True, False, True]
        calls = [(make, each) for each in [*sendable, *[True] * 8]]
        futures = begin_together(pool, calls, gate)
        for future, expected in zip(futures, sendable, strict=False):
            if expected:
                assert len(future.result(timeout=60)) == 2_000_000
            else:
                with pytest.raises(ValueError, match="cannot be sent"):
                    future.result(timeout=60)


def test_large_arguments_survive_the_worker_that_holds_them(client, gate):
    with client.pool(tag="a") as pool:
        blockers = [pool.submit(until_open, gate) for _ in range(4)]
        calls = [pool.submit(len, bytes(2_000_000 + x)) for x in range(12)]
        results = pool.map(len, [bytearray(2_000_000 + x) for x in range(6)])
        assert end_a_worker(client)
        gate.touch()
        assert [f.result(timeout=60) for f in calls] == [2_000_000 + x for x in range(12)]
        assert list(results) == [2_000_000 + x for x in range(6)]
        wait(blockers, timeout=60)


def load(path, x):
    note(path, x)
    return bytearray([x]) * 3_000_000


def first_of(data, *, change=False):
    found = len(data), data[0]
    if change:
        data[0] = 0
    return found


def test_large_results_that_other_calls_take_stay_on_the_workers(client, tmp_path, monkeypatch):
    path, fetched, fetch = tmp_path / "starts", [], client._line.fetch

    async def record(future):
        fetched.append(future.key)
        return await fetch(future)

    monkeypatch.setattr(client._line, "fetch", record)
    with client.pool(tag="a") as pool, client.pool(tag="b") as other:
        loaded = [pool.submit(load, path, x) for x in range(5)]
        taken = [pool.submit(first_of, each, change=True) for each in loaded]
        again = [other.submit(first_of, data=each) for each in loaded]
        for x in range(5):
            assert taken[x].result(timeout=60) == again[x].result(timeout=60) == (3_000_000, x)
        assert fetched == []
        assert loaded[1].result(timeout=60) == bytearray([1]) * 3_000_000
        assert len(fetched) == 1
    assert sorted(starts(path)) == list("01234")


def test_a_lost_result_that_another_call_takes_is_computed_again(
    client, tmp_path, gate, eventually
):
    path = tmp_path / "starts"
    with client.pool(tag="b") as pool, client.pool(tag="a") as other:
        loaded = pool.submit(load, path, 7)
        blockers = [other.submit(until_open, gate) for _ in range(4)]
        taken = [other.submit(first_of, loaded) for _ in range(4)]
        wait([loaded], timeout=60)
        pid = pool.submit(os.getpid).result(timeout=60)
        (worker,) = (w for w, p in client.run(os.getpid, on_error="ignore").items() if p == pid)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: worker not in client.cluster.scheduler.workers, "the loss")
        gate.touch()
        assert [f.result(timeout=60) for f in taken] == [(3_000_000, 7)] * 4
        assert loaded.result(timeout=60)[0] == 7
        assert starts(path) == ["7", "7"]
        wait(blockers, timeout=60)


# Executors that nobody keeps, and pools without workers -------------------------------------------


def test_calls_of_a_dropped_executor_run_when_their_pool_gets_workers(
    session, tmp_path, eventually
):
    path = tmp_path / "starts"
    session.scale("b", 0)
    eventually(lambda: session.client.worker_count("b") == 0)
    session.client.pool(tag="b").submit(note, path, 1)
    gc.collect()
    session.scale("b", 1)
    eventually(lambda: starts(path) == ["1"])


def test_terminate_cancels_calls_that_wait_for_another_executor(client, gate):
    first, second = client.pool(tag="b"), client.pool(tag="a")
    running = first.submit(until_open, gate)
    behind = [second.submit(double, running)]
    behind.append(second.submit(double, behind[0]))
    second.terminate()
    assert wait(behind, timeout=60).not_done == set()
    for future in behind:
        with pytest.raises(CancelledError):
            future.result()
    assert not running.done()
    running.cancel()


# Clients that leave, and workers that do not arrive ------------------------------------------------


def hold(path, x):
    """Leave a line, run until an interrupt, and leave another line."""
    try:
        note(path, x)
        while True:
            time.sleep(0.01)
    finally:
        note(path, f"{x} ended")


def wanted(dask_scheduler, key):
    return len(dask_scheduler.tasks[key].who_wants)


def test_running_calls_of_a_client_that_has_left_end(client, tmp_path, eventually, monkeypatch):
    monkeypatch.setattr(pool_scheduler, "GRACE_S", 0.5)
    with client.pool(tag="b") as pool:  # a worker that earlier tests have left to end has ended
        assert pool.submit(double, 4).result(timeout=60) == 8
    bundled, single, shared = (tmp_path / name for name in ("bundled", "single", "shared"))
    with ScalableClient(client.scheduler.address, security=client.security) as other:
        other.pool(tag="b").map(hold, [bundled] * 3, range(3))
        futures = [other.submit(hold, p, 0, tag="a", key=p.name) for p in (single, shared)]
        eventually(lambda: all(starts(p) for p in (bundled, single, shared)))
        kept = client.submit(hold, shared, 0, tag="a", key=shared.name)
        eventually(lambda: client.run_on_scheduler(wanted, key=kept.key) == 2)
        assert not any(future.done() for future in futures)
    eventually(lambda: "0 ended" in bundled.read_text() and "0 ended" in single.read_text())
    with client.pool(tag="b") as pool:
        assert pool.submit(double, 4).result(timeout=60) == 8
    assert bundled.read_text() == "0\n0 ended\n"
    assert shared.read_text() == "0\n"
    kept.cancel()
    eventually(lambda: "ended" in shared.read_text())


def test_an_executor_hears_of_workers_that_come_after_a_reconnection(session, client, eventually):
    with (
        ScalableClient(client.scheduler.address, security=client.security) as other,
        other.pool(tag="b") as pool,
    ):
        assert pool.submit(double, 1).result(timeout=60) == 2

        def disconnect(dask_scheduler, client):
            dask_scheduler.client_comms[client].comm.abort()

        client.run_on_scheduler(disconnect, client=other.id)
        session.scale("b", 2)
        eventually(lambda: other.status == "running" and other._line.slots_of("b") == 2)
        assert pool.submit(double, 2).result(timeout=60) == 4
    session.scale("b", 1)
    eventually(lambda: client.worker_count("b") == 1)
