"""What it costs to place a tagged call, by the number of workers: a scheduler without network.

    python benchmarks/placement.py [--calls 2000]

For each number of workers, half of which carry the tag: an unrestricted call, a tagged call with
Dask's own choice, and a tagged call with ours. Medians of three rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

from distributed.core import Status
from distributed.scheduler import Scheduler, WorkerState

from scalable.scheduler.pool_scheduler import PoolScheduler

WORKERS = (10, 100, 1000, 5000)
FLAT, UNRESTRICTED = 1.5, 2.0


def add_workers(scheduler: Scheduler, count: int) -> None:
    """Have a scheduler know workers that do not exist; every second carries the tag."""
    for i in range(count):
        address = f"tcp://10.0.{i // 250}.{i % 250}:4000"
        worker = WorkerState(
            address=address, status=Status.running, pid=i, name=f"w{i}", nthreads=1,
            memory_limit=2**30, local_directory="", nanny="", server_id=f"s{i}",
            scheduler=scheduler,
        )  # fmt: skip
        scheduler.workers[address] = worker
        scheduler.running.add(worker)
        scheduler.total_nthreads += 1
        worker.resources.update({"a": 1.0} if i % 2 else {})
        scheduler.add_resources(address)
        scheduler.check_idle_saturated(worker)


def placing_us(scheduler: Scheduler, calls: int, *, tagged: bool) -> float:
    tasks = [scheduler.new_task(f"call-{tagged}-{i}", None, "released") for i in range(calls)]
    for task in tasks:
        task.prefix.duration_average = 0.01
        task.priority = (0, 0, 0)
        if tagged:
            task.resource_restrictions = {"a": 1.0}
    began = time.perf_counter()
    for task in tasks:
        worker = scheduler.decide_worker_non_rootish(task)
        assert worker is not None
        scheduler._add_to_processing(task, worker, stimulus_id="benchmark")
    return (time.perf_counter() - began) / calls * 1e6


async def row(count: int, calls: int) -> tuple[float, float, float]:
    rounds = []
    for _ in range(3):
        values = []
        for ours, tagged in ((True, False), (False, True), (True, True)):
            scheduler = PoolScheduler(dashboard=False, dashboard_address=None)
            if not ours:
                scheduler.placement.takes = lambda _: False  # type: ignore[method-assign]
            add_workers(scheduler, count)
            least = 50 if tagged and not ours and count > 500 else calls
            values.append(placing_us(scheduler, min(calls, least), tagged=tagged))
        rounds.append(values)
    unrestricted, dask, ours_us = (
        statistics.median(column) for column in zip(*rounds, strict=True)
    )
    return unrestricted, dask, ours_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    calls = parser.parse_args().calls
    rows = {count: asyncio.run(row(count, calls)) for count in WORKERS}
    print("workers  unrestricted us  tagged, Dask us  tagged, ours us  ours / unrestricted")
    for count, (unrestricted, dask, ours) in rows.items():
        ratio = ours / unrestricted
        print(f"{count:7d}  {unrestricted:15.1f}  {dask:15.1f}  {ours:15.1f}  {ratio:19.2f}")
    ours_all = [values[2] for values in rows.values()]
    spread = max(ours_all) / min(ours_all)
    print(f"flat within {spread:.2f} (bar {FLAT}); "
          f"at most {max(o / u for u, _, o in rows.values()):.2f} x unrestricted "
          f"(bar {UNRESTRICTED})")  # fmt: skip


if __name__ == "__main__":
    main()
