"""How a cluster grows: from 10 to 5,000 simulated workers, beside plain Dask.

    python benchmarks/scale.py [--workers 10 100 1000] [--calls 10000] [--tls on|off|both]
                               [--only ours|dask] [--ways WAY ...] [--json FILE] [--show FILE ...]

Scheduler, client and simulated workers are processes of their own; only the workers are simulated
(``simulated_workers.py``). The calls do nothing. CPU time counts, since the machine may be shared;
a loop is *held* for the CPU time of the longest of its turns, without garbage collection.
The default run takes about ten minutes; ``--workers 5000`` and ``--calls 1000000`` take longer.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scale_client import WAYS
from scale_points import note, ours, plain
from scale_tables import bars, tables

SYSTEMS = {"dask": plain, "ours": ours}
#: Share of the calls that are sent in each way other than by executor, whose calls are cheaper.
SHARE = 0.2
#: Tagged calls of plain Dask, at most, from so many workers on: each compares all workers.
MOST_TAGGED, MANY_WORKERS = 1_000, 1000


def calls_of(system: str, way: str, calls: int, workers: int) -> int:
    """Return how many calls are sent in a way."""
    if way.startswith("executor"):
        return calls if system == "ours" else 0
    count = max(1, int(SHARE * calls))
    compares_all = system == "dask" and WAYS[way][1] and workers >= MANY_WORKERS
    return min(count, MOST_TAGGED) if compares_all else count


def measured(system: str, workers: int, asked: argparse.Namespace, *, tls: bool) -> dict[str, Any]:
    """Return the measures of one system at one number of workers."""
    note(f"{system}: {workers} workers, {'TLS' if tls else 'no TLS'}")
    ways = {way: calls_of(system, way, asked.calls, workers) for way in asked.ways}
    with tempfile.TemporaryDirectory() as place:
        point = SYSTEMS[system](Path(place), *([] if tls else ["--plain-tcp"]))
        try:
            found = point.run(workers, ways)
        except BaseException as error:
            point.close()
            if not isinstance(error, SystemExit):
                raise
            note(f"cut short: {error}")  # what there is counts
            found = point.found
    return {"system": system, "workers": workers, "tls": tls, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument(
        "--calls", type=int, default=10_000, help="by executor; fewer in other ways"
    )
    parser.add_argument("--tls", choices=["on", "off", "both"], default="on")
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
        for tls in {"on": [True], "off": [False], "both": [True, False]}[asked.tls]:
            for system in [asked.only] if asked.only else SYSTEMS:
                points.append(measured(system, workers, asked, tls=tls))
                if asked.json is not None:
                    asked.json.write_text(json.dumps(points, indent=1) + "\n")
                yield points[-1]


if __name__ == "__main__":
    main()
