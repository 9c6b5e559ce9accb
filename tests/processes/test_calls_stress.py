"""Random mixes of everything that can happen to calls of pools, on real worker processes."""

import os
import random
import signal
import time
from collections import Counter
from concurrent.futures import CancelledError, wait

import pytest
from distributed.scheduler import KilledWorker
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from manifests import TWO_POOLS
from scalable import ClusterError, ScalableClient

MANIFEST, WORKERS = TWO_POOLS, 3
TAGS = ("a", "b")


class Expected(Exception):
    """What a failing call raises."""


def work(path, number, seconds, fails):
    """Leave a mark once the task has ended."""
    if seconds:
        time.sleep(seconds)
    with path.open("a") as marks:
        marks.write(f"{number}\n")
    if fails:
        raise Expected(number)
    return number, os.getpid()


@pytest.fixture(scope="module")
def clients(session):
    first = session.client
    with ScalableClient(first.scheduler.address, security=first.security) as second:
        yield first, second


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("quick"), st.integers(1, 300)),
        st.tuples(st.just("nap"), st.integers(1, 6)),
        st.tuples(st.just("fail"), st.integers(1, 20)),
        st.tuples(st.just("map"), st.integers(1, 300)),
        st.tuples(st.just("cancel"), st.integers(1, 10)),
        st.tuples(st.just("kill"), st.just(1)),
        st.tuples(st.just("wait"), st.integers(1, 5)),
        st.tuples(st.just("close"), st.just(1)),
    ),
    min_size=3,
    max_size=12,
)


WITH_A_LOSS = [
    ("nap", 6), ("quick", 200), ("kill", 1), ("map", 200), ("fail", 5), ("cancel", 5), ("wait", 2),
    ("quick", 100), ("close", 1), ("map", 50),
]  # fmt: skip


class Storm:
    """One random mix, and what is known of its calls."""

    #: Number of workers that all storms have killed: a pool counts those of the storms before too.
    all_killed = 0

    def __init__(self, clients, path, seed):
        self.chance, self.path = random.Random(seed), path
        self.clients, self.pools = clients, {}
        self.futures, self.maps, self.ends = {}, [], Counter()
        self.done_before_a_loss, self.killed, self.serial = set(), 0, 0

    def pool(self):
        key = self.chance.randrange(len(self.clients)), self.chance.choice(TAGS)
        if key not in self.pools:
            self.pools[key] = self.clients[key[0]].pool(tag=key[1])
        return key, self.pools[key]

    def step(self, what, count):
        getattr(self, what)(count)

    def submit(self, count, seconds=0.0, *, fails=False):
        _, pool = self.pool()
        for _ in range(count):
            self.serial += 1
            number = self.serial
            future = pool.submit(work, self.path, number, seconds, fails)
            future.add_done_callback(lambda _, number=number: self.ends.update([number]))
            self.futures[number] = (future, fails)

    def quick(self, count):
        self.submit(count)

    def nap(self, count):
        self.submit(count, 0.1)

    def fail(self, count):
        self.submit(count, fails=True)

    def map(self, count):
        key, pool = self.pool()
        numbers = list(range(self.serial + 1, self.serial + 1 + count))
        self.serial += count
        arguments = ([self.path] * count, numbers, [0.0] * count, [False] * count)
        self.maps.append((key, numbers, pool.map(work, *arguments)))

    def cancel(self, count):
        some = self.chance.sample(list(self.futures), min(count, len(self.futures)))
        for number in some:
            self.futures[number][0].cancel()

    def wait(self, count):
        time.sleep(0.05 * count)

    def kill(self, _):
        # A worker that was killed a moment ago may still be asked.
        told = self.clients[0].run(os.getpid, on_error="return").values()
        pids = [pid for pid in told if isinstance(pid, int)]
        self.done_before_a_loss |= {n for n, (f, _) in self.futures.items() if f.done()}
        self.killed += 1
        Storm.all_killed += 1
        if pids:
            os.kill(self.chance.choice(pids), signal.SIGKILL)

    def close(self, _):
        if self.pools:
            key = self.chance.choice(sorted(self.pools))
            self.pools.pop(key).shutdown(wait=False, cancel_futures=self.chance.random() < 0.5)

    def check_given_up(self, error):
        """A pool whose workers end again and again is given up, and its calls are told so."""
        assert "is degraded" in str(error)
        assert self.killed
        assert self.all_killed >= 3

    def check(self):
        wait([future for future, _ in self.futures.values()], timeout=120)
        for number, (future, fails) in self.futures.items():
            assert future.done(), f"call {number} has not ended"
            deadline = time.monotonic() + 60
            while not self.ends[number] and time.monotonic() < deadline:
                time.sleep(0.01)  # callbacks come after the waiting threads
            assert self.ends[number] == 1
            try:
                assert future.result(timeout=0)[0] == number
                assert not fails
            except CancelledError:
                pass
            except Expected as error:
                assert (fails, str(error)) == (True, str(number))  # noqa: PT017
            except KilledWorker:
                assert self.killed >= 3
            except ClusterError as error:
                self.check_given_up(error)
        for _, numbers, results in self.maps:
            try:
                assert [number for number, _ in results] == numbers
            except CancelledError:
                pass  # its pool was closed so
            except KilledWorker:
                assert self.killed >= 3
            except ClusterError as error:
                self.check_given_up(error)
        runs = Counter(int(line) for line in self.path.read_text().split())
        assert all(runs[number] <= 1 for number in self.done_before_a_loss)
        if not self.killed:
            assert all(count == 1 for count in runs.values())


def storms(examples):
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def run_storm(clients, path, steps, seed, *, kills):
    path.touch()
    clients[0].cluster.scale({"a": 2, "b": 1})  # what was given up is tried again
    storm = Storm(clients, path, seed)
    for what, count in steps:
        if what != "kill" or storm.killed < kills:
            storm.step(what, count)
    storm.check()
    for pool in storm.pools.values():
        pool.shutdown()


@storms(1)
@example(steps=WITH_A_LOSS, seed=1)
@given(steps=STEPS, seed=st.integers(0, 10**6))
def test_every_call_ends_once_whatever_happens(clients, tmp_path_factory, steps, seed):
    run_storm(clients, tmp_path_factory.mktemp("marks") / "runs", steps, seed, kills=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@storms(25)
@given(steps=STEPS, seed=st.integers(0, 10**6))
def test_many_storms_with_many_losses(clients, tmp_path_factory, steps, seed):
    run_storm(clients, tmp_path_factory.mktemp("marks") / "runs", steps, seed, kills=10)


def test_nothing_leaks(clients, eventually):
    """After all of the above."""

    def bundles(dask_scheduler):
        return [str(key) for key in dask_scheduler.tasks if "-bundle-" in str(key)]

    for client in clients:
        eventually(lambda client=client: not client._line.followers, timeout=60)
    eventually(lambda: clients[0].run_on_scheduler(bundles) == [], timeout=60)
    eventually(
        lambda: (
            not clients[0].run_on_scheduler(lambda dask_scheduler: dask_scheduler.relay._backlogs)
        ),
        timeout=60,
    )


def test_two_clients_share_a_pool_fairly(clients):
    """Neither waits until the other's backlog has gone."""
    pools = [client.pool(tag="b") for client in clients]
    futures = [[pool.submit(time.sleep, 0.01) for _ in range(80)] for pool in pools]
    wait(futures[0], timeout=120)
    done = sum(future.done() for future in futures[1])
    assert done > 25
    wait(futures[1], timeout=120)
    for pool in pools:
        pool.shutdown()
