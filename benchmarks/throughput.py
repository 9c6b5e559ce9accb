"""Many short calls, beside Dask and what else is installed: rates, makespans, memory, data.

    python benchmarks/throughput.py [--rounds 5] [--quick] [--only NAME ...]

Contenders alternate in each round, on two worker processes of one thread each; each is started
once, before the first round. Medians and ratios are printed. Dask's and ours share one cluster with
TLS; ProcessPoolExecutor has none. joblib
takes part where it is installed.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

SLOTS = 2
PARTS = ("plain", "calls", "mixed", "late", "memory", "data")
MB = 1_000_000
MEMORY = """
import os, resource, sys, time
import psutil
from scalable import ScalableSession

def noop(x):
    return x

def block(seconds):
    time.sleep(seconds)

if __name__ == "__main__":
    session = ScalableSession.local({"a": 1}, processes=True)
    client = session.start()
    client.wait_for_workers(1)
    process, count = psutil.Process(), int(sys.argv[2])
    pool = client.pool(tag="a")
    pool.submit(noop, 0).result()
    client.submit(noop, 0, tag="a").result()
    before = process.memory_info().rss  # the scheduler runs in this process
    blockers = [client.submit(block, 600, tag="a", pure=False)]
    if sys.argv[1] == "dask":
        futures = client.map(noop, range(count), tag="a")
    elif sys.argv[1] == "submit":
        futures = [pool.submit(noop, i) for i in range(count)]
    else:
        futures = pool.map(noop, range(count))
    time.sleep(5)
    print((process.memory_info().rss - before) / 1e6)
    sys.stdout.flush()
    for future in blockers:
        future.cancel()
    session.close()
"""


def noop(x: int) -> int:
    return x


def nap(seconds: float) -> None:
    time.sleep(seconds)


def size_of(data: bytes) -> int:
    return len(data)


class Ours:
    """Calls by our pool."""

    name = "scalable"

    def __init__(self, client: Any) -> None:
        self.pool = client.pool(tag="a")

    def submit(self, function: Callable[..., Any], values: list[Any]) -> None:
        for future in [self.pool.submit(function, value) for value in values]:
            future.result()

    def map(self, function: Callable[..., Any], values: list[Any]) -> None:
        for _ in self.pool.map(function, values):
            pass


class Dask:
    """Calls by Dask's client, tagged by a resource as ours are."""

    name = "dask"

    def __init__(self, client: Any) -> None:
        from distributed import Client

        self.client = Client(client.scheduler.address, security=client.security)

    def submit(self, function: Callable[..., Any], values: list[Any]) -> None:
        options = {"pure": False, "resources": {"a": 1}}
        self.client.gather([self.client.submit(function, value, **options) for value in values])

    def map(self, function: Callable[..., Any], values: list[Any]) -> None:
        self.client.gather(self.client.map(function, values, pure=False, resources={"a": 1}))


class OfExecutor:
    """Calls by any executor of the standard's kind."""

    def __init__(self, name: str, executor: Executor, **mapping: Any) -> None:
        self.name, self.executor, self.mapping = name, executor, mapping

    def submit(self, function: Callable[..., Any], values: list[Any]) -> None:
        for future in [self.executor.submit(function, value) for value in values]:
            future.result()

    def map(self, function: Callable[..., Any], values: list[Any]) -> None:
        options = dict(self.mapping)
        if "chunksize" in options:  # the best of a few that were tried: a quarter of a share
            options["chunksize"] = max(1, len(values) // (4 * SLOTS))
        for _ in self.executor.map(function, values, **options):
            pass


class Joblib:
    """Calls by joblib, which has one verb."""

    name = "joblib"

    def submit(self, function: Callable[..., Any], values: list[Any]) -> None:
        import joblib

        joblib.Parallel(n_jobs=SLOTS)(joblib.delayed(function)(value) for value in values)

    map = submit


def peers(stack: ExitStack) -> Iterator[Any]:
    """What is installed of the others."""
    processes = stack.enter_context(ProcessPoolExecutor(SLOTS))
    yield OfExecutor("processes", processes, chunksize=1)
    if importlib.util.find_spec("joblib"):
        yield Joblib()


@contextmanager
def cluster() -> Iterator[Any]:
    """A client of two worker processes of tag a."""
    from scalable import ScalableSession

    session = ScalableSession.local({"a": SLOTS}, processes=True)
    client = session.start()
    try:
        client.wait_for_workers(SLOTS, timeout=120)
        yield client
    finally:
        session.close()


def timed(function: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    gc.collect()
    began = clock()
    function()
    return clock() - began


def alternate(
    rounds: int,
    runs: dict[str, Callable[[], Any]],
    before: Callable[[], Any] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of each, taken in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds):
        names = list(runs)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if before is not None:
                before()
            seconds[name].append(timed(runs[name], clock))
    return {name: statistics.median(times) for name, times in seconds.items()}


def show(title: str, seconds: dict[str, float], bars: dict[str, float], per: int = 1) -> None:
    """Ours beside the others: seconds, rate, and how many times as fast ours is."""
    print(f"\n{title}")
    ours = seconds["scalable"]
    for name, each in sorted(seconds.items(), key=lambda item: item[1]):
        line = f"  {name:12} {each:9.3f} s  {per / each:12,.0f} a second"
        if name != "scalable":
            line += f"  scalable is {each / ours:7.2f} x as fast"
            if name in bars:
                verdict = "met" if each / ours >= bars[name] else "MISSED"
                line += f" (bar {bars[name]:g}: {verdict})"
        print(line, flush=True)


def plain_tasks(client: Any, rounds: int, *, quick: bool) -> None:
    """Tagged no-ops by ``submit`` and ``map`` of the client, beside Dask's with a resource."""
    count = 500 if quick else 2000
    dask, values = Dask(client).client, range(count)
    ways: dict[str, Callable[..., list[Any]]] = {
        "submit": lambda each, **o: [each.submit(noop, i, pure=False, **o) for i in values],
        "map": lambda each, **o: each.map(noop, values, pure=False, **o),
    }
    for way, start in ways.items():
        runs: dict[str, Callable[[], Any]] = {
            "scalable": lambda start=start: client.gather(start(client, tag="a")),
            "dask": lambda start=start: dask.gather(start(dask, resources={"a": 1})),
        }
        alternate(1, runs)
        show(f"{count} plain tasks by {way}", alternate(rounds, runs), {"dask": 1.0}, count)
        cpu_s = alternate(rounds, runs, clock=time.process_time)
        show("  CPU time of client and scheduler", cpu_s, {"dask": 1.0}, count)
    dask.close()


def short_calls(client: Any, rounds: int, *, quick: bool) -> None:
    """No-ops one by one and by map, and calls of a millisecond."""
    singles, many, naps = (1000, 10_000, 400) if quick else (10_000, 100_000, 4000)
    with ExitStack() as stack:
        ours, dask = Ours(client), Dask(client)
        contenders = [ours, dask, *peers(stack)]
        for each in contenders:
            each.submit(noop, [1] * 20)
        values = list(range(singles))
        runs = {c.name: lambda c=c: c.submit(noop, values) for c in contenders}
        bars = {"dask": 20.0, "processes": 1.0, "joblib": 1.0}
        show(f"{singles} no-ops, one by one", alternate(rounds, runs), bars, singles)

        values = list(range(many))
        runs = {c.name: lambda c=c: c.map(noop, values) for c in contenders if c is not dask}
        seconds = alternate(rounds, runs)
        seconds |= alternate(1, {"dask": lambda: dask.map(noop, values)})
        bars = {"dask": 100.0, "processes": 0.5}
        show(f"{many} no-ops by map (Dask once)", seconds, bars, many)

        values = [0.001] * naps
        runs = {c.name: lambda c=c: c.submit(nap, values) for c in contenders}
        show(f"{naps} calls of 1 ms", alternate(rounds, runs), {"processes": 0.98}, naps)


def makespans(client: Any, rounds: int) -> None:
    """Calls of unequal length, and workers that come late."""
    pool = client.pool(tag="a")
    lengths = [0.0] * 1000 + [1.0] * 20 + [0.0] * 1000
    seconds = [timed(lambda: list(pool.map(nap, lengths))) for _ in range(min(rounds, 3))]
    print(
        "\nmixed, 1,000 x 0 s, 20 x 1 s, 1,000 x 0 s on 2 slots, beside the ideal makespan of 10 s:"
    )
    verdict(statistics.median(seconds) / 10.0, 1.05)


def late_joiners(rounds: int) -> None:
    """200 calls of 0.1 s on one worker, and three more after a second."""
    from scalable import ScalableSession

    ratios = []
    for _ in range(min(rounds, 3)):
        with ScalableSession.local({"a": 1}, processes=True) as client:
            client.wait_for_workers(1, timeout=60)
            pool = client.pool(tag="a")
            pool.submit(noop, 1).result()
            futures, began = [pool.submit(nap, 0.1) for _ in range(200)], time.perf_counter()
            time.sleep(1)
            client.cluster.scale(4)
            joined: list[float] = []
            while len(joined) < 3:
                seen = client.worker_count("a") - 1 - len(joined)
                joined += [time.perf_counter() - began] * seen
                time.sleep(0.005)
            for future in futures:
                future.result()
            took = time.perf_counter() - began
        # All slots are busy from their beginning to the end.
        ratios.append(took / ((200 * 0.1 + sum(joined)) / 4))
    print("\nlate joiners, 200 x 0.1 s, 1 worker + 3 after 1 s, beside the ideal makespan:")
    verdict(statistics.median(ratios), 1.05)


def verdict(ratio: float, bar: float) -> None:
    print(f"  {ratio:.3f} of the ideal (bar {bar:g}: {'met' if ratio <= bar else 'MISSED'})")


def memory(*, quick: bool) -> None:
    """What queued calls cost client and scheduler, which share a process here."""
    count = 10_000 if quick else 100_000
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "memory.py"
        script.write_text(MEMORY)
        used = {}
        for way in ("dask", "submit", "map"):
            shown = subprocess.run(
                [sys.executable, str(script), way, str(count)],
                cwd=directory, env={**os.environ, "SCALABLE_RUNS_DIR": f"{directory}/runs"},
                check=True, capture_output=True, text=True, timeout=600,
            )  # fmt: skip
            used[way] = float(shown.stdout.split()[0])
    print(f"\nmemory of client and scheduler for {count:,} queued calls, MB")
    print("  " + ", ".join(f"{way} {mb:.0f}" for way, mb in used.items()))
    for way in ("submit", "map"):
        share = used[way] / used["dask"]
        met = "met" if share <= 0.25 else "MISSED"
        print(f"  pool.{way}: {share:.3f} of Dask's (bar 0.25, aim 0.1: {met})")


def data(client: Any, rounds: int, *, quick: bool) -> None:
    size = (10 if quick else 100) * MB
    pool, dask = client.pool(tag="a"), Dask(client).client
    options = {"pure": False, "resources": {"a": 1}}
    payload = b""

    def renew() -> None:  # the same bytes would be sent once only
        nonlocal payload
        payload = os.urandom(size)

    runs: dict[str, Callable[[], Any]] = {
        "scalable": lambda: pool.submit(size_of, payload).result(),
        "dask": lambda: dask.submit(size_of, payload, **options).result(),
    }
    bars = {"dask": 1.0}
    show(f"argument of {size // MB} MB", alternate(rounds, runs, renew), bars)
    runs = {
        "scalable": lambda: pool.submit(os.urandom, size).result(),
        "dask": lambda: dask.submit(os.urandom, size, **options).result(),
    }
    show(f"result of {size // MB} MB", alternate(rounds, runs), bars)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", default=PARTS)
    given = parser.parse_args()
    os.environ["SCALABLE_RUNS_DIR"] = tempfile.mkdtemp()
    with cluster() as client:
        if "plain" in given.only:
            plain_tasks(client, given.rounds, quick=given.quick)
        if "calls" in given.only:
            short_calls(client, given.rounds, quick=given.quick)
        if "mixed" in given.only:
            makespans(client, given.rounds)
        if "data" in given.only:
            data(client, given.rounds, quick=given.quick)
    if "late" in given.only:
        late_joiners(given.rounds)
    if "memory" in given.only:
        memory(quick=given.quick)


if __name__ == "__main__":
    main()
