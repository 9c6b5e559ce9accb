"""Everything at once, for long: nested calls, cancelling, kills, scaling, two clients, two sessions.

``SCALABLE_STRESS_MINUTES`` sets the length (default 10). Each round starts calls of known numbers
from several threads; each call leaves its number in a file. A round without a kill must leave every
number exactly once.
"""

import contextlib
import itertools
import logging
import os
import pprint
import random
import signal
import statistics
import sys
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import CancelledError as PoolCancelledError
from concurrent.futures import as_completed as pool_as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import dask
import psutil
import pytest
from distributed import CancelledError, as_completed, get_client, wait

from scalable import ScalableClient

MINUTES = float(os.environ.get("SCALABLE_STRESS_MINUTES", "10"))
#: Seconds after which a call that has not ended counts as stuck.
STUCK_S = 300.0
#: Share of the time after which threads, files and memory are counted for the first time.
WARM_UP = 0.3
#: Seconds without calls before they are counted: idle threads and connections end meanwhile.
REST_S = 8.0
MORE_THREADS, MORE_FILES = 8, 16
MORE_MEMORY = 1.25

MANIFEST = """\
version: 1
project: {name: %s}
targets:
  local: {provider: local, processes: %s}
components:
  a: {workers: 2}
  b: {workers: 1}
"""
USUAL = {"a": 2, "b": 1}
MOST = {"a": 4, "b": 2}


# Calls --------------------------------------------------------------------------------------------


def leaf(path, number, seconds):
    time.sleep(seconds)
    with path.open("a") as marks:
        marks.write(f"{number}\n")
    return number


def by_result(client, where, items):
    return [client.submit(leaf, *item, tag=where).result() for item in items]


def by_gather(client, where, items):
    return client.gather([client.submit(leaf, *item, tag=where) for item in items])


def by_wait(client, where, items):
    done, _ = wait([client.submit(leaf, *item, tag=where) for item in items])
    return [future.result() for future in done]


def by_as_completed(client, where, items):
    futures = [client.submit(leaf, *item, tag=where) for item in items]
    return [future.result() for future in as_completed(futures)]


def by_event(client, where, items):
    over = threading.Semaphore(0)
    futures = [client.submit(leaf, *item, tag=where) for item in items]
    for future in futures:
        future.add_done_callback(lambda _: over.release())
    for _ in futures:
        over.acquire(timeout=STUCK_S)
    return [future.result() for future in futures]


def by_executor(client, where, items):
    with client.pool(tag=where) as pool:
        return pool.starmap(leaf, items)


def by_executor_futures(client, where, items):
    with client.pool(tag=where) as pool:
        futures = [pool.submit(leaf, *item) for item in items]
        return [future.result() for future in pool_as_completed(futures)]


def by_graph(client, where, items):
    graph = {f"call-{item[1]}": (leaf, *item) for item in items}
    return client.get(graph, list(graph), tag=where)


def by_dask(client, where, items):
    del client, where
    return dask.compute(*(dask.delayed(leaf, pure=False)(*item) for item in items))


WAYS = (by_result, by_gather, by_wait, by_as_completed, by_event, by_executor)
WAYS += (by_executor_futures, by_graph, by_dask)


def parent(path, numbers, way, places, seconds):
    """Make calls, and tasks that make calls: the first number is this call's, the others theirs."""
    client, (number, *others) = get_client(), numbers
    where, *further = places
    if further and len(others) > 1:
        child = client.submit(parent, path, others, way, further, seconds, tag=where)
        found = [child.result()]
    else:
        found = way(client, where, [(path, other, seconds) for other in others])
        assert sorted(found) == others
    return leaf(path, number, 0)


# Rounds -------------------------------------------------------------------------------------------


@dataclass
class Cluster:
    """One session with the clients that use it."""

    session: object
    clients: list
    can_kill: bool
    pools: dict = field(default_factory=dict)

    def executor(self, client, tag):
        key = (id(client), tag)
        if key not in self.pools:
            self.pools[key] = client.pool(tag=tag)
        return self.pools[key]

    @property
    def first(self):
        return self.clients[0]


class Round:
    """Calls from several threads, and what has to be true of them."""

    numbers = itertools.count()

    def __init__(self, clusters, path, seed):
        self.clusters, self.path, self.seed = clusters, path, seed
        self.chance = random.Random(seed)
        self.must, self.may = set(), set()
        self.killed = False
        self.faults = []

    def run(self):
        users = [partial(self.use, random.Random(f"{self.seed}-{n}")) for n in range(4)]
        fate = self.chance.choice([self.kill, self.scale, self.scale, lambda: None])
        threads = [
            threading.Thread(target=self.guarded, args=(each,), daemon=True)
            for each in (*users, fate)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 2 * STUCK_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), f"seed {self.seed}: a wait does not end"
        assert not self.faults, "\n".join([f"seed {self.seed}", *self.faults])

    def guarded(self, act):
        try:
            with pictured(self.clusters):
                act()
        except BaseException:  # noqa: BLE001 - shown by the test
            self.faults.append(traceback.format_exc())

    def use(self, chance):
        """Start calls and wait for them, as one thread of a program does."""
        for _ in range(3):
            cluster = chance.choice(self.clusters)
            client = chance.choice(cluster.clients)
            act = chance.choice([self.nest, self.nest, self.nest, self.cancel, self.many])
            act(chance, cluster, client)

    def arguments(self, chance):
        numbers = [next(self.numbers) for _ in range(chance.randint(2, 6))]
        places = [chance.choice("ab") for _ in range(chance.randint(1, 3))]
        seconds = chance.choice([0, 0, 0.01, 0.05])
        return self.path, numbers, chance.choice(WAYS), places, seconds

    def start(self, chance, cluster, client, count):
        """Start tasks that make calls; return future and numbers of each."""
        started = []
        for _ in range(count):
            arguments, tag = self.arguments(chance), chance.choice("ab")
            if chance.random() < 0.5:
                future = client.submit(parent, *arguments, tag=tag)
            else:
                future = cluster.executor(client, tag).submit(parent, *arguments)
            started.append((future, arguments[1]))
        return started

    def nest(self, chance, cluster, client):
        started = self.start(chance, cluster, client, chance.randint(1, 8))
        for _, numbers in started:
            self.must.update(numbers)
        for future, numbers in started:
            assert future.result(timeout=STUCK_S) == numbers[0]

    def cancel(self, chance, cluster, client):
        started = self.start(chance, cluster, client, 10)
        for future, numbers in started:
            self.may.update(numbers)
            time.sleep(chance.choice([0, 0.001, 0.01, 0.03]))
            future.cancel()
        for future, _ in started:
            with contextlib.suppress(CancelledError, PoolCancelledError):
                future.result(timeout=STUCK_S)

    def many(self, chance, cluster, client):
        numbers = [next(self.numbers) for _ in range(200)]
        self.must.update(numbers)
        pool = cluster.executor(client, chance.choice("ab"))
        assert pool.starmap(leaf, [(self.path, number, 0) for number in numbers]) == numbers

    def kill(self):
        cluster = next(each for each in self.clusters if each.can_kill)
        self.killed = True
        time.sleep(self.chance.uniform(0, 1))
        pids = cluster.first.run(os.getpid, on_error="ignore")
        os.kill(self.chance.choice(sorted(pids.values())), signal.SIGKILL)

    def scale(self):
        for _ in range(4):
            cluster, tag = self.chance.choice(self.clusters), self.chance.choice("ab")
            cluster.session.cluster.scale(tag, self.chance.randint(1, MOST[tag]))
            time.sleep(self.chance.uniform(0, 0.7))

    def check(self):
        """Compare the marks of the calls with what was started."""
        found = Counter(map(int, self.path.read_text().split())) if self.path.exists() else {}
        lost = sorted(self.must - set(found))
        assert not lost, f"seed {self.seed}: lost calls {lost}"
        strange = sorted(set(found) - self.must - self.may)
        assert not strange, f"seed {self.seed}: unknown tasks {strange}"
        doubled = sorted(number for number, times in found.items() if times > 1)
        assert self.killed or not doubled, f"seed {self.seed}: doubled calls {doubled}"


# What happens -------------------------------------------------------------------------------------


def stacks():
    """Return the innermost calls of each thread of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = {}
    for ident, frame in sys._current_frames().items():
        calls = traceback.extract_stack(frame, limit=10)
        shown = [f"{call.name} {Path(call.filename).name}:{call.lineno}" for call in calls]
        found[f"{names.get(ident)} {ident}"] = " > ".join(shown)
    return found


def activity(dask_worker):
    """Return tasks, threads, slots and stacks of a worker."""
    tasks = {str(key): task.state for key, task in dask_worker.state.tasks.items()}
    active = {ident: str(key) for ident, key in dask_worker.active_threads.items()}
    executor = dask_worker.executors["default"]
    counts = len(executor._threads), executor._max_workers, executor._work_queue.qsize()
    lent = {str(key): call.lent for key, call in dask_worker.slot_lender.calls.items()}
    free = dict(dask_worker.state.available_resources)
    return dask_worker.name, tasks, active, counts, lent, free, stacks()


@contextlib.contextmanager
def pictured(clusters):
    """Print what every process does if the block fails: nothing but this explains a lost task."""
    try:
        yield
    except BaseException:
        pprint.pprint(stacks(), width=120)
        for cluster in clusters:
            asked = threading.Thread(target=picture, args=(cluster,), daemon=True)
            asked.start()
            asked.join(60)  # a process that hangs does not answer
        raise


def picture(cluster):
    tasks = cluster.session.cluster.scheduler.tasks
    states = {str(key): (task.state, task.processing_on) for key, task in tasks.copy().items()}
    pprint.pprint((cluster.session, states), width=120)
    pprint.pprint(cluster.first.run(activity, on_error="return"), width=120)


# What is left -------------------------------------------------------------------------------------


def unfinished(dask_worker):
    """Return what a worker at rest does not have; None for a worker at rest."""
    state, executor = dask_worker.state, dask_worker.executors["default"]
    lent = executor._max_workers - state.nthreads
    taken = {k: v for k, v in state.total_resources.items() if state.available_resources[k] != v}
    running = [str(task.key) for task in (*state.executing, *state.long_running)]
    return (taken, running, lent) if taken or running or lent else None


def at_rest(cluster):
    """Return whether a cluster has its usual workers, and nothing runs on them or waits for them.
    A bundle whose tasks were all cancelled is on its way for a moment.
    """
    workers = cluster.first.scheduler_info(n_workers=-1)["workers"]
    tags = Counter(tag for worker in workers.values() for tag in worker["resources"])
    answers = cluster.first.run(unfinished, on_error="return")
    is_quiet = not any(answers.values()) and not any(cluster.first.processing().values())
    return tags == USUAL and set(answers) == set(workers) and is_quiet


def usage():
    """Return threads, open files and memory in bytes of this process."""
    process = psutil.Process()
    return process.num_threads(), process.num_fds(), process.memory_info().rss


def usage_of_worker(dask_worker):
    process = psutil.Process()
    return dask_worker.name, process.num_threads(), process.num_fds(), process.memory_info().rss


def programs():
    """Return the number of processes below this one."""
    return len(psutil.Process().children(recursive=True))


@dataclass
class Count:
    """Threads, files, memory and processes at rest."""

    threads: int
    files: int
    memory: int
    programs: int
    workers: dict

    @classmethod
    def taken(cls, clusters):
        time.sleep(REST_S)
        per_worker = {
            name: rest
            for cluster in clusters
            if cluster.can_kill
            for name, *rest in cluster.first.run(usage_of_worker).values()
        }
        return cls(*usage(), programs(), per_worker)

    def check_growth(self, first):
        about = f"{first} has become {self}"
        assert self.programs == first.programs, about
        assert self.threads <= first.threads + MORE_THREADS, about
        assert self.files <= first.files + MORE_FILES, about
        assert self.memory <= MORE_MEMORY * first.memory, about
        usual = [statistics.median(row[n] for row in first.workers.values()) for n in range(3)]
        for threads, files, memory in self.workers.values():
            assert threads <= usual[0] + MORE_THREADS, about
            assert files <= usual[1] + MORE_FILES, about
            assert memory <= MORE_MEMORY * usual[2], about


@pytest.fixture
def clusters(running_session, monkeypatch):
    # Dask's logs grow until they are full; what grows beyond them is to be seen.
    for name in ("LOG_LENGTH", "LOW_LEVEL_LOG_LENGTH"):
        monkeypatch.setenv(f"DASK_DISTRIBUTED__ADMIN__{name}", "50")
    short = {"log-length": 50, "low-level-log-length": 50}
    with (
        dask.config.set({f"distributed.admin.{name}": value for name, value in short.items()}),
        running_session(MANIFEST % ("processes", "true"), workers=3) as north,
        running_session(MANIFEST % ("threads", "false"), workers=3) as south,
        ScalableClient(
            north.client.scheduler.address, security=north.client.security, set_as_default=False
        ) as second,
    ):
        yield [
            Cluster(north, [north.client, second], can_kill=True),
            Cluster(south, [south.client], can_kill=False),
        ]


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES + 5 * STUCK_S)
def test_nothing_hangs_gets_lost_or_grows_while_everything_happens(
    clusters, tmp_path, eventually, monkeypatch
):
    # pytest keeps each log record to its end, with all that the frames of its traceback refer to.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    began = time.monotonic()
    seed = int(os.environ.get("SCALABLE_STRESS_SEED", "0")) or random.randrange(10**6)
    first, rounds, kills = None, 0, 0
    while time.monotonic() - began < 60 * MINUTES or rounds < 2:
        current = Round(clusters, Path(tmp_path) / f"marks-{rounds}", f"{seed}-{rounds}")
        current.run()
        for cluster in clusters:
            for tag, count in USUAL.items():
                cluster.session.cluster.scale(tag, count)
            with pictured([cluster]):
                rests, which = partial(at_rest, cluster), f"rest (seed {current.seed})"
                eventually(rests, which, timeout=STUCK_S)
        current.check()
        current.path.unlink(missing_ok=True)
        rounds, kills = rounds + 1, kills + current.killed
        if first is None and time.monotonic() - began > 60 * MINUTES * WARM_UP:
            first = Count.taken(clusters)
    last = Count.taken(clusters)
    print(f"{rounds} rounds, {next(Round.numbers)} calls, {kills} kills; {first} -> {last}")
    assert first is not None
    last.check_growth(first)
