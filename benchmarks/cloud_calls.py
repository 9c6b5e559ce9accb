"""Requests to AWS for many Fargate workers, on the test bed.

    python benchmarks/cloud_calls.py [--workers 100] [--rest 120]

The requests are those that the account of the test bed counts while a launcher asks for workers,
waits at rest, and stops them. The tasks run a program that only sleeps: the number of requests does
not depend on what runs in them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from aws_bed import AwsBed
from scalable.manager.launcher import UnitState
from scalable.model import ComponentSpec
from scalable.providers.aws import render
from scalable.providers.aws.cloud import AWSCloud
from scalable.providers.aws.settings import Settings
from scalable.providers.remote.cloud import WORKERS
from scalable.providers.remote.machine_launcher import MachineLauncher
from scalable.providers.remote.machines import MachineFrame

PROGRAM = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); time.sleep(3600)"
#: Requests for each worker that is started and stopped: RunTask and StopTask, and what is shared.
MOST_FOR_EACH = 3.0
#: Share by which the requests of many workers at rest may exceed those of few.
MOST_AT_REST = 1.2


async def waited(condition: Callable[[], bool], what: str) -> float:
    """Wait until a condition holds; return the seconds."""
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() - began > 600:
            raise SystemExit(f"waited 600 s in vain: {what}")
        await asyncio.sleep(0.2)
    return time.perf_counter() - began


def shown(name: str, calls: Mapping[str, int]) -> int:
    """Print the requests of one part; return their sum."""
    total = sum(calls.values())
    most = sorted(calls.items(), key=lambda item: -item[1])[:8]
    print(f"{name}: {total} requests ({', '.join(f'{n} {call}' for call, n in most)})", flush=True)
    return total


async def measure(bed: AwsBed, count: int, rest_s: float) -> tuple[int, float]:
    """Start, keep and stop workers; return requests up and down, and those of a minute at rest."""
    component = ComponentSpec("a", image="site/scalable:1", cpus=0.25, memory="512M")
    cloud = AWSCloud(Settings(region="us-east-1", kinds=("fargate",)))
    frame = MachineFrame(f"bench{count}", await cloud.owner(), {"image": "site/scalable:1"})
    launcher = MachineLauncher(cloud, frame, "m", {"a": component})
    marks = frame.marks(WORKERS, "m", "a")
    await cloud.put_files(frame.files(WORKERS, "m", "a"), marks, {"worker.json": "{}"})
    names = [f"a-{i}" for i in range(count)]
    bed.calls(reset=True)
    await launcher.launch({name: {"pool": "a"} for name in names})

    def running() -> bool:
        return all(o.state is UnitState.RUNNING for o in launcher.observe().values())

    up_s = await waited(running, f"{count} workers run")
    up = shown(f"{count} workers up in {up_s:.0f} s", bed.calls(reset=True))
    await asyncio.sleep(20)
    bed.calls(reset=True)
    await asyncio.sleep(rest_s)
    rest = shown(f"{count} workers at rest for {rest_s:g} s", bed.calls(reset=True)) * 60 / rest_s
    await launcher.stop(names)
    down = shown(f"{count} workers down", bed.calls(reset=True))
    await launcher.close()
    await cloud.delete_files(frame.marks())
    await cloud.clean(frame.marks())
    await cloud.close()
    return up + down, rest


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--rest", type=float, default=120.0)
    given = parser.parse_args()
    render.program = lambda _request: ["python3", "-c", PROGRAM]  # type: ignore[assignment]
    with AwsBed() as bed:
        bed.settings(delay=0.02)
        os.environ.update(bed.environment())
        few = max(1, given.workers // 10)
        _, rest_few = asyncio.run(measure(bed, few, given.rest))
        total, rest_many = asyncio.run(measure(bed, given.workers, given.rest))
    print(f"requests for each of {given.workers} workers, up and down: {total / given.workers:.2f}")
    rests = f"{rest_few:.1f} with {few}, {rest_many:.1f} with {given.workers}"
    print(f"requests a minute at rest: {rests}")
    good = total <= MOST_FOR_EACH * given.workers and rest_many <= MOST_AT_REST * rest_few
    print("within the bars" if good else "NOT within the bars")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
