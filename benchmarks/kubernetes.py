"""Kubernetes on the test bed: requests for many pods, and the time to a first result.

    python benchmarks/kubernetes.py [--pods 200] [--rounds 5] [--only requests|first]

The requests are those that the API server of the test bed counts while pods are asked for and
removed; their image takes long to pull, so that no program runs. The first result is measured in
cold processes, alternating with a detached local cluster.
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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from kubernetes_bed import KubernetesBed

MOST_REQUESTS = 450
BAR = 1.5
MANIFEST = """\
version: 1
project: {name: bench}
targets:
  local: {provider: local, processes: true}
  k: {provider: kubernetes, image: "site/scalable:1"}
components:
  a: {cpus: 0.05, memory: 500M, workers: 1}
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("requests", "first"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, KubernetesBed() as bed:
        os.chdir(directory)
        os.environ["XDG_STATE_HOME"] = f"{directory}/state"
        os.environ["KUBECONFIG"] = str(bed.kubeconfig())
        if asked.only != "first":
            count_requests(bed, asked.pods)
        if asked.only != "requests":
            compare_first_results(asked.rounds)
        os.chdir("/")


if __name__ == "__main__":
    main()
