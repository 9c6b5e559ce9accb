"""A client process of ``scale.py``: it sends calls in one way after the other, and measures them.

    python benchmarks/scale_client.py DIRECTORY ADDRESS ours|dask WAY=CALLS [WAY=CALLS ...]

It prints one line of JSON: way -> wall and CPU seconds of client and scheduler, for how long each
loop was held, and memory. The calls return at once. The results of ``submit`` and ``map`` stay on
the workers; ``get`` fetches them.
"""

from __future__ import annotations

import json
import logging
import operator
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distributed import Client, wait

from loop_meter import TAKE, USED, LoopMeter, used
from scalable import ScalableClient
from scalable.protocol.credentials import security_of
from scalable.records import ClusterDirectory

TAG = "model"
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
        """Run calls in one way, and return what was measured."""
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
        """Wait until the calls of the last way are forgotten."""
        deadline = time.monotonic() + 60
        while self._ask(USED)["tasks"] and time.monotonic() < deadline:
            time.sleep(0.1)


def held(measures: Mapping[str, Any], what: str = "longest_cpu_s") -> float:
    """Return the CPU seconds of the longest turn of a loop, or of its garbage collections."""
    turns = measures["turns"].get("all turns")
    return 0.0 if turns is None else float(turns[what])


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    directory, address, system, *asked = sys.argv[1:]
    security: Any = False  # None lets Dask look for credentials by the address
    if address.startswith("tls"):
        security = security_of(ClusterDirectory(Path(directory)).pem())
    client: Any
    if system == "ours":
        client, tagged = ScalableClient(address, security=security), {"tag": TAG}
    else:
        client, tagged = Client(address, security=security), {"resources": {TAG: 1}}
    rounds = Rounds(client, tagged)
    for each in asked:
        way, _, calls = each.partition("=")
        print(json.dumps({"way": way, **rounds.run(way, int(calls))}), flush=True)
    client.close()


if __name__ == "__main__":
    main()
