"""Kubernetes on the test bed: requests for many pods, the time to a first result, and large data.

    python benchmarks/kubernetes.py [--pods 200] [--rounds 5] [--size 100]
                                    [--only requests|first|tunnel]

``requests``: those that the API server of the test bed counts while pods are asked for and removed;
their image takes long to pull, so that no program runs. ``first``: the first result, in cold
processes. ``tunnel``: large results and arguments, small calls one after the other, and new
connections. The last two take turns with a detached local cluster, whose results come from their
worker; "through the scheduler" is the way of the tunnel's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from distributed import Client, wait

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from kubernetes_bed import KubernetesBed

MOST_REQUESTS = 450
MB = 1_000_000
SMALL_CALLS = 50
BAR = 1.5
MANIFEST = """\
version: 1
project: {name: bench}
targets:
  local: {provider: local, processes: true}
  k: {provider: kubernetes, image: "site/scalable:1"}
components:
  a: {cpus: 0.05, memory: 4G, workers: 1}
"""
MANY = MANIFEST.replace("workers: 1", 'workers: 0, image: "slow/model:1"')
SESSION = """
from scalable import ScalableSession
session = ScalableSession.from_yaml(target=%r)
client = session.start(%s)
assert client.submit(abs, -1, tag="a").result() == 1
print("there", flush=True)
session.close()
"""


def waited(condition: Callable[[], bool], what: str) -> float:
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() - began > 300:
            raise SystemExit(f"waited 300 s in vain: {what}")
        time.sleep(0.1)
    return time.perf_counter() - began


def count_requests(bed: KubernetesBed, pods: int) -> None:
    from scalable import ScalableSession

    Path("many.yaml").write_text(MANY)
    bed.image("slow/*", delay=3600)
    for number in range(-(-pods // 100)):
        bed.add_node(f"bench-{number}", cpu="64", memory="256Gi")
    session = ScalableSession.from_yaml("many.yaml", target="k")
    session.start()
    try:
        launcher, watch = session.cluster.site.launcher, session.cluster.site.watch
        bed.requests(reset=True)
        session.scale("a", pods)
        up = waited(lambda: len(watch.pods) == pods + 1, "the pods")
        asked = bed.requests()
        session.scale("a", 0)
        down = waited(lambda: not launcher._names and len(watch.pods) == 1, "their end")
        found = bed.requests()
    finally:
        session.close()
    total = sum(found.values())
    print(f"{pods} pods: {sum(asked.values())} requests in {up:.1f} s, and {down:.1f} s to the end")
    for name, number in sorted(found.items(), key=lambda item: -item[1]):
        print(f"  {name:24}{number:6}")
    verdict = "within" if total <= MOST_REQUESTS * pods / 200 else "OVER"
    print(f"  {'together':24}{total:6}  {verdict} the bar of {MOST_REQUESTS} for 200 pods")


def first_result_s(target: str, options: str) -> float:
    """Return the seconds until the result is there; the end is outside of the measure."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", SESSION % (target, options)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    spent = time.perf_counter() - began
    process.communicate(timeout=120)
    if options:
        down = [sys.executable, "-m", "scalable", "down", "bench", "--yes", "--format", "quiet"]
        subprocess.run(down, check=True, timeout=120)
    return spent


def compare_first_results(rounds: int) -> None:
    Path("scalable.yaml").write_text(MANIFEST)
    ways = {"detached local": ("local", "detach=True, name='bench'"), "on the test bed": ("k", "")}
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, asked in ways.items():
            spent[way].append(first_result_s(*asked))
    medians = {way: statistics.median(seconds) for way, seconds in spent.items()}
    ratio = medians["on the test bed"] / medians["detached local"]
    for way, median in medians.items():
        print(f"{way:18} first result after {median:.2f} s (median of {rounds})")
    print(f"ratio {ratio:.2f} x; bar {BAR:g} x")


def size_of(data: bytes) -> int:
    return len(data)


class Place:
    """A running cluster, and what is measured on it."""

    def __init__(self, name: str, client: Any, size: int) -> None:
        self.name = name
        self.client = client
        self.size = size
        self.pool = client.pool(tag="a")
        self.made = client.submit(os.urandom, size, tag="a")
        wait(self.made)
        self.pool.submit(size_of, b"").result()

    def result(self) -> None:
        """Fetch a large result; from its worker if the client can."""
        direct = True if self.name == "local" else None
        assert len(self.client.gather(self.made, direct=direct)) == self.size

    def relayed_result(self) -> None:
        assert len(self.client.gather(self.made, direct=False)) == self.size

    def argument(self) -> None:
        data = os.urandom(16) + bytes(self.size - 16)
        assert self.pool.submit(size_of, data).result() == self.size

    def small_calls(self) -> None:
        for _ in range(SMALL_CALLS):
            self.pool.submit(size_of, b"").result()

    def connection(self) -> None:
        Client(self.client.scheduler.address, security=self.client.security).close()


def compare_data(rounds: int, size: int) -> None:
    from scalable import ScalableSession

    Path("scalable.yaml").write_text(MANIFEST)
    verbs: dict[str, Callable[[Place], None]] = {
        "result": Place.result,
        "result through the scheduler": Place.relayed_result,
        "argument": Place.argument,
        f"{SMALL_CALLS} small calls": Place.small_calls,
        "connection": Place.connection,
    }
    remote, near = (ScalableSession.from_yaml(target=target) for target in ("k", "local"))
    with ExitStack() as ending:
        ending.callback(remote.close)
        remote.start().wait_for_workers(1)
        near.start(detach=True, name="bench").wait_for_workers(1)
        ending.callback(near.close)
        ending.callback(near.cluster.delete)
        both = [Place("local", near.client, size), Place("tunnel", remote.client, size)]
        for name, verb in verbs.items():
            spent: dict[str, list[float]] = {place.name: [] for place in both}
            for _ in range(rounds):
                for place in both:
                    began = time.perf_counter()
                    verb(place)
                    spent[place.name].append(time.perf_counter() - began)
            local, tunnel = (statistics.median(spent[place.name]) for place in both)
            print(f"{name:30} local {local:.3f} s, tunnel {tunnel:.3f} s, {tunnel / local:.1f} x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("requests", "first", "tunnel"))
    parser.add_argument("--size", type=int, default=100, help="megabytes")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, KubernetesBed() as bed:
        os.chdir(directory)
        os.environ["XDG_STATE_HOME"] = f"{directory}/state"
        os.environ["KUBECONFIG"] = str(bed.kubeconfig())
        if asked.only in (None, "requests"):
            count_requests(bed, asked.pods)
        if asked.only in (None, "first"):
            compare_first_results(asked.rounds)
        if asked.only in (None, "tunnel"):
            compare_data(asked.rounds, asked.size * MB)
        os.chdir("/")


if __name__ == "__main__":
    main()
