"""Tables and bars of what ``scale.py`` measured, as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Measures = Mapping[str, Any]

#: Per-call CPU at the most workers, as a multiple of that at the fewest.
FLAT = 1.5
#: Number of workers -> milliseconds for which a loop may be held.
HELD_MS = {10: 50, 100: 50, 1000: 50, 5000: 100}
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
#: A worker's heartbeat, as a multiple of plain Dask's.
HEARTBEAT = 1.2
#: Seconds until 5,000 workers have arrived; seconds until 1,000 that vanished are replaced.
ARRIVAL_S, REPLACED_S = 60.0, 30.0


def tables(points: Sequence[Measures]) -> str:
    """Return the tables of all points."""
    return "\n".join([*_calls(points), "", *_phases(points), "", *_loops(points)])


def _name(point: Measures) -> str:
    system = "scalable" if point["system"] == "ours" else "Dask"
    return f"{system}{'' if point['tls'] else ', no TLS'}"


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
    for command in ("scalable status", "scalable list"):
        for point in points:
            if (m := point.get(command)) is not None:
                words = f"`{command}`, {m['bytes']:,} bytes"
                yield _row(words, point["workers"], _name(point), f"{m['wall_s']:.2f}", *"    ")
    for point in points:
        if (files := point.get("record")) is not None:
            largest = sorted(files.items(), key=lambda file: -file[1])[:3]
            words = ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in largest)
            yield _row(f"record: {words}", point["workers"], _name(point), *"     ")


def _loops(points: Sequence[Measures]) -> Iterator[str]:
    yield from _head("one turn of the scheduler's loop", "workers", "who", "mean ms", "longest ms")
    for words, turn in EVENTS.items():
        for point in points:
            if (found := _turns(point, turn)) is not None:
                mean, longest, _ = found
                yield _row(words, point["workers"], _name(point), f"{mean:.2f}", f"{longest:.1f}")
    for point in points:
        if (manager := point.get("manager")) is not None:
            m = manager["parts"].get("decision of a pass")
            if m is not None:
                mean, longest = 1e3 * m["cpu_s"] / m["count"], 1e3 * m["longest_cpu_s"]
                words = "a manager's decision, in its own process"
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
    of_ours = [point for point in points if point["system"] == "ours" and point["tls"]]
    ours = {p["workers"]: p for p in of_ours}
    dask = {p["workers"]: p for p in points if p["system"] == "dask" and p["tls"]}
    lines = [*_flat(ours), *_rates(ours), *_held(ours), *_heartbeats(ours, dask), *_moves(ours)]
    return "\n".join(lines)


def _bar(met: bool, words: str) -> str:
    return f"- {'met' if met else 'MISSED'}: {words}"


def _flat(ours: Mapping[int, Measures]) -> Iterator[str]:
    few, many = min(ours, default=0), max(ours, default=0)
    if few == many:
        return
    for way in ours[few].get("calls", {}):
        if way not in ours[many].get("calls", {}):
            continue
        for who in _WHO:
            each = [_per_call(ours[n], way, who) for n in (few, many)]
            ratio = each[1] / each[0]
            yield _bar(
                ratio <= FLAT,
                f"CPU of the {who} per call, {way}: {each[0]:.0f} µs at {few} workers, "
                f"{each[1]:.0f} µs at {many}, {ratio:.2f} times (bar {FLAT})",
            )


def _per_call(point: Measures, way: str, who: str) -> float:
    m = point["calls"][way]
    return float(1e6 * m[f"{who}_cpu_s"] / m["calls"])


def _rates(ours: Mapping[int, Measures]) -> Iterator[str]:
    if 100 not in ours:
        return
    ours = {n: point for n, point in ours.items() if "calls" in point}
    rate: Callable[[int, str], float] = lambda n, way: (  # noqa: E731
        ours[n]["calls"][way]["calls"] / ours[n]["calls"][way]["wall_s"]
    )
    for way in ("executor", "executor map"):
        if way not in ours.get(100, {}).get("calls", {}):
            continue
        for workers in (n for n in ours if n > 100 and way in ours[n]["calls"]):
            part = rate(workers, way) / rate(100, way)
            words = f"{way} at {workers} workers: {part:.2f} of its rate at 100 (bar 0.5)"
            yield _bar(part >= 0.5, words)


def _held(ours: Mapping[int, Measures]) -> Iterator[str]:
    for workers, point in sorted(ours.items()):
        bar = HELD_MS.get(workers, 100)
        for words, turn in EVENTS.items():
            if (found := _turns(point, turn)) is not None:
                told = f"{words} at {workers} workers holds the loop for {found[1]:.0f} ms"
                yield _bar(found[1] <= bar, f"{told} (bar {bar})")
        longest = 1e3 * max(point[phase]["collected_s"] for phase in _PHASES if phase in point)
        told = f"garbage collection at {workers} workers holds the loop for {longest:.0f} ms"
        yield _bar(longest <= bar, f"{told} (bar {bar})")
        for way, m in point.get("calls", {}).items():
            for who in _WHO:
                held = 1e3 * m[f"{who}_held_s"]
                told = f"{way} at {workers} workers holds the {who}'s loop for {held:.0f} ms"
                yield _bar(held <= bar, f"{told} (bar {bar})")


def _heartbeats(ours: Mapping[int, Measures], dask: Mapping[int, Measures]) -> Iterator[str]:
    for workers in sorted(ours.keys() & dask.keys()):
        beats = [_turns({"rest": p[workers]["rest"]}, "worker's heartbeat") for p in (ours, dask)]
        if beats[0] is not None and beats[1] is not None:
            ratio = beats[0][0] / beats[1][0]
            told = f"a worker's heartbeat at {workers} workers: {ratio:.2f} times Dask's"
            yield _bar(ratio <= HEARTBEAT, f"{told} (bar {HEARTBEAT})")


def _moves(ours: Mapping[int, Measures]) -> Iterator[str]:
    for workers, point in sorted(ours.items()):
        took = point["arrival"]["wall_s"]
        if workers >= 1000:
            told = f"{workers} workers arrive in {took:.0f} s (bar {ARRIVAL_S:g} for 5,000)"
            yield _bar(took <= ARRIVAL_S, told)
        if (gone := point.get("vanished")) is not None:
            told = f"1,000 of {workers} workers that vanish are replaced in {gone['wall_s']:.0f} s"
            yield _bar(gone["wall_s"] <= REPLACED_S, f"{told} (bar {REPLACED_S:g})")
        if (lost := point.get("fewer", {}).get("lost results")) is None:
            continue
        yield _bar(not lost, f"{lost} results lost as workers of {workers} leave (bar 0)")
