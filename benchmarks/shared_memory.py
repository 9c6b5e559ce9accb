"""One large array for all workers of a machine: times beside one copy, and the memory that is held.

    python benchmarks/shared_memory.py [--megabytes 1000] [--workers 8] [--rounds 5]

An array of random numbers is given to each of the workers in one call. Contenders are our workers
with shared memory, the same with sockets, and ray's object store where ray is installed; they take
turns, each in a process of its own, whose first round is shown apart. Beside them, in the same
process and round, stands a copy of the array by one thread into new shared memory.

*reached*: all calls have begun with the array, and have answered with a few of its numbers; *cpu*:
the CPU time of all processes until then over that of the copy into shared memory. *used*: each of a
second call for each worker has read a number of each page too. *held*: the sum of the proportional
set sizes (PSS) of all processes, servers too, while a call on each worker has the array and has
read it, less that before the first round; the array that the client had is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

MB = 1_000_000
PAGE = 4096 // 8
#: Sockets hold the array once for each worker: theirs is smaller, and its times are scaled up.
SOCKET_SHARE = 0.3
DONE = "done"


def reached(array: Any) -> tuple[float, float]:
    return float(array[0]), float(array[-1])


def used(array: Any) -> float:
    """Return the sum over one number of each page."""
    return float(array[::PAGE].sum())


def hold(directory: str, array: Any) -> float:
    """Read each page of an array, say so, and keep the array until all memory was counted."""
    total = used(array)
    (Path(directory) / str(os.getpid())).touch()
    while not (Path(directory) / DONE).exists():
        time.sleep(0.02)
    return total


#: Runs a function on all workers, each with the array; returns their results.
OnAll = Callable[[Callable[[Any], Any]], list[Any]]


@contextmanager
def ours(workers: int, shared: str) -> Iterator[Any]:
    """Yield a function that gives an array to our workers, and returns how to run calls on it."""
    os.environ["SCALABLE_SHARED_MEMORY"] = shared
    from scalable import ScalableSession

    session = ScalableSession.local({"a": workers}, processes=True)
    client = session.start()
    client.wait_for_workers(workers)
    addresses = list(client.scheduler_info(n_workers=-1)["workers"])

    def give(array: Any) -> OnAll:
        future = client.send(array)
        return lambda function: client.gather(
            [client.submit(function, future, workers=[a], pure=False) for a in addresses]
        )

    yield give
    session.close()


@contextmanager
def rays(workers: int, size: int) -> Iterator[Any]:
    """Yield the same for actors of ray, which are processes."""
    # Its servers start slowly on a machine that is busy.
    os.environ["RAY_agent_register_timeout_ms"] = "200000"  # noqa: SIM112
    os.environ["RAY_raylet_start_wait_time_s"] = "200"  # noqa: SIM112
    import ray

    memory = max(3 * size, 10**9)
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    ray.init(num_cpus=workers, object_store_memory=memory, **quiet)

    @ray.remote(num_cpus=1)
    class Worker:
        def call(self, function: Any, array: Any) -> Any:
            return function(array)

    actors = [Worker.remote() for _ in range(workers)]

    def give(array: Any) -> OnAll:
        reference = ray.put(array)
        return lambda function: ray.get([a.call.remote(function, reference) for a in actors])

    yield give
    ray.shutdown()


def total(measure: Callable[[psutil.Process], float]) -> float:
    """Return the sum of a measure over this process and all that it started."""
    found, own = 0.0, psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.Error):
            found += measure(process)
    return found


held = partial(total, lambda process: process.memory_full_info().pss)
cpu_s = partial(total, lambda process: sum(process.cpu_times()[:2]))


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = function()
    return time.perf_counter() - begin, result


def copy_shared(array: Any) -> int:
    """Copy an array into a new file in memory, and return its descriptor."""
    data, done = memoryview(array).cast("B"), 0
    descriptor = os.memfd_create("copy")
    while done < len(data):
        done += os.write(descriptor, data[done:])
    return descriptor


def measured(
    give: Callable[[Any], OnAll], size: int, workers: int, rounds: int
) -> list[dict[str, float]]:
    """Return the times and the memory of each round, after calls with a small array."""
    give(np.ones(300_000))(used)
    array = np.random.default_rng(0).random(size // 8)
    before = held()
    return [one_round(give, array, workers, before) for _ in range(rounds)]


def one_round(
    give: Callable[[Any], OnAll], array: Any, workers: int, before: float
) -> dict[str, float]:
    """Return the times and the memory of one round, given the bytes held before the first."""
    begin_cpu_s = cpu_s()
    copied, descriptor = timed(partial(copy_shared, array))
    copied_cpu_s = cpu_s() - begin_cpu_s
    os.close(descriptor)
    begin_cpu_s = cpu_s()
    given, on_all = timed(partial(give, array))
    reach, answers = timed(partial(on_all, reached))
    reached_cpu_s = cpu_s() - begin_cpu_s
    use, sums = timed(partial(on_all, used))
    assert set(answers) == {reached(array)}
    # Sockets may give an array that is not aligned: numpy adds its numbers in another order.
    assert np.allclose(sums, used(array))
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor() as threads:
        holding = threads.submit(on_all, partial(hold, directory))
        while len(list(Path(directory).iterdir())) < workers:
            time.sleep(0.02)
        memory = held() - before
        (Path(directory) / DONE).touch()
        holding.result()
    del on_all, holding
    time.sleep(1)
    return {
        "copy": copied,
        "given": given,
        "reached": given + reach,
        "used": given + reach + use,
        "cpu": reached_cpu_s / max(copied_cpu_s, 0.01),
        "held": memory / array.nbytes,
    }


def run_alone(name: str, size: int, workers: int, rounds: int) -> list[dict[str, float]]:
    arguments = (name, str(size), str(workers), str(rounds))
    done = subprocess.run(
        [sys.executable, __file__, "--alone", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def alone(name: str, size: int, workers: int, rounds: int) -> None:
    context = rays(workers, size) if name == "ray" else ours(workers, str(int(name == "shared")))
    with context as give:
        print(json.dumps(measured(give, size, workers, rounds)))


def row(name: str, size: int, rounds: list[dict[str, float]]) -> str:
    """Return a line of the table: medians, and of the ratio to a copy the smallest and largest."""
    median = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
    ratios = sorted(each["reached"] / each["copy"] for each in rounds)
    ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    times = " | ".join(f"{median[k]:.2f}" for k in ("copy", "given", "reached", "used"))
    return (
        f"| {name} | {size / MB:.0f} | {len(rounds)} | {times} | {ratio} "
        f"| {median['cpu']:.2f} | {median['held']:.2f} |"
    )


TITLE = """
| who | MB | rounds | copy s | given s | reached s | used s | reached / copy \
| cpu | held / size |
|---|---|---|---|---|---|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--alone", nargs=4)
    options = parser.parse_args()
    if options.alone:
        name, *numbers = options.alone
        alone(name, *map(int, numbers))
        return
    size = options.megabytes * MB
    sizes = {"shared": size, "sockets": int(size * SOCKET_SHARE)}
    if importlib.util.find_spec("ray"):
        sizes["ray"] = size
    rounds: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _ in range(options.turns):
        for name, bytes_ in sizes.items():
            first, *later = run_alone(name, bytes_ // 8 * 8, options.workers, options.rounds)
            rounds[f"{name}, first"].append(first)
            rounds[name] += later
    print(f"{options.workers} workers{TITLE}")
    for name, found in sorted(rounds.items()):
        print(row(name, sizes[name.partition(",")[0]], found))


if __name__ == "__main__":
    main()
