"""What ``scale.py`` measures at one number of workers, with our scheduler and with plain Dask's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loop_meter import COUNT, TAKE, USED
from measured_bed import HERE, TAGS, Bed, until
from plain_bed import PlainBed
from scalable.protocol.handlers import Handler
from scale_client import held

#: Seconds for which heartbeats are counted while nothing else happens.
REST_S = 10.0
#: Number of workers that come, leave or vanish in one order, at most.
ORDERED = 1000


def note(words: str) -> None:
    """Tell how far the benchmark is."""
    print(f"{time.strftime('%X')} {words}", file=sys.stderr, flush=True)


class Point:
    """Measures of one scheduler at one number of workers."""

    system = "dask"

    def __init__(self, scene: Any) -> None:
        self.scene = scene
        self.found: dict[str, Any] = {}

    def scale(self, count: int) -> None:
        """Make the number of workers so, and wait until it is."""
        self.scene.scale(count)

    def run(self, workers: int, ways: Mapping[str, int]) -> dict[str, Any]:
        """Measure everything; ``ways`` maps ways to send calls to numbers of calls."""
        self._phase("arrival", lambda: self.scale(workers))
        time.sleep(2)
        self._phase("rest", lambda: time.sleep(REST_S))
        self._calls(ways)
        self.questions()
        self.orders(workers)
        began = time.perf_counter()
        self.close()
        self.found["closing_s"] = time.perf_counter() - began
        return self.found

    def _phase(self, name: str, happens: Any) -> None:
        """Measure the scheduler while something happens."""
        note(f"{self.system}: {name}")
        scene = self.scene
        scene.call(TAKE)
        used, began = scene.call(USED), time.perf_counter()
        happens()
        wall_s, after = time.perf_counter() - began, scene.call(USED)
        measures = scene.call(TAKE)
        self.found[name] = {
            "wall_s": wall_s,
            "cpu_s": after["cpu_s"] - used["cpu_s"],
            "rss": after["rss"],
            "held_s": held(measures),
            "collected_s": held(measures, "longest_gc_s"),
            "turns": measures["turns"],
            "parts": measures["parts"],
            "longest": measures["longest"][:6],
        }

    def _calls(self, ways: Mapping[str, int]) -> None:
        note(f"{self.system}: calls")
        asked = [f"{way}={calls}" for way, calls in ways.items() if calls]
        scene, found = self.scene, self.found.setdefault("calls", {})
        command = [str(HERE / "scale_client.py"), str(scene.directory.path), scene.address]
        client = subprocess.Popen(
            [sys.executable, *command, self.system, *asked], stdout=subprocess.PIPE, text=True
        )
        assert client.stdout is not None
        for line in client.stdout:
            measures = json.loads(line)
            way = measures.pop("way")
            note(f"{way}: {measures['calls']} calls in {measures['wall_s']:.1f} s")
            found[way] = measures
        if client.wait(60):
            raise SystemExit("the client failed")

    def questions(self) -> None:
        """Measure what readers ask."""

    def orders(self, workers: int) -> None:
        """Measure changes of the number of workers."""

    def close(self) -> None:
        """End the scheduler and its workers."""
        self.scene.close()


class OurPoint(Point):
    """Measures of our scheduler, whose workers a manager starts and stops."""

    system = "ours"
    scene: Bed

    def __init__(self, scene: Bed) -> None:
        super().__init__(scene)
        self._stats = scene.directory.path / "stats.json"
        self._manager = scene.start(
            "simulated_manager.py", str(scene.directory.path), "--tags", *TAGS,
            "--call-seconds", "0", "--failures", "0", "--stats", str(self._stats),
        )  # fmt: skip
        until(lambda: set(scene.call(Handler.POOLS.value)) >= set(TAGS), "a manager")

    def scale(self, count: int) -> None:
        """Order a number of workers, and wait until there are as many."""
        self.scene.call(Handler.SCALE.value, counts={TAGS[0]: count})
        until(lambda: self.scene.call(COUNT) == count, f"{count} workers")

    def questions(self) -> None:
        """Measure the status, and the commands that show it."""
        self._phase("status", self._ask_status)
        self.found["manager"] = json.loads(self._stats.read_text())
        for command in (["status", "bench"], ["list"]):
            began = time.perf_counter()
            shown = subprocess.run(
                [sys.executable, "-m", "scalable", *command, "--format", "json"],
                capture_output=True, check=False,
            )  # fmt: skip
            wall_s = time.perf_counter() - began
            answer = {"wall_s": wall_s, "bytes": len(shown.stdout), "code": shown.returncode}
            self.found[f"scalable {command[0]}"] = answer

    def _ask_status(self) -> None:
        for _ in range(10):
            answer = self.scene.call(Handler.STATUS.value)
        self.found["status bytes"] = len(json.dumps(answer))

    def orders(self, workers: int) -> None:
        """Measure losses, a smaller and a larger number of workers, and decisions."""
        ordered = min(ORDERED, workers // 2)
        self._phase("leaves", lambda: self.scale(workers - 1))
        self._phase("comes", lambda: self.scale(workers))
        if workers >= ORDERED:
            self._phase("vanished", lambda: self._vanish(workers))
        kept = self._hold_results(2 * workers)
        self._phase("fewer", lambda: self.scale(workers - ordered))
        lost = [future for future in kept if future.status != "finished"]
        self.found["fewer"]["lost results"] = len(lost)
        del kept, lost
        self._phase("more", lambda: self.scale(workers))
        self._phase("decisions", lambda: self._adapt(workers))
        self._manager.send_signal(signal.SIGUSR2)
        self._phase("hang", lambda: time.sleep(REST_S))

    def _vanish(self, workers: int) -> None:
        before = self.scene.call(COUNT)
        self._manager.send_signal(signal.SIGUSR1)
        until(lambda: self.scene.call(COUNT) < before, "losses")
        until(lambda: self.scene.call(COUNT) == workers, "their successors")

    def _hold_results(self, count: int) -> list[Any]:
        from distributed import wait

        from scale_client import steps

        kept = self.scene.client.map(steps, range(count), tag=TAGS[0], pure=False, key="kept")
        wait(kept)
        return list(kept)

    def _adapt(self, workers: int) -> None:
        """Let the pool follow its load, which is none, between bounds that hold it."""
        scene = self.scene
        scene.call(Handler.ADAPT.value, tag=TAGS[0], minimum=workers, maximum=workers)
        self._hold_results(workers)
        time.sleep(10)
        scene.call(Handler.ADAPT.value, tag=TAGS[0], enabled=False)

    def close(self) -> None:
        """End the cluster; measure its record."""
        self.scene.close()
        runs = Path(os.environ["SCALABLE_RUNS_DIR"])
        files = [path for path in runs.rglob("*") if path.is_file()]
        self.found["record"] = {path.name: path.stat().st_size for path in files}


def plain(place: Path, *options: str) -> Point:
    """Return the measures of plain Dask, in a directory."""
    return Point(PlainBed(place, *options))


def ours(place: Path, *options: str) -> Point:
    """Return the measures of our scheduler, in a directory."""
    return OurPoint(Bed(place, "--turns", *options))
