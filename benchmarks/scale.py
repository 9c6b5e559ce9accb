"""How a cluster grows: from 10 to 5,000 simulated workers, beside plain Dask.

    python benchmarks/scale.py [--workers 10 100 1000] [--calls 10000]
                               [--only ours|dask] [--ways WAY ...] [--json FILE] [--show FILE ...]

Scheduler, client and simulated workers are processes of their own; only the workers are simulated
(``simulated_workers.py``). The calls do nothing. CPU time counts, since the machine may be shared;
a loop is *held* for the CPU time of the longest of its turns, without garbage collection.
The default run takes about ten minutes; ``--workers 5000`` and ``--calls 1000000`` take longer.
"""

from __future__ import annotations

import argparse
import json
import logging
import operator
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from distributed import Client, wait

from measured_schedulers import COUNT, TAGS, TAKE, USED, Bed, LoopMeter, PlainBed, until, used
from scalable import ScalableClient
from scalable.protocol.credentials import security_of
from scalable.protocol.handlers import Handler
from scalable.records import ClusterDirectory

Measures = Mapping[str, Any]

#: Events -> name of the turns that hold the scheduler's loop for them.
EVENTS = {
    "one order": "order to scale",
    "one status": "status request",
    "one decision": "adaptive decision",
    "a pass of the controller": "controller pass",
    "a sample of the overview": "sample of the overview",
    "a look for calls to move": "stealing",
    "a manager's heartbeat": "manager's heartbeat",
    "a worker's heartbeat": "worker's heartbeat",
}
#: Scheduler's CPU of a tagged call, with few and many workers, and of a worker's heartbeat, as
#: multiples of plain Dask's.
FEW_CPU, MANY_CPU, HEARTBEAT = 1.15, 0.3, 1.2
#: Seconds until 5,000 workers have arrived; seconds until 1,000 that vanished are replaced.
ARRIVAL_S, REPLACED_S = 60.0, 30.0


def tables(points: Sequence[Measures]) -> str:
    return "\n".join([*_calls(points), "", *_phases(points), "", *_loops(points)])


def _name(point: Measures) -> str:
    return "scalable" if point["system"] == "ours" else "Dask"


def _row(*cells: Any) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _head(*cells: str) -> Iterator[str]:
    yield _row(*cells)
    yield _row(*["---"] * len(cells))


def _calls(points: Sequence[Measures]) -> Iterator[str]:
    yield from _head(
        "calls", "workers", "who", "number", "calls/s", "client, CPU µs a call",
        "scheduler, CPU µs a call", "first result ms", "client held ms", "scheduler held ms",
        "client, scheduler MB",
    )  # fmt: skip
    ways = dict.fromkeys(way for point in points for way in point.get("calls", {}))
    for way in ways:
        for point in points:
            if (m := point.get("calls", {}).get(way)) is not None:
                calls = m["calls"]
                rate = calls / m["wall_s"]
                client, scheduler = (1e6 * m[f"{who}_cpu_s"] / calls for who in _WHO)
                held = [f"{1e3 * m[f'{who}_held_s']:.0f}" for who in _WHO]
                memory = f"{m['client_peak_rss'] / 1e6:.0f}, {m['scheduler_rss'] / 1e6:.0f}"
                yield _row(
                    way, point["workers"], _name(point), calls, f"{rate:,.0f}", f"{client:.0f}",
                    f"{scheduler:.0f}", f"{1e3 * m['first_s']:.0f}", *held, memory,
                )  # fmt: skip


_WHO = ("client", "scheduler")
_PHASES = {
    "arrival": "all workers arrive",
    "rest": "rest",
    "leaves": "one worker leaves, in one order",
    "comes": "one worker comes, in one order",
    "vanished": "1,000 workers vanish and are replaced",
    "fewer": "half of them (1,000 at most) leave, with results",
    "more": "as many come, in one order",
    "decisions": "ten adaptive decisions",
    "hang": "half of them (1,000 at most) hang for ten seconds",
}


def _phases(points: Sequence[Measures]) -> Iterator[str]:
    yield from _head(
        "what", "workers", "who", "s", "scheduler, CPU s", "held ms",
        "longest collection ms", "scheduler MB",
    )  # fmt: skip
    for phase, words in _PHASES.items():
        for point in points:
            if (m := point.get(phase)) is not None:
                yield _row(
                    words, point["workers"], _name(point), f"{m['wall_s']:.1f}",
                    f"{m['cpu_s']:.2f}", f"{1e3 * m['held_s']:.0f}",
                    f"{1e3 * m['collected_s']:.0f}", f"{m['rss'] / 1e6:.0f}",
                )  # fmt: skip
    for point in (point for point in points if "closing_s" in point):
        yield _row("closing", point["workers"], _name(point), f"{point['closing_s']:.1f}", *"    ")


def _loops(points: Sequence[Measures]) -> Iterator[str]:
    yield from _head("one turn of the scheduler's loop", "workers", "who", "mean ms", "longest ms")
    for words, turn in EVENTS.items():
        for point in points:
            if (found := _turns(point, turn)) is not None:
                mean, longest, _ = found
                yield _row(words, point["workers"], _name(point), f"{mean:.2f}", f"{longest:.1f}")


def _turns(point: Measures, turn: str) -> tuple[float, float, int] | None:
    """Return mean and longest milliseconds of a kind of turn over all phases, and their number."""
    found = [
        measure
        for phase in ("rest", "status", *_PHASES)
        if (measure := point.get(phase, {}).get("turns", {}).get(turn)) is not None
    ]
    count = sum(each["count"] for each in found)
    if not count:
        return None
    mean = 1e3 * sum(each["cpu_s"] for each in found) / count
    return mean, max(1e3 * each["longest_cpu_s"] for each in found), count


# Bars -------------------------------------------------------------------------------------------


def bars(points: Sequence[Measures]) -> str:
    """Return the bars with their numbers, one a line, as met or MISSED."""
    ours = {p["workers"]: p for p in points if p["system"] == "ours"}
    dask = {p["workers"]: p for p in points if p["system"] == "dask"}
    return "\n".join([*_beside(ours, dask), *_held(ours), *_moves(ours)])


def _bar(met: bool, words: str) -> str:
    return f"- {'met' if met else 'MISSED'}: {words}"


def _beside(ours: Mapping[int, Measures], dask: Mapping[int, Measures]) -> Iterator[str]:
    for workers in sorted(ours.keys() & dask.keys()):
        mine, theirs = (p[workers].get("calls", {}) for p in (ours, dask))
        bar = MANY_CPU if workers >= MANY_WORKERS else FEW_CPU
        for way in (way for way in mine if way in theirs and WAYS[way][1]):
            each = [1e6 * m[way]["scheduler_cpu_s"] / m[way]["calls"] for m in (mine, theirs)]
            told = f"{way} at {workers} workers takes the scheduler {each[0]:.0f} µs of CPU a call"
            ratio = each[0] / each[1]
            yield _bar(ratio <= bar, f"{told}, {ratio:.2f} times Dask's (bar {bar})")
        beats = [_turns({"rest": p[workers]["rest"]}, "worker's heartbeat") for p in (ours, dask)]
        if beats[0] is not None and beats[1] is not None:
            ratio = beats[0][0] / beats[1][0]
            told = f"a worker's heartbeat at {workers} workers: {ratio:.2f} times Dask's"
            yield _bar(ratio <= HEARTBEAT, f"{told} (bar {HEARTBEAT})")


def _held(ours: Mapping[int, Measures]) -> Iterator[str]:
    for workers, point in sorted(ours.items()):
        bar = 50 if workers <= 1000 else 100
        held_ms = {
            words: found[1] for words, turn in EVENTS.items() if (found := _turns(point, turn))
        }
        held_ms["garbage collection"] = 1e3 * max(
            point[phase]["collected_s"] for phase in _PHASES if phase in point
        )
        for way, m in point.get("calls", {}).items():
            held_ms |= {f"{way} ({who})": 1e3 * m[f"{who}_held_s"] for who in _WHO}
        for words, ms in held_ms.items():
            told = f"{words} at {workers} workers holds the loop for {ms:.0f} ms"
            yield _bar(ms <= bar, f"{told} (bar {bar})")


def _moves(ours: Mapping[int, Measures]) -> Iterator[str]:
    for workers, point in sorted(ours.items()):
        took = point["arrival"]["wall_s"]
        if workers >= 1000:
            told = f"{workers} workers arrive in {took:.0f} s (bar {ARRIVAL_S:g} for 5,000)"
            yield _bar(took <= ARRIVAL_S, told)
        if (gone := point.get("vanished")) is not None:
            told = f"1,000 of {workers} workers that vanish are replaced in {gone['wall_s']:.0f} s"
            yield _bar(gone["wall_s"] <= REPLACED_S, f"{told} (bar {REPLACED_S:g})")
        if (lost := point.get("fewer", {}).get("lost results")) is not None:
            yield _bar(not lost, f"{lost} results lost as workers of {workers} leave (bar 0)")


# The client, a process of its own ---------------------------------------------------------------


#: Calls that warm a way up, before it is measured.
WARM = 200


def steps(number: int) -> int:
    """Stand for a call; simulated workers do not run it."""
    return number


def submitted(client: Any, calls: int, **options: Any) -> None:
    wait([client.submit(steps, i, pure=False, **options) for i in range(calls)])


def mapped(client: Any, calls: int, **options: Any) -> None:
    wait(client.map(steps, range(calls), pure=False, **options))


def got(client: Any, calls: int, **_: Any) -> None:
    client.get(
        {f"get-{i}": (operator.add, i, 1) for i in range(calls)}, [f"get-{i}" for i in range(calls)]
    )


def pooled(client: Any, calls: int, **options: Any) -> None:
    with client.pool(**options) as pool:
        for future in [pool.submit(steps, i) for i in range(calls)]:
            future.result()


def pool_mapped(client: Any, calls: int, **options: Any) -> None:
    with client.pool(**options) as pool:
        for _ in pool.imap(steps, iter(range(calls))):
            pass


Way = Callable[..., None]
#: Way -> function, and whether its calls have a tag; plain Dask's tag is a resource.
WAYS: Mapping[str, tuple[Way, bool]] = {
    "submit": (submitted, True),
    "map": (mapped, True),
    "submit untagged": (submitted, False),
    "map untagged": (mapped, False),
    "get": (got, False),
    "executor": (pooled, True),
    "executor map": (pool_mapped, True),
}


class Rounds:
    """Measures the ways to send calls, through one client."""

    def __init__(self, client: Any, tagged: Mapping[str, Any]) -> None:
        self._client, self._tagged, self._meter = client, tagged, LoopMeter()
        self._meter.install({}, {}, {})

    def run(self, way: str, calls: int) -> dict[str, Any]:
        function, is_tagged = WAYS[way]
        options = self._tagged if is_tagged else {}
        began = time.perf_counter()
        function(self._client, 1, **options)
        first_s = time.perf_counter() - began
        function(self._client, min(WARM, calls), **options)
        self._at_rest()
        self._meter.take()
        self._ask(TAKE)
        there, here, began = self._ask(USED), used(), time.perf_counter()
        function(self._client, calls, **options)
        wall_s = time.perf_counter() - began
        mine, other = self._meter.take(), self._ask(TAKE)
        at_end, of_client = self._ask(USED), used()
        self._at_rest()
        return {
            "calls": calls,
            "first_s": first_s,
            "wall_s": wall_s,
            "client_cpu_s": of_client["cpu_s"] - here["cpu_s"],
            "scheduler_cpu_s": at_end["cpu_s"] - there["cpu_s"],
            "client_peak_rss": of_client["peak_rss"],
            "scheduler_rss": at_end["rss"],
            "client_held_s": held(mine),
            "scheduler_held_s": held(other),
            "client_collected_s": held(mine, "longest_gc_s"),
            "scheduler_collected_s": held(other, "longest_gc_s"),
            "client_longest": mine["longest"][:4],
            "scheduler_longest": other["longest"][:4],
        }

    def _ask(self, handler: str) -> Any:
        return self._client.sync(getattr(self._client.scheduler, handler))

    def _at_rest(self) -> None:
        deadline = time.monotonic() + 60
        while self._ask(USED)["tasks"] and time.monotonic() < deadline:
            time.sleep(0.1)


def held(measures: Mapping[str, Any], what: str = "longest_cpu_s") -> float:
    """Return the CPU seconds of the longest turn of a loop, or of its garbage collections."""
    turns = measures["turns"].get("all turns")
    return 0.0 if turns is None else float(turns[what])


def send(directory: str, address: str, system: str, *asked: str) -> None:
    """Send calls in one way after the other, and print the measures of each as a line of JSON."""
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    security = security_of(ClusterDirectory(Path(directory)).pem())
    client: Any
    if system == "ours":
        client, tagged = ScalableClient(address, security=security), {"tag": TAGS[0]}
    else:
        client, tagged = Client(address, security=security), {"resources": {TAGS[0]: 1}}
    rounds = Rounds(client, tagged)
    for each in asked:
        way, _, calls = each.partition("=")
        print(json.dumps({"way": way, **rounds.run(way, int(calls))}), flush=True)
    client.close()


# What is measured at one number of workers -----------------------------------------------------

#: Seconds for which heartbeats are counted while nothing else happens.
REST_S = 10.0
#: Number of workers that come, leave or vanish in one order, at most.
ORDERED = 1000


def note(words: str) -> None:
    print(f"{time.strftime('%X')} {words}", file=sys.stderr, flush=True)


class Point:
    """Measures of one scheduler at one number of workers."""

    system = "dask"

    def __init__(self, scene: Any) -> None:
        self.scene = scene
        self.found: dict[str, Any] = {}

    def scale(self, count: int) -> None:
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
        command = [sys.executable, __file__, "send", str(scene.directory.path), scene.address]
        client = subprocess.Popen(
            [*command, self.system, *asked], stdout=subprocess.PIPE, text=True
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
        self.scene.close()


class OurPoint(Point):
    """Measures of our scheduler, whose workers a manager starts and stops."""

    system = "ours"
    scene: Bed

    def __init__(self, scene: Bed) -> None:
        super().__init__(scene)
        self._manager = scene.start(
            "simulated_manager.py", str(scene.directory.path), "--tags", *TAGS,
            "--call-seconds", "0", "--failures", "0",
        )  # fmt: skip
        until(lambda: set(scene.call(Handler.POOLS.value)) >= set(TAGS), "a manager")

    def scale(self, count: int) -> None:
        """Order a number of workers, and wait until there are as many."""
        self.scene.call(Handler.SCALE.value, counts={TAGS[0]: count})
        until(lambda: self.scene.call(COUNT) == count, f"{count} workers")

    def questions(self) -> None:
        self._phase("status", self._ask_status)

    def _ask_status(self) -> None:
        for _ in range(10):
            self.scene.call(Handler.STATUS.value)

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


SYSTEMS: Mapping[str, Callable[[Path], Point]] = {
    "dask": lambda place: Point(PlainBed(place)),
    "ours": lambda place: OurPoint(Bed(place, "--turns")),
}
#: Share of the calls that are sent in each way other than by executor, whose calls are cheaper.
SHARE = 0.2
#: Tagged calls of plain Dask, at most, from so many workers on: each compares all workers.
MOST_TAGGED, MANY_WORKERS = 1_000, 1000


def calls_of(system: str, way: str, calls: int, workers: int) -> int:
    if way.startswith("executor"):
        return calls if system == "ours" else 0
    count = max(1, int(SHARE * calls))
    compares_all = system == "dask" and WAYS[way][1] and workers >= MANY_WORKERS
    return min(count, MOST_TAGGED) if compares_all else count


def measured(system: str, workers: int, asked: argparse.Namespace) -> dict[str, Any]:
    note(f"{system}: {workers} workers")
    ways = {way: calls_of(system, way, asked.calls, workers) for way in asked.ways}
    with tempfile.TemporaryDirectory() as place:
        point = SYSTEMS[system](Path(place))
        try:
            found = point.run(workers, ways)
        except BaseException as error:
            point.close()
            if not isinstance(error, SystemExit):
                raise
            note(f"cut short: {error}")  # what there is counts
            found = point.found
    return {"system": system, "workers": workers, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument(
        "--calls", type=int, default=10_000, help="by executor; fewer in other ways"
    )
    parser.add_argument("--only", choices=list(SYSTEMS))
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--json", type=Path, help="write the values here too, point by point")
    parser.add_argument("--show", type=Path, nargs="+", help="measure nothing, show such files")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the programs are ended then too
    if asked.show:
        points = [point for path in asked.show for point in json.loads(path.read_text())]
    else:
        points = list(measure_all(asked))
    print(tables(points), bars(points), sep="\n\n")


def measure_all(asked: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
    """Measure one point after the other, and write down what there is after each."""
    points: list[Mapping[str, Any]] = []
    for workers in asked.workers:
        for system in [asked.only] if asked.only else SYSTEMS:
            points.append(measured(system, workers, asked))
            if asked.json is not None:
                asked.json.write_text(json.dumps(points, indent=1) + "\n")
            yield points[-1]


if __name__ == "__main__":
    send(*sys.argv[2:]) if sys.argv[1:2] == ["send"] else main()
