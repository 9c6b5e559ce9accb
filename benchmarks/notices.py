"""Machines that are taken back: what a notice brings, on workers with a fake metadata service.

    python benchmarks/notices.py [--rounds 5] [--notice 30] [--results 200] [--megabytes 1]

Each round: one of two workers holds results and runs a call when its notice comes. Shown are the
seconds from the notice to the request for the successor, to the last result on another worker and
to the connection of the successor; the results that had to be computed again; and how often the
call ran that does not end within the notice, in a second series.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "places"))

from taken_back import MachineLauncher

from scalable import PoolCluster, ScalableClient
from scalable.manager.pools import Pool

POLL_S = 0.02
SHORT_S = 5.0


def waited(condition: Callable[[], Any], what: str) -> float:
    """Wait until a condition holds; return the seconds."""
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() - began > 300:
            raise SystemExit(f"waited 300 s in vain: {what}")
        time.sleep(POLL_S)
    return time.perf_counter() - began


def made(path: str, size: int) -> bytes:
    with Path(path).open("a") as file:
        file.write("x")
    return bytes(size)


def sleeps(path: str, seconds: float) -> None:
    made(path, 0)
    time.sleep(seconds)


def runs(path: Path) -> int:
    return len(path.read_text()) if path.exists() else 0


def only_there(address: str, dask_scheduler: Any) -> int:
    worker = dask_scheduler.workers.get(address)
    return 0 if worker is None else sum(len(task.who_has) < 2 for task in worker.has_what)


def busy(client: ScalableClient) -> tuple[str, str]:
    """Return address and name of the worker that has a task to run."""
    (address,) = [address for address, keys in client.processing().items() if keys]
    return address, client.scheduler_info(n_workers=-1)["workers"][address]["name"]


def main() -> None:
    """Run both series, and show the medians and the largest values."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--notice", type=float, default=30.0)
    parser.add_argument("--results", type=int, default=200)
    parser.add_argument("--megabytes", type=float, default=1.0)
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp())
    launcher = MachineLauncher("ec2", directory, given.notice)
    asked, moved, there, cut = [], [], [], []
    again = 0
    with PoolCluster() as cluster:
        launcher.scheduler, launcher.security = cluster.scheduler_address, cluster.security
        launcher.tag, launcher.manager = "a", "embedded"
        cluster.add_pools([Pool("a", launcher, {"cls": "machine", "options": {}})])
        cluster.scale("a", 2)
        client = ScalableClient(cluster)
        for number in range(given.rounds):
            client.wait_for_workers(2, timeout=60)
            waited(lambda: cluster.pools["a"].running == 2, "two workers")
            count, size = directory / f"made{number}", int(given.megabytes * 1e6)
            keep = [
                client.submit(made, str(count), size, tag="a", pure=False)
                for _ in range(given.results)
            ]
            client.gather([client.submit(len, one, tag="a", pure=False) for one in keep])
            call = client.submit(sleeps, str(directory / f"c{number}"), 5.0, tag="a", pure=False)
            waited(lambda: any(client.processing().values()), "the call")
            address, name = busy(client)
            before = len(launcher.requested)
            launcher.take_back(name)
            began = time.perf_counter()
            waited(lambda n=before: len(launcher.requested) > n, "the successor")
            asked.append(time.perf_counter() - began)
            waited(lambda a=address: not client.run_on_scheduler(only_there, a), "the results")
            moved.append(time.perf_counter() - began)
            waited(lambda: cluster.pools["a"].running == 2, "the successor")
            there.append(time.perf_counter() - began)
            call.result(timeout=60)
            client.gather([client.submit(len, one, tag="a", pure=False) for one in keep])
            again += runs(count) - given.results
        for number in range(given.rounds):
            waited(lambda: cluster.pools["a"].running == 2, "two workers")
            path = directory / f"cut{number}"
            call = client.submit(sleeps, str(path), SHORT_S + 2, tag="a", pure=False)
            waited(lambda p=path: runs(p), "the call")
            launcher.take_back(busy(client)[1], notice_s=SHORT_S)
            call.result(timeout=120)
            cut.append(runs(path))
        client.close()
    for words, values in (
        ("to the request for the successor", asked),
        (f"to {given.results} results of {given.megabytes:g} MB elsewhere", moved),
        ("to the connection of the successor", there),
    ):
        print(f"{words:45} median {statistics.median(values):5.2f} s, most {max(values):5.2f} s")
    print(f"results computed again: {again} of {given.rounds * given.results}")
    print(f"runs of each call of {SHORT_S + 2:g} s with {SHORT_S:g} s notice: {sorted(set(cut))}")


if __name__ == "__main__":
    main()
