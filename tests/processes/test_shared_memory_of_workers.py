"""Large data between real worker processes: held once, whoever is killed, and gone with its users."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from scalable import ScalableSession
from scalable.settings import SHARED_MEMORY

COUNT = 400_000  # numbers, of 8 bytes
SHARING = 3

_HELD = re.compile(r"(\d+) +/memfd:scalable-segment")


def look(array):
    """Return all that a call sees of its argument, and the files that its process has mapped."""
    seen = float(array.sum()), array.flags.writeable, array.shape
    return os.getpid(), seen, held_by(os.getpid())


def make(begin):
    return np.arange(begin, begin + COUNT, dtype="f8")


def spoil(array):
    array[:10] = -1
    return float(array.sum())


def spoiled(array):
    array[:10] = -1
    return array


def wait_for(told, begun, array):
    (begun / str(os.getpid())).touch()
    while not told.exists():
        time.sleep(0.01)
    return float(array.sum())


def held_by(pid):
    """Return the files of the large segments that a process has mapped."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:  # it has ended, or belongs to the system
        return set()
    found = set()
    for line in lines:
        begin, end = (int(number, 16) for number in line.split()[0].split("-"))
        match = _HELD.search(line)
        if match and end - begin > 2**20:
            found.add(int(match[1]))
    return found


@pytest.fixture(scope="module", autouse=True)
def most_segments():
    """Return how many segments this process may hold: those of before, or the word that others read."""
    return max(opened_by(os.getpid()), 1)


def opened_by(pid):
    """Return the number of descriptors of segments of a process."""
    found = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found += "scalable-segment" in os.readlink(entry)
        except FileNotFoundError:
            continue
    return found


def eventually(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "this did not happen"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def session():
    """Workers that share memory, and one, of the pool ``apart``, that does not."""
    pools = {"a": {}, "apart": {"env": {SHARED_MEMORY: "0"}}}
    made = ScalableSession.local(pools, processes=True)
    made.start()
    made.scale("a", SHARING)
    made.client.wait_for_workers(SHARING + 1)
    yield made
    made.close()


@pytest.fixture
def client(session):
    return session.client


def workers(client, tag="a"):
    known = client.scheduler_info(n_workers=-1)["workers"]
    return {address: worker for address, worker in known.items() if tag in worker["resources"]}


def on_each(client, function, *args):
    """Run a call on each worker of the pool, and return the results."""
    futures = [
        client.submit(function, *args, workers=[address], pure=False, tag="a")
        for address in workers(client)
    ]
    return client.gather(futures)


def pids(client, tag="a"):
    return client.run(os.getpid, workers=list(workers(client, tag)))


def test_an_argument_is_held_once_by_all_workers(client, most_segments):
    data = make(7)
    future = client.scatter(data, workers=list(workers(client))[:1])  # not to the pool ``apart``
    processes, seen, held = zip(*on_each(client, look, future), strict=True)
    assert len(set(processes)) == SHARING
    assert set(seen) == {(data.sum(), True, data.shape)}
    assert all(held)
    assert len(set.union(*held)) == 1, "all workers have mapped one file"
    del future
    eventually(lambda: not any(held_by(pid) for pid in processes))
    eventually(lambda: opened_by(os.getpid()) <= most_segments)


def test_a_result_is_held_once_by_its_worker_its_readers_and_the_client(client):
    first, *_ = workers(client)
    future = client.submit(make, 3, workers=[first], tag="a", pure=False)
    result = future.result()
    np.testing.assert_array_equal(result, make(3))
    mine = held_by(os.getpid())
    result += 1  # as a result that was sent
    processes, seen, held = zip(*on_each(client, look, future), strict=True)
    assert set(seen) == {(make(3).sum(), True, (COUNT,))}
    assert all(held)
    assert len(set.union(mine, *held)) == 1, "its own worker has the file too"
    del future, result
    eventually(lambda: not any(held_by(pid) for pid in (*processes, os.getpid())))


@pytest.mark.parametrize("way", ["graph", "send", "executor"])
def test_what_a_call_writes_into_its_argument_stays_in_its_process(client, way):
    data = make(0)
    expected = float(np.concatenate([np.full(10, -1.0), data[10:]]).sum())
    if way == "executor":
        with client.pool(tag="a") as pool:
            for call in (spoil, spoiled):  # they write into their argument
                with pytest.raises(ValueError, match="read-only"):
                    pool.submit(call, data).result()
            assert pool.submit(look, data).result()[1][0] == data.sum()
        # The errors of the tasks do not keep the arguments.
        eventually(lambda: not any(held_by(pid) for pid in pids(client).values()))
    else:
        given = client.send(data) if way == "send" else data
        first, second, _ = workers(client)
        # It would leave one copy of the argument, perhaps the one into which a task has written.
        client.amm.stop()
        kept = client.submit(look, given, workers=[second], tag="a", pure=False).result()
        changed = client.submit(spoiled, given, workers=[first], tag="a", pure=False)
        assert client.submit(look, changed, workers=[second], tag="a").result()[1][0] == expected
        assert kept[1][0] == data.sum()
        again = client.submit(look, given, workers=[second], tag="a", pure=False).result()
        assert again[1][0] == data.sum()
        client.amm.start()
    np.testing.assert_array_equal(data, make(0))


def test_a_large_argument_in_a_graph_passes_the_scheduler_in_memory(client):
    data = make(11)
    future = client.submit(look, data, tag="a", pure=False)
    _, (total, *_), held = future.result()
    assert total == data.sum()
    assert len(held) == 1
    assert held <= held_by(os.getpid()), "the scheduler, which is in this process, has it too"


def test_with_a_worker_that_does_not_share_data_is_sent(client):
    data = make(5)
    future = client.send(data)
    (address,) = workers(client, "apart")
    (pid,) = pids(client, "apart").values()
    here = client.submit(look, future, tag="a").result()
    there = client.submit(look, future, tag="apart", workers=[address]).result()
    assert here[1] == there[1]
    assert (there[0], there[2]) == (pid, set())
    made = client.submit(make, 9, tag="apart", pure=False)
    assert client.submit(look, made, tag="a").result()[1][0] == make(9).sum()
    np.testing.assert_array_equal(made.result(), make(9))


def test_readers_outlive_the_worker_that_made_the_data(client):
    before = workers(client)
    owner, other, _ = before
    owner_pid = pids(client)[owner]
    client.amm.stop()  # it would leave one copy of the data, perhaps that of the owner
    future = client.submit(make, 21, workers=[owner], tag="a", pure=False)
    mine = future.result()
    assert client.submit(look, future, workers=[other], tag="a").result()[1][0] == make(21).sum()
    os.kill(owner_pid, signal.SIGKILL)
    eventually(lambda: not psutil.pid_exists(owner_pid))
    np.testing.assert_array_equal(mine, make(21))
    assert client.submit(look, future, tag="a", pure=False).result()[1][0] == make(21).sum()
    client.amm.start()
    del future, mine
    eventually(lambda: len(workers(client)) == SHARING)
    eventually(lambda: not any(held_by(pid) for pid in pids(client).values()))


def test_a_reader_that_is_killed_while_it_reads_leaves_nothing(client, tmp_path, most_segments):
    data, told, begun = make(31), tmp_path / "told", tmp_path / "begun"
    begun.mkdir()
    with client.pool(tag="a") as pool:
        futures = [pool.submit(wait_for, told, begun, data) for _ in range(6)]
        eventually(lambda: len(list(begun.iterdir())) == SHARING)
        os.kill(int(next(begun.iterdir()).name), signal.SIGKILL)
        told.touch()
        assert {future.result() for future in futures} == {data.sum()}
    del futures
    eventually(lambda: len(workers(client)) == SHARING)
    eventually(lambda: not any(held_by(pid) for pid in pids(client).values()))
    eventually(lambda: opened_by(os.getpid()) <= most_segments)


def test_after_kill_9_of_client_and_scheduler_nothing_holds_the_data(tmp_path):
    script = tmp_path / "workflow.py"
    script.write_text(
        textwrap.dedent("""
        import os, signal
        import numpy as np
        from scalable import ScalableSession
        def look(array):
            return os.getpid()
        if __name__ == "__main__":
            session = ScalableSession.local({"a": 2}, processes=True)
            client = session.start()
            future = client.send(np.arange(500_000.0))
            for address in client.scheduler_info()["workers"]:
                client.submit(look, future, workers=[address], pure=False).result()
            print(*client.run(os.getpid).values(), flush=True)
            signal.pause()
        """)
    )
    before = set(os.listdir("/dev/shm"))
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    started = [int(pid) for pid in process.stdout.readline().split()]
    assert len(started) == 2
    held = set.union(*map(held_by, started))
    assert len(held) == 1
    process.kill()
    process.communicate(timeout=60)
    eventually(lambda: not any(map(psutil.pid_exists, started)))
    eventually(lambda: set(os.listdir("/dev/shm")) <= before)
    everywhere = [held_by(pid) for pid in psutil.pids() if pid != os.getpid()]
    assert not held & set.union(set(), *everywhere)
