"""What the model of a cluster costs: time of the scheduler's loop.

    python benchmarks/overview.py [--workers 1000] [--calls 100000] [--json FILE]

A scheduler runs in a process of its own with all our plug-ins, simulated workers in another, and a
client here. Two viewers poll the live page each second; requests for overviews, explanations and
the status come every two seconds. Shown are the longest turns of the scheduler's loop, and the
share of the listeners in the turn in which they took longest.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distributed import wait

from measured_schedulers import TAGS, TAKE, TIMEOUT_S, USED, Bed, bed, until
from scalable.protocol.handlers import Handler
from simulated_manager import ENDLESS

LOOP_BAR_MS = 20.0
#: Requests to the scheduler that take turns: label -> handler and arguments.
REQUESTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "overview alone": (Handler.OVERVIEW.value, {}),
    "overview, all events": (Handler.OVERVIEW.value, {"since": 0}),
    **{
        f"overview, {kind}": (Handler.OVERVIEW.value, {"since": 0, "kinds": [kind]})
        for kind in ("failures", "spans", "samples", "decisions")
    },
    "explain all": (Handler.EXPLAIN.value, {}),
    "explain a pool": (Handler.EXPLAIN.value, {"tag": "model"}),
    "status": (Handler.STATUS.value, {}),
}


class Viewer(threading.Thread):
    """Polls the live page each second, as a browser does."""

    def __init__(self, page: str) -> None:
        super().__init__(daemon=True)
        self._address, _, token = page.rpartition("/")  # to Dask's own page
        self._page = f"{self._address}/scalable/?{token.partition('?')[2]}"
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        self.answers, self.longest_s, self._seq = 0, 0.0, 0
        self.ends = threading.Event()

    def run(self) -> None:
        self._opener.open(self._page, timeout=60).close()  # the token becomes a cookie
        while not self.ends.wait(1.0):
            link = f"{self._address}/scalable/overview.json?since={self._seq}"
            began = time.perf_counter()
            with self._opener.open(link, timeout=60) as answer:
                text = answer.read()
            self.longest_s = max(self.longest_s, time.perf_counter() - began)
            self._seq = json.loads(text)["events"]["seq"]
            self.answers += 1


def steps(number: int) -> float:
    return float(number)


class Loop:
    """Measures the scheduler's loop while simulated workers run calls."""

    def __init__(self, scene: Bed, workers: int, calls: int) -> None:
        self._scene, self._workers, self._calls = scene, workers, calls
        self.found: dict[str, Any] = {"phases": {}}

    def _phase(self, name: str) -> None:
        print(f"{time.strftime('%X')} {name}", file=sys.stderr, flush=True)
        self.found["phases"][name] = self._scene.call(TAKE)

    def _running(self) -> int:
        pools = self._scene.call(Handler.POOLS.value)
        return sum(pool["running"] for pool in pools.values())

    def run(self) -> dict[str, Any]:
        scene = self._scene
        scene.start("simulated_manager.py", str(scene.directory.path), "--tags", *TAGS)
        until(lambda: set(scene.call(Handler.POOLS.value)) >= set(TAGS), "a manager")
        scene.call(TAKE)
        share = {TAGS[0]: self._workers * 7 // 10, TAGS[1]: self._workers * 3 // 10}
        began = time.perf_counter()
        scene.call(Handler.SCALE.value, counts=share)
        until(lambda: self._running() >= sum(share.values()), "workers")
        self.found["arrival_s"] = time.perf_counter() - began
        self._phase("workers arrive")
        time.sleep(15)
        self._phase("at rest")
        viewers = [Viewer(scene.page) for _ in range(2)]
        for viewer in viewers:
            viewer.start()
        asking = threading.Event()
        asker = threading.Thread(target=self._ask, args=(asking,))
        asker.start()
        began = time.perf_counter()
        kept = self._submit()
        self.found["calls_s"] = time.perf_counter() - began
        self._phase("calls run")
        time.sleep(10)
        self._phase("calls have ended")
        asking.set()
        asker.join()
        for viewer in viewers:
            viewer.ends.set()
            viewer.join()
        self.found["viewers"] = [(v.answers, v.longest_s) for v in viewers]
        self._each_request()
        del kept
        scene.call(Handler.SCALE.value, counts=dict.fromkeys(TAGS, 0))
        until(lambda: self._running() == 0, "no workers")
        self._phase("workers leave")
        return self.found

    def _submit(self) -> list[Any]:
        """Run the calls: some in flight, many that wait for others, some that fail."""
        client, kept = self._scene.client, []
        known = 0
        for total in (self._calls // 100, self._calls // 10, self._calls):
            count = (total - known) // 5
            known += count * 5
            for name in ("grid", "scale_down", "emulate"):
                kept += client.map(steps, range(count), key=f"{name}-{total}", tag=TAGS[0])
            first = client.map(steps, range(count), key=f"read-{total}", tag=TAGS[1])
            kept += first + client.map(steps, first, key=f"plot-{total}", tag=TAGS[1])
            until(lambda: self._scene.call(USED)["tasks"] >= known, "calls")  # noqa: B023
            if total == self._calls:
                self._phase("calls are submitted")
            wait(kept, timeout=TIMEOUT_S)
        return kept

    def _ask(self, end: threading.Event) -> None:
        turn = 0
        names = list(REQUESTS)
        while not end.wait(2.0):
            handler, arguments = REQUESTS[names[turn % len(names)]]
            self._scene.call(handler, **arguments)
            turn += 1

    def _each_request(self, rounds: int = 10) -> None:
        """Measure each kind of request alone, after the calls have ended."""
        scene, waiting = self._scene, []
        waiting += scene.client.map(
            steps, range(self._calls // 5), key=f"{ENDLESS}-calls", tag=TAGS[0]
        )
        until(lambda: self._busy() > 0, "endless calls")
        time.sleep(5)
        self.found["requests"] = {}
        for label, (handler, arguments) in REQUESTS.items():
            scene.call(TAKE)
            for _ in range(rounds):
                scene.call(handler, **arguments)
                time.sleep(0.6)
            turns = scene.call(TAKE)["turns"]
            kind = label.split()[0].rstrip(",") + " request"
            self.found["requests"][label] = turns.get(kind)
        key = waiting[-1].key
        scene.call(TAKE)
        for _ in range(rounds):
            scene.call(Handler.EXPLAIN.value, key=key)
        self.found["requests"]["explain a call"] = scene.call(TAKE)["turns"]["explain request"]
        for future in waiting:
            future.release()

    def _busy(self) -> int:
        pools = self._scene.call(Handler.OVERVIEW.value)["overview"]["pools"]
        return sum(pool["busy"] for pool in pools.values())


def show_loop(found: Mapping[str, Any]) -> None:
    print(f"\nworkers arrived in {found['arrival_s']:.1f} s; calls took {found['calls_s']:.1f} s")
    head = f"{'turns of the loop, ms':34}{'count':>8}{'longest CPU':>13}{'wall':>9}{'gc':>8}"
    for name, phase in found["phases"].items():
        print(f"\n{name}\n{head}")
        for label, measure in sorted(phase["turns"].items()):
            print(_row(label, measure))
        for label, measure in sorted({**phase["parts"], **_shares(phase)}.items()):
            print(_row(f"  {label}", measure))
        for cpu, wall, collected, where, inside in phase["longest"][:4]:
            parts = ", ".join(f"{label} {1e3 * s:.1f}" for label, s in inside.items())
            print(
                f"    {1e3 * cpu:.0f} ms ({1e3 * wall:.0f} wall, {1e3 * collected:.0f} gc) "
                f"{where}: {parts}"
            )
    print(f"\neach request alone\n{head}")
    for label, measure in found["requests"].items():
        mark = "" if measure["longest_cpu_s"] * 1e3 <= LOOP_BAR_MS else f"  above {LOOP_BAR_MS:g}"
        print(_row(label, measure) + mark)
    print(f"viewers, answers and longest s: {found['viewers']}")


def _shares(phase: Mapping[str, Any]) -> dict[str, Any]:
    """Return the time of each label in one turn, for labels that run many times in a turn."""
    return {f"{label}, in one turn": measure for label, measure in phase["shares"].items()}


def _row(label: str, m: Mapping[str, Any]) -> str:
    times = (m["longest_cpu_s"], m["longest_wall_s"], m["longest_gc_s"])
    cpu, wall, collected = (1e3 * seconds for seconds in times)
    return f"{label:34}{m['count']:>8}{cpu:>13.2f}{wall:>9.1f}{collected:>8.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--json", type=Path, help="write the values here too")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the programs are ended then too
    with bed() as scene:
        found = Loop(scene, asked.workers, asked.calls).run()
    show_loop(found)
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
