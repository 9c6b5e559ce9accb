"""Adaptive pools on the real engine, beside what the simulator says of the same calls.

    python benchmarks/adaptive.py [--rounds 5]

200 sleeping calls in two pools of worker processes, from zero; time until the last result, and
worker-seconds from when workers were asked for until they ended or the last result was there. The
simulator is given the same policy, bounds and interval, and the start-up times of the round.

    python benchmarks/adaptive.py --tick

What one look at a pool costs with 10,000 queued calls; the bar is 5 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from scalable import ScalableSession
from scalable.scaling.policy import PoolScaler
from scalable.scaling.task_model import Kind
from scalable.simulation.result import Startup
from scalable.simulation.simulator import simulate
from scalable.simulation.workloads import Call, Terms, Workload

AIM = 0.15
TICK_BAR_MS = 5.0
INTERVAL_S = 1.0
#: Tag -> calls, their seconds, and most workers.
POOLS = {"a": (120, 1.0, 6), "b": (80, 2.0, 6)}
MANIFEST = f"""version: 1
project: {{name: bench}}
targets: {{local: {{provider: local, processes: true, adaptive: {{minimum: 0}}}}}}
components:
  a: {{workers: {{minimum: 0, maximum: {POOLS["a"][2]}}}}}
  b: {{workers: {{minimum: 0, maximum: {POOLS["b"][2]}}}}}
"""


class Round(NamedTuple):
    """What one run took: seconds, worker-seconds, and seconds of each start."""

    time_s: float
    cost_s: float
    starts_s: list[float]


def live() -> Round:
    session = ScalableSession.from_yaml(target="local")
    with session as client:
        began = time.time()
        futures = []
        for tag, (calls, seconds, _) in POOLS.items():
            futures += client.map(time.sleep, [seconds] * calls, tag=tag, pure=False)
        client.gather(futures)
        ended = time.time()
        path = session.run_path
    asked, connected, gone = {}, {}, {}
    times: dict[str, dict[str, float]] = {
        "requested": asked,
        "started": connected,
        "removed": gone,
    }
    for line in (path / "workers.jsonl").read_text().splitlines():
        row = json.loads(line)
        times[row["event"]].setdefault(row["worker"], row["timestamp"])
    cost = sum(min(gone.get(name, ended), ended) - min(at, ended) for name, at in asked.items())
    starts = [connected[name] - at for name, at in asked.items() if name in connected]
    return Round(ended - began, cost, starts)


def simulated(starts_s: list[float]) -> tuple[float, float]:
    """Time and cost that the simulator says, median of eleven seeds."""
    middle = statistics.median(starts_s)
    spread = min(starts_s) / middle, max(starts_s) / middle
    startup = Startup(middle, billed_s=middle, spread=spread, expected_s=1.0)
    calls = [
        Call(Kind(tag, "sleep"), seconds)
        for tag, (count, seconds, _) in POOLS.items()
        for _ in range(count)
    ]
    terms = {tag: Terms(0, most) for tag, (_, _, most) in POOLS.items()}
    workload = Workload("sleeping", tuple(calls), terms, stream=True)
    outcomes = [
        simulate(workload, lambda _: PoolScaler(), startup, every_s=INTERVAL_S, seed=seed)
        for seed in range(11)
    ]
    return (
        statistics.median(outcome.makespan_s for outcome in outcomes),
        statistics.median(outcome.cost for outcome in outcomes),
    )


def compare(rounds: int) -> None:
    rows: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        seen = live()
        time_s, cost_s = simulated(seen.starts_s)
        values = (seen.time_s, time_s, seen.cost_s, cost_s, statistics.median(seen.starts_s))
        for name, value in zip(
            ("time", "time sim", "cost", "cost sim", "start"), values, strict=True
        ):
            rows[name].append(value)
        print(
            f"round {number + 1}: {seen.time_s:.1f} s, simulated {time_s:.1f} s; "
            f"{seen.cost_s:.0f} worker-seconds, simulated {cost_s:.0f}; "
            f"{len(seen.starts_s)} workers started in {values[-1]:.1f} s"
        )
    for name, unit in (("time", "s"), ("cost", "worker-seconds")):
        real, told = (statistics.median(rows[key]) for key in (name, f"{name} sim"))
        print(
            f"{name}: median {real:.1f} {unit}, simulated {told:.1f}: "
            f"{real / told - 1:+.0%}; aim within {AIM:.0%}"
        )


def tick() -> None:
    session = ScalableSession.local({"a": 8, "b": 8}, processes=False)
    with session as client:
        cluster: Any = session.cluster
        adaptives = [cluster.adapt(tag, 8, 8, interval=0.2) for tag in "ab"]
        futures = client.map(time.sleep, [60] * 10_000, tag="a", pure=False)
        time.sleep(3)
        spent = []
        for _ in range(50):
            time.sleep(0.2)
            spent.append(1000 * adaptives[0].took_s)
        print(
            f"a look at a pool with 10,000 queued calls: median {statistics.median(spent):.2f} ms, "
            f"longest {max(spent):.2f} ms; bar {TICK_BAR_MS:g} ms"
        )
        waiting = client.map(lambda x: x, futures, tag="b")
        time.sleep(3)
        spent = []
        for _ in range(50):
            time.sleep(0.2)
            spent.append(1000 * adaptives[1].took_s)
        print(
            f"with 10,000 more that wait for them: median {statistics.median(spent):.2f} ms, "
            f"longest {max(spent):.2f} ms"
        )
        client.cancel([*waiting, *futures])
        os._exit(0)  # the sleeping threads would be waited for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tick", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        os.environ["XDG_STATE_HOME"] = f"{directory}/state"
        os.environ["SCALABLE_RUNS_DIR"] = f"{directory}/runs"
        Path("scalable.yaml").write_text(MANIFEST)
        tick() if options.tick else compare(options.rounds)


if __name__ == "__main__":
    main()
