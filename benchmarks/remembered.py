"""CacheCounts results: keys, hits, misses, and calls that are not remembered; beside others.

    python benchmarks/remembered.py [--rounds 9] [--quick] [--only NAME ...]

``key``: the key of a call with an array of 100 MB beside the hash of its bytes.
``hits``: 10,000 calls whose results are there, by ``submit`` and by ``map``, on a cluster that has
no worker; and with the results gathered.
``misses``: a call that is remembered and new beside a call that is not remembered, one after the
other, each waited for.
``plain``: ``submit`` and ``map`` without ``cache`` beside the same client whose calls do not pass
the layer that remembers: neighbouring batches, in CPU time of the thread that submits.
``peers``: the same 1,000 calls twice, new and found again, by ``scalable.cached`` and, where it is
installed, joblib.Memory, in this process, and by ``client.map``.

Contenders alternate. Ratios are of neighbouring rounds: the median with the quartiles.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any

from distributed import LocalCluster

from scalable import ScalableClient, cached
from scalable.cache.key import KeyMaker
from scalable.model.cache_settings import CacheSettings
from scalable.quantiles import quantile

KEY_BAR, HITS_BAR, MISS_BAR_MS = 1.5, 5000, 5.0
MODEL = """
RATE = 3

def scaled(x):
    return x * RATE

def small(x, shift=1):
    return scaled(x) + shift

def total(array):
    return float(array.sum())
"""


def timed(function: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    gc.collect()
    began = clock()
    function()
    return clock() - began


def shown(values: Sequence[float]) -> str:
    """Return the median and the quartiles."""
    low, middle, high = (quantile(sorted(values), q) for q in (0.25, 0.5, 0.75))
    return f"{middle:,.4g} (quartiles {low:,.4g} to {high:,.4g})"


def verdict(met: bool, bar: str) -> str:
    return f"bar {bar}: {'met' if met else 'MISSED'}"


def ratios(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(one, other, strict=True)]


def directory() -> str:
    return tempfile.mkdtemp(dir=os.environ["TMPDIR"])


@contextmanager
def client(workers: int, store: str) -> Iterator[Any]:
    """A client that remembers in a store, of a cluster with as many processes."""
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster,
        ScalableClient(cluster, remembering=CacheSettings(store)) as made,
    ):
        yield made


# The key of a large argument ----------------------------------------------------------------------


def large_key(model: Any, rounds: int) -> None:
    import numpy as np

    array = np.random.default_rng(1).random(100_000_000 // 8)
    keys = KeyMaker()
    making: list[float] = []
    hashing: list[float] = []
    for _ in range(rounds):
        making.append(timed(lambda: keys.key(model.total, (array,), {})))
        hashing.append(timed(lambda: blake2b(array, digest_size=32).hexdigest()))
    found = ratios(making, hashing)
    print(f"\nkey of a call with 100 MB, beside the hash of its bytes: {shown(found)}")
    print(f"  {1000 * statistics.median(making):.0f} ms; ", end="")
    print(verdict(statistics.median(found) <= KEY_BAR, f"{KEY_BAR:g} x"), flush=True)


def age(store: str) -> None:
    """Let all results of a store be used a day ago."""
    yesterday = time.time() - 86_400
    for path in Path(store, "results-2").glob("*/*"):
        os.utime(path, (yesterday, yesterday))


# Hits ---------------------------------------------------------------------------------------------


def hits(model: Any, rounds: int, calls: int) -> None:
    store = directory()
    fill = cached(store=store)(model.small)
    for number in range(calls):
        fill(number)
    ways: dict[str, Callable[[Any], Any]] = {
        "submit": lambda c: [c.submit(model.small, x, cache=True) for x in range(calls)],
        "map": lambda c: c.map(model.small, range(calls), cache=True),
        "map, gathered": lambda c: c.gather(c.map(model.small, range(calls), cache=True)),
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    with LocalCluster(n_workers=0, dashboard_address=":0") as cluster:
        for _ in range(rounds):
            for way, run in ways.items():
                # Each round has a client of its own: none knows a future of an earlier one. Each
                # result was used yesterday: that it is used again is noted.
                age(store)
                with ScalableClient(cluster, remembering=CacheSettings(store)) as user:
                    rates[way].append(calls / timed(lambda run=run, user=user: run(user)))
    print(f"\n{calls:,} hits of small calls, no worker; calls a second")
    for way, found in rates.items():
        met = verdict(statistics.median(found) >= HITS_BAR, f"{HITS_BAR:,}")
        print(f"  {way:14} {shown(found)}; {met}", flush=True)


# Misses -------------------------------------------------------------------------------------------


def misses(model: Any, calls: int) -> None:
    fresh = count()
    plain: list[float] = []
    remembered: list[float] = []
    with client(1, directory()) as user:
        for _ in range(20):
            user.submit(model.small, next(fresh), cache=True).result()
        gc.collect()
        gc.disable()
        for _ in range(calls):
            for times, options in ((plain, {}), (remembered, {"cache": True})):
                began = time.perf_counter()
                user.submit(model.small, next(fresh), pure=False, **options).result()
                times.append(1000 * (time.perf_counter() - began))
        gc.enable()
    more = [a - b for a, b in zip(remembered, plain, strict=True)]
    print(f"\n{calls:,} calls one after the other, ms each")
    for name, times in (("plain", plain), ("remembered, new", remembered), ("difference", more)):
        print(
            f"  {name:16} median {statistics.median(times):.2f}, p90 "
            f"{quantile(sorted(times), 0.9):.2f}"
        )
    print(f"  {verdict(statistics.median(more) < MISS_BAR_MS, f'{MISS_BAR_MS:g} ms')}", flush=True)


# Calls that are not remembered --------------------------------------------------------------------


#: What the methods in which the calls of a client pass the layer do where they bypass it.
BYPASSED: Mapping[str, Callable[..., Any]] = {
    "_cached_call": lambda *_: None,
    "_resumable_function": lambda function, *_: function,
    "_map_cached": lambda function, columns, _, asked, send: send(function, *columns, key=asked[1]),
}


def bypass(user: Any) -> None:
    vars(user).update(BYPASSED)


def pass_through(user: Any) -> None:
    for name in BYPASSED:
        vars(user).pop(name, None)


def plain(model: Any, rounds: int, calls: int) -> None:
    ways: dict[str, Callable[[Any], Any]] = {
        "submit": lambda c: [c.submit(model.small, x, pure=False) for x in range(calls)],
        "map": lambda c: c.map(model.small, range(calls), pure=False),
    }
    sides = {"with": pass_through, "without": bypass}
    print(f"\n{calls:,} calls that are not remembered: with the layer / without it, CPU time")
    with client(1, directory()) as user:
        for way, run in ways.items():
            seconds: dict[str, list[float]] = {side: [] for side in sides}
            for turn in range(2 * rounds + 1):
                for side in list(sides) if turn % 2 else list(sides)[::-1]:
                    sides[side](user)
                    futures: list[Any] = []
                    took = timed(lambda: futures.extend(run(user)), time.thread_time)  # noqa: B023
                    user.gather(futures)
                    if turn:  # the first one warms up
                        seconds[side].append(took)
            found = ratios(seconds["with"], seconds["without"])
            each = 1e6 * statistics.median(seconds["without"]) / calls
            print(f"  {way:7} {shown(found)}; {each:.0f} us a call without", flush=True)


# Others -------------------------------------------------------------------------------------------


def ours(model: Any, calls: int, store: str) -> Callable[[], Any]:
    function = cached(store=store)(model.small)
    return lambda: [function(number) for number in range(calls)]


def joblibs(model: Any, calls: int, store: str) -> Callable[[], Any]:
    import joblib

    function = joblib.Memory(store, verbose=0).cache(model.small)
    return lambda: [function(number) for number in range(calls)]


def peers(model: Any, rounds: int, calls: int) -> None:
    contenders = {"scalable.cached": ours}
    if importlib.util.find_spec("joblib"):
        contenders["joblib.Memory"] = joblibs
    new: dict[str, list[float]] = {name: [] for name in contenders}
    again: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, make in contenders.items():
            run = make(model, calls, directory())
            new[name].append(timed(run))
            again[name].append(timed(run))
    with client(1, directory()) as user:
        run = lambda: user.gather(user.map(model.small, range(calls), cache=True))  # noqa: E731
        by_map = timed(run), timed(run)
    print(f"\n{calls:,} calls, new and found again; calls a second")
    for name in contenders:
        line = f"  {name:16}"
        for title, seconds in (("new", new), ("found", again)):
            line += f"  {title} {calls / statistics.median(seconds[name]):8,.0f}"
            if name != "scalable.cached":
                faster = ratios(seconds[name], seconds["scalable.cached"])
                line += f", scalable.cached is {shown(faster)} x as fast"
        print(line)
    print(f"  {'client.map':16}  new {calls / by_map[0]:8,.0f}  found {calls / by_map[1]:8,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", default=["key", "hits", "misses", "plain", "peers"])
    given = parser.parse_args()
    logging.getLogger("distributed").setLevel(logging.WARNING)
    share = 10 if given.quick else 1
    with tempfile.TemporaryDirectory(prefix="scalable-bench-") as place:
        os.environ["TMPDIR"] = place
        (Path(place) / "remembered_model.py").write_text(MODEL)
        sys.path.insert(0, place)
        os.environ["PYTHONPATH"] = os.pathsep.join((place, os.environ.get("PYTHONPATH", "")))
        model = importlib.import_module("remembered_model")
        if "key" in given.only:
            large_key(model, given.rounds)
        if "hits" in given.only:
            hits(model, min(given.rounds, 5), 10_000 // share)
        if "misses" in given.only:
            misses(model, 500 // share)
        if "plain" in given.only:
            plain(model, given.rounds, 300 // share)
        if "peers" in given.only:
            peers(model, min(given.rounds, 3), 1000 // share)


if __name__ == "__main__":
    main()
