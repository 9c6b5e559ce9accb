"""Many calls on real worker processes: the verbs, failures, cancellation, lost workers."""

import asyncio
import concurrent.futures
import contextlib
import itertools
import operator
import os
import signal
import threading
import time
from concurrent.futures import CancelledError, as_completed, wait
from functools import partial

import distributed
import pytest
from distributed import get_client, secede
from distributed.threadpoolexecutor import thread_state

from manifests import TWO_POOLS
from scalable import ClusterError, ScalableClient, ScalableSession
from scalable.client import futures
from scalable.worker import bundles

MANIFEST, WORKERS = TWO_POOLS, 3


pytestmark = pytest.mark.usefixtures("lost_soon")


@pytest.fixture
def pool(client):
    with client.executor(tag="a") as pool:
        yield pool


@pytest.fixture
def soon_given_up(client, eventually):
    """Have workers given up soon after an interrupt that their calls do not follow."""

    def set_grace():
        bundles.INTERRUPT_GRACE_S = 0.2

    def all_have_it():
        with contextlib.suppress(OSError):  # a test before has ended a worker, which is replaced
            return len(client.run(set_grace)) == 3
        return False

    eventually(all_have_it)


def double(x):
    return 2 * x


def fail_at_three(x):
    if x == 3:
        raise KeyError("three")
    return x


def nap(seconds):
    time.sleep(seconds)
    return seconds


def wait_for(gate):
    while not gate.exists():
        time.sleep(0.01)


def nap_where(seconds):
    time.sleep(seconds)
    return os.getpid()


def spin():
    while True:
        pass


def block():
    """Wait where no interrupt arrives."""
    threading.Event().wait()


def note(path, x, seconds=0.0):
    """Leave a line for each run of a call, once it has ended."""
    time.sleep(seconds)
    with path.open("a") as file:
        file.write(f"{x}\n")
    return os.getpid()


# The verbs -----------------------------------------------------------------------------------------


def test_futures_are_real_ones(pool):
    futures = [pool.submit(double, i) for i in range(200)]
    assert all(isinstance(f, concurrent.futures.Future) for f in futures)
    done, left = wait(futures, timeout=60)
    assert (len(done), len(left)) == (200, 0)
    assert sorted(f.result() for f in as_completed(futures)) == [2 * i for i in range(200)]
    called = []
    futures[0].add_done_callback(called.append)
    assert called == [futures[0]]


def test_many_arguments_of_half_a_megabyte_cause_no_warning_of_dask(pool):
    list(pool.map(len, [os.urandom(500_000) for _ in range(4)]))  # their sizes are known now
    assert list(pool.map(len, [os.urandom(500_000) for _ in range(80)])) == [500_000] * 80


def test_a_future_can_be_awaited(pool):
    async def scenario():
        return await asyncio.wrap_future(pool.submit(double, 21))

    assert asyncio.run(scenario()) == 42


def test_map_has_the_semantics_of_an_executor(pool, gate):
    assert list(pool.map(double, range(3000))) == [2 * i for i in range(3000)]
    assert list(pool.map(operator.add, [1, 2, 3], [10, 20])) == [11, 22]
    assert list(pool.map(double, [])) == []
    results = pool.map(fail_at_three, range(5))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="three"):
        next(results)
    with pytest.raises(TimeoutError):
        list(pool.map(wait_for, [gate], timeout=0.2))
    gate.touch()


def test_the_verbs_of_multiprocessing(pool, eventually):
    assert pool.apply(pow, (2, 5)) == 32
    assert pool.apply(int, ("ff",), {"base": 16}) == 255
    assert pool.apply_async(pow, (2, 5)).get(timeout=60) == 32
    assert pool.starmap(pow, [(2, 3), (3, 2, 5)]) == [8, 4]
    assert pool.starmap(pow, []) == []
    assert pool.map_async(double, range(5)).get(timeout=60) == [0, 2, 4, 6, 8]
    assert list(pool.imap(double, range(5))) == [0, 2, 4, 6, 8]
    assert sorted(pool.imap_unordered(double, range(5))) == [0, 2, 4, 6, 8]
    for verb in pool.imap, pool.imap_unordered:  # an error does not end them
        results, kinds = verb(fail_at_three, range(6), chunksize=2), []
        for _ in range(6):
            try:
                kinds.append(type(next(results)))
            except KeyError as error:
                kinds.append(type(error))
        assert sorted(map(str, kinds)) == sorted(map(str, [int] * 5 + [KeyError]))
        assert list(results) == []
    told = []
    pool.apply_async(double, (4,), callback=told.append).wait(60)
    pool.apply_async(fail_at_three, (3,), error_callback=told.append).wait(60)
    assert told[0] == 8
    assert isinstance(told[1], KeyError)


def test_callbacks_have_run_when_the_wait_is_over(pool, caplog):
    told = []

    def slow(value):
        time.sleep(0.05)
        told.append(value)
        raise RuntimeError("this callback fails")

    for wait_for in (lambda f: f.wait(60), lambda f: f.exception(60), lambda f: wait([f], 60)):
        wait_for(pool.apply_async(double, (4,), callback=slow))
        assert told.pop() == 8
        wait_for(pool.map_async(double, range(3), callback=slow))
        assert told.pop() == [0, 2, 4]
        wait_for(pool.apply_async(fail_at_three, (3,), error_callback=slow))
        assert isinstance(told.pop(), KeyError)
    assert caplog.text.count("this callback fails") >= 9


@pytest.mark.parametrize("verb", ["imap", "imap_unordered"])
def test_endless_iterables_are_read_as_workers_need_them(pool, verb):
    read = itertools.count()
    results = getattr(pool, verb)(double, read)
    taken = list(itertools.islice(results, 3000))
    assert verb == "imap_unordered" or taken == [2 * x for x in range(3000)]
    assert len(set(taken)) == 3000
    assert next(read) < 500_000
    del results
    assert pool.submit(double, 4).result(timeout=60) == 8


def test_functions_of_this_process_and_closures_travel(pool):
    offset = 40
    assert pool.submit(lambda x, *, y: x + y + offset, 1, y=1).result(timeout=60) == 42


def test_calls_run_where_their_tag_is(client):
    with client.pool(tag="a") as ours, client.pool(tag="b") as theirs:
        a = set(ours.map(lambda _: os.getpid(), range(500)))
        b = set(theirs.map(lambda _: os.getpid(), range(500)))
    assert not a & b
    assert len(b) == 1


def test_pool_is_another_name_of_executor():
    assert ScalableClient.pool is ScalableClient.executor


def test_an_unknown_tag_is_refused(client):
    with pytest.raises(Exception, match="no pool has the tag 'c'"):
        client.pool(tag="c")
    with pytest.raises(Exception, match="timeout=0"):
        client.pool(tag="a", timeout=0)
    with pytest.raises(ClusterError, match="timeout='soon' is not a duration"):
        client.pool(tag="a", timeout="soon")


# Arguments -----------------------------------------------------------------------------------------


class Box:
    def __init__(self, content):
        self.content = content


def test_futures_as_arguments(client, pool):
    first = pool.submit(nap, 0.2)
    assert pool.submit(double, first).result(timeout=60) == 0.4
    failed = pool.submit(fail_at_three, 3)
    with pytest.raises(KeyError):
        pool.submit(double, failed).result(timeout=60)
    dask = client.submit(double, 4, tag="b")
    assert pool.submit(double, dask).result(timeout=60) == 16
    with pytest.raises(TypeError, match=r"cannot be pickled: pass it to submit\(\)"):
        pool.submit(id, Box(first)).result(timeout=60)
    assert pool.submit(sum, [first, 1]).result(timeout=60) == 1.2


def test_an_object_that_was_sent_is_used_anywhere(client, pool):
    sent = client.send(list(range(1000)))
    assert pool.submit(sum, sent).result(timeout=60) == 499500
    nested = pool.submit(lambda box: sum(box.content["deep"][0]), Box({"deep": [sent]}))
    assert nested.result(timeout=60) == 499500
    assert list(pool.map(lambda x, values: values[x], range(3), [sent] * 3)) == [0, 1, 2]


def test_scattered_objects_are_used_as_in_dask(client, pool):
    numbers = client.scatter([1, 2, 3])
    assert client.gather(client.map(double, numbers, tag="a")) == [2, 4, 6]
    assert list(pool.map(double, numbers)) == [2, 4, 6]
    nested = pool.submit(lambda box: sum(box.content["deep"][0]), Box({"deep": [numbers]}))
    assert nested.result(timeout=60) == 6
    named = client.scatter({"high-scattered": 5, "low-scattered": 3})
    both = [named["high-scattered"], named["low-scattered"]]
    assert client.submit(operator.sub, *both, tag="b").result(timeout=60) == 2
    one, same, other = (client.scatter(Box("a"), hash=hashed) for hashed in (True, True, False))
    assert one.key == same.key != other.key
    table = client.scatter({1, 2}, hash=False)
    assert sorted(client.gather(list(table))) == [1, 2]


def test_scattered_objects_go_to_the_workers_that_are_named(client, pool):
    workers = client.scheduler_info(n_workers=-1)["workers"]
    (address,) = [a for a, worker in workers.items() if "b" in worker["resources"]]
    (there,) = client.scatter([bytes(2_000_000)], workers=[address])
    assert client.who_has(there)[there.key] == (address,)
    assert pool.submit(len, there).result(timeout=60) == 2_000_000
    everywhere = client.scatter("everywhere", broadcast=True, hash=False)
    assert set(client.who_has(everywhere)[everywhere.key]) == set(workers)


def test_a_task_scatters(client):
    assert client.submit(scatter_in_task, [1, 2], tag="a").result(timeout=60) == 6


def scatter_in_task(numbers):
    client = get_client()
    return sum(client.gather(client.map(double, client.scatter(numbers), tag="b")))


def test_large_results_and_arguments(pool):
    large = b"x" * 5_000_000
    assert pool.submit(len, large).result(timeout=60) == 5_000_000
    assert len(pool.submit(bytes, 7_000_000).result(timeout=60)) == 7_000_000
    assert [len(r) for r in pool.map(bytes, [10, 3_000_000, 20])] == [10, 3_000_000, 20]


# Failures ------------------------------------------------------------------------------------------


def test_one_failing_call_fails_alone_and_shows_where(pool):
    futures = [pool.submit(fail_at_three, i) for i in range(200)]
    assert [f.result(timeout=60) for f in futures if f is not futures[3]] == [
        i for i in range(200) if i != 3
    ]
    with pytest.raises(KeyError, match="three") as raised:
        futures[3].result()
    assert raised.traceback[-1].name == "fail_at_three"


def test_a_lost_worker_costs_only_what_had_not_finished(pool, tmp_path, client):
    path = tmp_path / "runs"
    futures = [pool.submit(note, path, i, 0.03) for i in range(60)]
    while len(done := [f for f in futures if f.done()]) < 20:
        time.sleep(0.01)
    victim = done[0].result()
    finished = {i for i, f in enumerate(futures) if f.done()}
    os.kill(victim, signal.SIGKILL)
    for future in futures:
        future.result(timeout=60)
    runs = [int(line) for line in path.read_text().split()]
    assert set(runs) == set(range(60))
    assert all(runs.count(i) == 1 for i in finished)


# Cancelling ----------------------------------------------------------------------------------------


def test_waits_take_durations_as_strings(pool, gate):
    waiting = pool.submit(wait_for, gate)
    with pytest.raises(TimeoutError):
        waiting.result("10 ms")
    with pytest.raises(TimeoutError):
        next(pool.map(wait_for, [gate], timeout="10 ms"))
    waiting.wait("10 ms")
    with pytest.raises(ValueError, match="timeout='soon' is not a duration"):
        waiting.exception("soon")
    gate.touch()
    assert waiting.exception("1 min") is None


def waited(gate):
    """Wait in a task for one of its tasks, which needs the slot of this one."""
    client = get_client()
    with client.executor(tag="b") as pool:
        futures = [pool.submit(wait_for, gate), client.submit(double, 1, tag="b")]
        return sorted(str(future.result()) for future in distributed.wait(futures).done)


def test_dasks_wait_waits_for_calls_of_executors_too(client, pool, gate):
    call, late = pool.submit(wait_for, gate), client.submit(wait_for, gate, tag="a")
    ended = client.submit(double, 1, tag="b")
    first = distributed.wait([call, [ended, late]], return_when="FIRST_COMPLETED", timeout=60)
    assert (first.done, first.not_done) == ({ended}, {call, late})
    with pytest.raises(TimeoutError):
        distributed.wait([call, ended], timeout=0.05)
    assert not call.done()
    with pytest.raises(NotImplementedError):
        distributed.wait([call], return_when="FIRST_EXCEPTION")
    with pytest.raises(TypeError, match="non-numeric"):
        distributed.wait(call, ended)
    gate.touch()
    assert distributed.wait([call, late, ended], timeout=60).done == {call, late, ended}
    assert distributed.wait([call]).not_done == set()
    assert client.submit(waited, gate, tag="b").result(timeout=60) == ["2", "None"]


def test_a_wait_that_takes_no_dask_futures_stops_no_executor(client, pool, monkeypatch, caplog):
    monkeypatch.setattr(futures, "HELD_S", 0.2)
    call = pool.submit(double, 3)
    # wait() takes all locks, and keeps those that it has where it finds a future without one.
    thread = threading.Thread(target=call._condition.acquire)
    thread.start()
    thread.join()
    assert pool.submit(double, 4).result(timeout=60) == 8
    assert "with distributed.wait" in caplog.text


def test_a_lock_that_was_taken_over_is_given_back_by_all_that_have_had_it(monkeypatch):
    monkeypatch.setattr(futures, "HELD_S", 0.1)
    condition, held, taken = futures.OwnCondition(), threading.Event(), threading.Event()

    def hold():
        with condition:
            held.set()
            assert taken.wait(60)

    with concurrent.futures.ThreadPoolExecutor() as threads:
        slow = threads.submit(hold)
        assert held.wait(60)
        with condition:
            taken.set()
        assert slow.exception(60) is None
        assert condition.acquire(timeout=60)


def test_cancelled_waiting_calls_never_run(pool, tmp_path, gate):
    path = tmp_path / "runs"
    blockers = [pool.submit(wait_for, gate) for _ in range(4)]
    waiting = [pool.submit(note, path, i) for i in range(10)]
    assert all(f.cancel() for f in waiting)
    with pytest.raises(CancelledError):
        waiting[0].result(timeout=60)
    gate.touch()
    wait(blockers, timeout=60)
    assert pool.submit(double, 1).result(timeout=60) == 2
    assert not path.exists()


@pytest.mark.usefixtures("soon_given_up")
@pytest.mark.parametrize("call", [spin, block])
def test_cancelling_what_runs_frees_its_worker(client, call, eventually):
    with client.pool(tag="b") as pool:
        future = pool.submit(call)
        eventually(future.running)
        time.sleep(0.1)  # time to get from its bundle into its function
        assert future.cancel()
        assert future.cancelled()
        assert pool.submit(double, 4).result(timeout=60) == 8


@pytest.mark.usefixtures("soon_given_up")
@pytest.mark.parametrize("call", [spin, block])
def test_a_call_may_run_for_so_long_and_no_longer(client, call):
    with client.executor(tag="b", timeout="300ms") as pool:
        slow, quick = pool.submit(call), pool.submit(double, 2)
        with pytest.raises(TimeoutError, match=r"(spin|block)\(\) ran for longer than 0.3 s"):
            slow.result(timeout=60)
        assert quick.result(timeout=60) == 4


def test_long_calls_do_not_hold_up_others(client):
    """Bundles that turn out long give back what they have not begun."""
    with client.pool(tag="a") as pool:
        list(pool.map(double, range(2000)))  # calls have been quick so far
        assert len(set(pool.map(nap_where, [0.15] * 8))) == 2


def test_calls_end_with_their_client(client, gate, eventually):
    with ScalableClient(client.scheduler.address, security=client.security) as other:
        pool = other.pool(tag="b")
        futures = [pool.submit(wait_for, gate) for _ in range(10)]
        results = pool.map(wait_for, [gate] * 3)
        eventually(futures[0].running)
    for future in futures:
        with pytest.raises(ClusterError, match="client was closed"):
            future.result(timeout=60)
    with pytest.raises(ClusterError, match="client was closed"):
        next(results)
    with pytest.raises(RuntimeError, match="client is closed"):
        pool.submit(double, 1)
    pool.shutdown()


def heavy(path, x):
    note(path, x)
    return bytes(3_000_000)


def test_a_lost_large_result_costs_its_call_alone(client, tmp_path, gate, monkeypatch):
    path, fetch = tmp_path / "runs", client._line.fetch

    async def fetch_late(future):
        monkeypatch.setattr(client._line, "fetch", fetch)
        os.kill(pid, signal.SIGKILL)
        while worker in client.cluster.scheduler.workers:  # until the loss is known
            await asyncio.sleep(0.01)
        return await fetch(future)

    with client.pool(tag="b") as pool:
        pid = pool.submit(os.getpid).result(timeout=60)
        (worker,) = (w for w, p in client.run(os.getpid, on_error="ignore").items() if p == pid)
        pool.submit(wait_for, gate)  # what follows waits, and goes in one bundle
        [pool.submit(double, i) for i in range(200)]
        monkeypatch.setattr(client._line, "fetch", fetch_late)
        others = [pool.submit(note, path, i) for i in range(20)]
        large = pool.submit(heavy, path, 99)
        gate.touch()
        assert len(large.result(timeout=60)) == 3_000_000
        wait(others, timeout=60)
    runs = path.read_text().split()
    assert [runs.count(str(i)) for i in range(20)] == [1] * 20
    assert runs.count("99") == 2


def test_large_arguments_wait_for_the_first_worker(client):
    session = ScalableSession.local({"c": 0}, processes=True)
    with session as other, other.pool(tag="c") as pool:
        future = pool.submit(len, bytes(3_000_000))
        session.cluster.scale({"c": 1})
        assert future.result(timeout=60) == 3_000_000


# Ending early -------------------------------------------------------------------------------------


def test_an_interrupt_does_not_wait_for_the_calls(client, tmp_path, eventually):
    """A block that is left by Ctrl-C ends what runs, and begins nothing more."""
    path = tmp_path / "runs"
    pool = client.pool(tag="b")
    running, waiting = pool.submit(wait_for, tmp_path / "never"), pool.submit(note, path, 1)
    many = pool.map(note, [path], [2])
    eventually(running.running)
    with pytest.raises(KeyboardInterrupt), pool:
        raise KeyboardInterrupt
    with client.pool(tag="b") as pool:
        assert pool.submit(double, 4).result(timeout=60) == 8
    assert running.cancelled()
    assert waiting.cancelled()
    with pytest.raises(CancelledError):
        next(many)
    assert not path.exists()


def test_a_pool_is_closed_and_joined(client):
    pool = client.pool(tag="a")
    future = pool.submit(nap, 0.2)
    with pytest.raises(ValueError, match=r"call close\(\) before"):
        pool.join()
    pool.close()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(double, 1)
    pool.join()
    assert future.done()


def test_chunks_are_asked_for_as_in_multiprocessing_and_change_nothing(pool):
    assert pool.starmap(pow, [(2, 3), (3, 2)], 1) == [8, 9]
    assert pool.starmap_async(pow, [(2, 3)], 1).get(timeout=60) == [8]
    assert pool.map_async(double, range(5), 2).get(timeout=60) == [0, 2, 4, 6, 8]
    assert list(pool.imap(double, range(3), 2)) == [0, 2, 4]
    assert sorted(pool.imap_unordered(double, range(3), chunksize=2)) == [0, 2, 4]
    with pytest.raises(TypeError, match="give chunksize by its name"):
        pool.map(double, range(10), 4)


def keep_on(begun):
    """A task that does not let itself be interrupted, and ends before its worker is given up."""
    try:
        begun.touch()
        spin()
    except BaseException:  # noqa: BLE001 - that is what is tried
        return "kept on"


def change_error(begun):
    try:
        begun.touch()
        spin()
    except BaseException as error:
        raise ValueError("changed") from error


@pytest.mark.parametrize("call", [keep_on, change_error])
def test_a_call_that_swallows_its_interrupt_frees_its_worker(client, call, tmp_path, eventually):
    with client.pool(tag="b") as pool:
        pid = pool.submit(os.getpid).result(timeout=60)
        future = pool.submit(call, tmp_path / "begun")
        eventually((tmp_path / "begun").exists)
        assert future.cancel()
        assert pool.submit(os.getpid).result(timeout=60) == pid


class Lasting:
    """Its destructor, whose exceptions Python drops, takes a second."""

    def __init__(self, begun):
        self.begun = begun

    def __del__(self):
        self.begun.touch()
        end = time.monotonic() + 1
        while time.monotonic() < end:
            pass


def destroy_and_spin(begun, ended):
    try:
        Lasting(begun)
        spin()
    finally:
        ended.touch()


@pytest.mark.parametrize("kind", ["of an executor", "of Dask"])
def test_an_interrupt_in_a_destructor_is_not_lost(client, kind, tmp_path, eventually):
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    with client.pool(tag="b") as pool:
        sent = pool.submit if kind == "of an executor" else partial(client.submit, tag="b")
        future = sent(destroy_and_spin, begun, ended)
        eventually(begun.exists)
        future.cancel()
        eventually(ended.exists)


def start_threads(begun, ended):
    """Start threads that run last: on the event loop's processor, after everything else."""
    processor = {min(os.sched_getaffinity(0))}
    for thread in threading.enumerate():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread.native_id, processor)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        begun.touch()
        while True:
            threading.Thread(target=int).start()
    finally:
        ended.touch()


def test_an_interrupt_hits_no_thread_that_a_call_starts(tmp_path, eventually):
    """The call would wait for ever for the thread, and so would others with Dask's lock."""
    with ScalableSession.local({"c": 1}, processes=True) as other, other.pool(tag="c") as pool:
        for n, submit in enumerate(3 * [pool.submit, partial(other.submit, tag="c")]):
            begun, ended = tmp_path / f"begun-{n}", tmp_path / f"ended-{n}"
            future = submit(start_threads, begun, ended)
            eventually(begun.exists)
            future.cancel()
            eventually(ended.exists, f"call {n}")


class Slow(set):
    """Threads of a worker, to which another one is added in half a second."""

    def add(self, thread):
        super().add(thread)
        self.begun.touch()
        for _ in range(25):
            time.sleep(0.02)


def secede_slowly(begun):
    executor = thread_state.executor
    executor._threads = Slow(executor._threads)
    executor._threads.begun = begun
    try:
        secede()
    finally:
        executor._threads = set(executor._threads)


def test_an_interrupt_while_a_task_secedes_leaves_no_thread_that_runs_nothing(tmp_path, eventually):
    begun = tmp_path / "begun"
    with ScalableSession.local({"c": 1}, processes=True) as other:
        future = other.submit(secede_slowly, begun, tag="c")
        eventually(begun.exists)
        future.cancel()
        for _ in range(3):
            assert other.submit(os.getpid, tag="c", pure=False).result(60) > 0


# What calls might share, and what might keep futures from ending ------------------------------------


class Stateful:
    def __init__(self):
        self.calls = 0

    def __call__(self, _=None):
        self.calls += 1
        return self.calls


def take_out(settings):
    return settings.pop("depth")


class Unloadable:
    def __reduce__(self):
        return int, ("no number",)


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("cannot be shown")

    __repr__ = __str__


def raise_unprintable(_):
    raise Unprintable


def raise_in_a_circle(_):
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


class NoName:
    def __repr__(self):
        raise RuntimeError("no name")

    def __call__(self):
        return "called"


def test_calls_share_neither_function_nor_arguments(pool):
    list(pool.map(double, range(2000)))  # many fit a bundle
    function = Stateful()
    assert list(pool.map(function, range(20))) == [1] * 20
    function.calls = 10
    assert pool.submit(function).result(timeout=60) == 11
    settings = {"depth": 3}
    futures = [pool.submit(take_out, settings) for _ in range(50)]
    assert [f.result(timeout=60) for f in futures] == [3] * 50


@pytest.mark.parametrize(
    ("function", "argument", "error"),
    [
        (double, Unloadable(), ValueError),
        (raise_unprintable, 0, RuntimeError),
        (raise_in_a_circle, 0, ValueError),
    ],
)
def test_a_call_that_fails_to_load_or_to_report_fails_alone(pool, function, argument, error):
    list(pool.map(double, range(2000)))
    futures = [pool.submit(double, i) for i in range(20)]
    bad = pool.submit(function, argument)
    futures += [pool.submit(double, i) for i in range(20, 40)]
    assert [f.result(timeout=60) for f in futures] == [2 * i for i in range(40)]
    with pytest.raises(error):
        bad.result(timeout=60)


def test_a_callable_without_a_name_runs(pool):
    assert pool.submit(NoName()).result(timeout=60) == "called"


def test_a_long_chain_ends_with_its_first_call(pool, gate):
    blockers = [pool.submit(wait_for, gate) for _ in range(6)]
    chain = [pool.submit(int, "no number")]
    for _ in range(1000):
        chain.append(pool.submit(double, chain[-1]))
    gate.touch()
    assert wait(chain, timeout=60).not_done == set()
    assert wait(blockers, timeout=60).not_done == set()
    assert isinstance(chain[-1].exception(), ValueError)


def test_waiting_threads_see_cancelled_calls(client, pool, gate):
    started = pool.submit(wait_for, gate)
    after = pool.submit(double, started)
    together = pool.map_async(wait_for, [gate])
    other = client.pool(tag="a")
    waiting = [other.submit(wait_for, gate) for _ in range(12)]
    futures = [after, together, *waiting]
    with concurrent.futures.ThreadPoolExecutor() as threads:
        waiter = threads.submit(wait, futures, timeout=30)
        time.sleep(0.1)
        after.cancel()
        together.cancel()
        other.shutdown(wait=False, cancel_futures=True)
        for future in waiting:  # those that run
            future.cancel()
        assert waiter.result().not_done == set()
    started.cancel()


class SlowToSend:
    def __reduce__(self):
        time.sleep(0.2)
        return int, ()


def test_shutdown_waits_for_all_that_was_given(client, pool):
    other = client.pool(tag="a")
    futures = [other.submit(double, pool.submit(nap, 0.2)), other.submit(double, SlowToSend())]
    time.sleep(0.05)
    other.shutdown()
    assert all(f.done() for f in futures)


def kill_worker_of(client, reference):
    """Kill the worker that holds an object, and return its address."""
    pids = client.run(os.getpid, on_error="ignore")
    (worker,) = client.who_has([reference])[reference.key]
    os.kill(pids[worker], signal.SIGKILL)
    return worker


def test_a_lost_object_fails_the_calls_that_take_it(client, pool, gate, eventually):
    blockers = [pool.submit(wait_for, gate) for _ in range(4)]
    sent = client.send(bytes(1000))
    futures = [pool.submit(len, sent) for _ in range(3)]
    killed = kill_worker_of(client, sent)
    eventually(lambda: killed not in client.scheduler_info(n_workers=-1)["workers"])
    gate.touch()
    for future in futures:
        # The other worker may have fetched the object before its holder was killed.
        error = future.exception(timeout=60)
        assert future.result() == 1000 if error is None else "lost" in str(error)
    wait(blockers, timeout=60)
    assert pool.submit(double, 1).result(timeout=60) == 2


def test_a_callback_may_submit_what_is_large(pool):
    lengths = concurrent.futures.Future()

    def go_on(_):
        again = pool.submit(len, bytes(3_000_000))
        again.add_done_callback(lambda f: lengths.set_result(f.result()))

    pool.submit(double, 1).add_done_callback(go_on)
    assert lengths.result(timeout=60) == 3_000_000


@pytest.mark.parametrize("way", ["terminate", "shutdown"])
def test_results_that_are_collected_end_with_their_executor(client, tmp_path, way):
    executor = client.executor(tag="a")
    together = executor.map_async(wait_for, [tmp_path / "gate"] * 3)
    if way == "terminate":
        executor.terminate()
    else:
        executor.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(CancelledError):
        together.get(60)
    (tmp_path / "gate").touch()
