"""Adaptive pools on the real engine, beside the simulation of the same calls.

    python benchmarks/adaptive.py [--rounds 2]

Three workloads of sleeping calls in two pools of worker processes, from zero workers, with two
start-up times: worker processes as they are, and a launcher that waits for ten seconds before it
starts one. Compared are the time (until the last result; for calls that arrive over time, the mean
time from a call's arrival to its end), and the worker-seconds from the request of a worker to its
end or to the last result. The simulator runs the same policy, bounds and interval, with the
start-up times and the running times of the round.

    python benchmarks/adaptive.py --tick

Cost of one decision for a pool with 10,000 queued calls; the bar is 5 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from scalable import ScalableSession
from scalable.manager.launcher import UnitName
from scalable.providers.local import launcher as local_launcher
from scalable.scaling.policy import PoolScaler
from scalable.scaling.task_model import Kind
from simulation.simulator import simulate
from simulation.workloads import Call, Startup, Terms, Workload

AIM = 0.15
TICK_BAR_MS = 5.0
INTERVAL_S = 1.0
#: Seconds that the launcher waits before it starts a worker.
DELAYS_S = (0.0, 10.0)
TERMS = {"a": Terms(0, 6), "b": Terms(0, 6)}
MANIFEST = f"""version: 1
project: {{name: bench}}
targets: {{local: {{provider: local, processes: true, adaptive: {{minimum: 0}}}}}}
components:
  a: {{workers: {{minimum: 0, maximum: {TERMS["a"].maximum}}}}}
  b: {{workers: {{minimum: 0, maximum: {TERMS["b"].maximum}}}}}
tasks: {{short: {{component: a}}, long: {{component: b}}, merge: {{component: a}}}}
"""
SHORT, LONG, MERGE = Kind("a", "short"), Kind("b", "long"), Kind("a", "merge")


# Workloads ---------------------------------------------------------------------------------------


def bag() -> Workload:
    """Equal calls in each pool, all submitted at once."""
    calls = [Call(SHORT, 1.0)] * 120 + [Call(LONG, 2.0)] * 80
    # Without dependencies between calls, a live pool expects that more may come.
    return Workload("bag", tuple(calls), TERMS, stream=True)


def graph() -> Workload:
    """Pairs of calls, one in each pool, whose results are merged."""
    rng = random.Random(1)
    calls = [Call(SHORT, rng.uniform(0.5, 2.5)) for _ in range(48)]
    calls += [Call(LONG, rng.uniform(1.0, 4.0), after=(place,)) for place in range(48)]
    calls += [Call(MERGE, 1.0, after=tuple(range(first, first + 8))) for first in range(48, 96, 8)]
    calls.append(Call(MERGE, 1.0, after=tuple(range(96, 102))))
    return Workload("graph", tuple(calls), TERMS)


def bursts() -> Workload:
    """Two bursts of calls, and a pause between them."""
    rng = random.Random(2)
    calls = [Call(SHORT, rng.uniform(0.5, 2.5)) for _ in range(60)]
    calls += [Call(LONG, rng.uniform(1.0, 4.0), 35.0) for _ in range(30)]
    calls += [Call(SHORT, rng.uniform(0.5, 2.5), 35.0) for _ in range(30)]
    return Workload("bursts", tuple(calls), TERMS, stream=True)


WORKLOADS = (bag(), graph(), bursts())


def over_time(workload: Workload) -> bool:
    return any(call.arrival_s for call in workload.calls)


# Live and simulated ------------------------------------------------------------------------------


class WaitingLauncher(local_launcher.ProcessLauncher):
    """Launcher of worker processes that waits before it starts one, as a batch system does."""

    at_once = 100
    delay_s = 0.0

    async def launch(self, entries: Mapping[UnitName, Mapping[str, Any]]) -> None:
        """Request workers; with a delay, return before they run."""
        launching = asyncio.ensure_future(super().launch(entries))
        if not self.delay_s:
            await launching

    def _start(self, program: Any, log: Path) -> Any:
        time.sleep(self.delay_s)
        return super()._start(program, log)


class Reached(NamedTuple):
    """Time in seconds, and worker-seconds."""

    time_s: float
    cost_s: float


def nap(seconds: float, *_before: object) -> None:
    time.sleep(seconds)


def live(workload: Workload) -> tuple[Reached, Workload, list[float]]:
    """Run the calls; return what was reached, the calls as they ran, and seconds of each start."""
    session = ScalableSession.from_yaml(target="local")
    ends: list[float] = [0.0] * len(workload.calls)

    def ended(place: int) -> Callable[[Any], None]:
        return lambda _: ends.__setitem__(place, time.time())

    with session as client:
        began = time.time()
        futures: list[Any] = []
        for place, call in enumerate(workload.calls):
            time.sleep(max(0.0, began + call.arrival_s - time.time()))
            before = [futures[other] for other in call.after]
            kind = call.kind
            future = client.submit(
                nap, call.duration_s, *before, tag=kind.component, task=kind.task, pure=False
            )
            future.add_done_callback(ended(place))
            futures.append(future)
        client.gather(futures)
        last = time.time()
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
    cost = sum(min(gone.get(name, last), last) - min(at, last) for name, at in asked.items())
    starts = [connected[name] - at for name, at in asked.items() if name in connected]
    took = last - began
    if over_time(workload):
        lasted = zip(ends, workload.calls, strict=True)
        took = statistics.fmean((end or last) - began - call.arrival_s for end, call in lasted)
    ran = {
        row["task_id"]: row["duration_s"]
        for row in map(json.loads, (path / "tasks.jsonl").read_text().splitlines())
        if row["state"] == "succeeded"
    }
    calls = tuple(
        call._replace(duration_s=ran.get(future.key, call.duration_s))
        for future, call in zip(futures, workload.calls, strict=True)
    )
    return Reached(took, cost), replace(workload, calls=calls), starts


def simulated(workload: Workload, starts_s: list[float]) -> Reached:
    """Return time and cost of the simulation, each the median of eleven seeds."""
    middle = statistics.median(starts_s)
    spread = min(starts_s) / middle, max(starts_s) / middle
    startup = Startup(middle, billed_s=middle, spread=spread, expected_s=1.0)
    # The simulator decides at 0 s. Live, calls are submitted at any moment between two decisions.
    phase_s = INTERVAL_S / 2
    later = tuple(call._replace(arrival_s=call.arrival_s + phase_s) for call in workload.calls)
    shifted = replace(workload, calls=later)
    outcomes = [
        simulate(shifted, lambda _: PoolScaler(), startup, every_s=INTERVAL_S, seed=seed)
        for seed in range(11)
    ]
    times = (o.sojourn_s if over_time(workload) else o.makespan_s - phase_s for o in outcomes)
    return Reached(statistics.median(times), statistics.median(o.cost for o in outcomes))


def compare(rounds: int, names: list[str]) -> None:
    rows: dict[tuple[str, float], list[tuple[Reached, Reached]]] = defaultdict(list)
    for number in range(rounds):
        for delay_s in DELAYS_S:
            WaitingLauncher.delay_s = delay_s
            for workload in WORKLOADS:
                if workload.name not in names:
                    continue
                real, ran, starts = live(workload)
                told = simulated(ran, starts)
                rows[workload.name, delay_s].append((real, told))
                print(
                    f"round {number + 1}, {workload.name}, launcher waits {delay_s:g} s: "
                    f"{real.time_s:.1f} s, simulated {told.time_s:.1f} s; "
                    f"{real.cost_s:.0f} worker-seconds, simulated {told.cost_s:.0f}; "
                    f"{len(starts)} workers started in {statistics.median(starts):.1f} s",
                    flush=True,
                )
    print(f"\nmedians; live beside simulated within {AIM:.0%}")
    for (name, delay_s), pairs in rows.items():
        for field, unit in (("time_s", "s"), ("cost_s", "worker-seconds")):
            real_s, told_s = (
                statistics.median(getattr(pair[side], field) for pair in pairs) for side in (0, 1)
            )
            apart = real_s / told_s - 1
            print(
                f"  {'met   ' if abs(apart) <= AIM else 'MISSED'} {name}, launcher waits "
                f"{delay_s:g} s: {real_s:.1f} {unit}, simulated {told_s:.1f}: {apart:+.0%}"
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
    parser.add_argument("--rounds", type=int, default=2)
    names = [workload.name for workload in WORKLOADS]
    parser.add_argument("--workloads", nargs="+", choices=names, default=names)
    parser.add_argument("--tick", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        os.environ["XDG_STATE_HOME"] = f"{directory}/state"
        os.environ["SCALABLE_RUNS_DIR"] = f"{directory}/runs"
        Path("scalable.yaml").write_text(MANIFEST)
        local_launcher.ProcessLauncher = WaitingLauncher  # type: ignore[misc]
        tick() if options.tick else compare(options.rounds, options.workloads)


if __name__ == "__main__":
    main()
