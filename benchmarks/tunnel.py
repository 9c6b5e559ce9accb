"""Large results and arguments through the tunnel to Kubernetes, beside a local detached cluster.

    python benchmarks/tunnel.py [--rounds 7] [--size 100]

Kubernetes is the test bed of this machine (docs/kubernetes-testbed.md), whose API server and
kubelet are one Python process. Both clusters run all the time, and take turns. The local cluster's
results come from their worker; "through the scheduler" is the way of the tunnel's. The last rows
are small calls one after the other, and new connections.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from distributed import wait

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

MB = 1_000_000
SMALL_CALLS = 50
MANIFEST = """\
version: 1
project: {name: bench}
targets:
  local: {provider: local, processes: true}
  k: {provider: kubernetes, image: "any/image:1"}
components:
  a: {cpus: 1, memory: 4G, workers: 1}
"""


def size_of(data: bytes) -> int:
    return len(data)


class Place:
    """A running cluster, and what is measured on it."""

    def __init__(self, name: str, client: Any, size: int) -> None:
        self.name = name
        self.client = client
        self.size = size
        self.pool = client.pool(tag="a")
        self.made = client.submit(os.urandom, size, tag="a")
        wait(self.made)
        self.pool.submit(size_of, b"").result()

    def result(self) -> None:
        """Fetch a large result; from its worker if the client can."""
        direct = True if self.name == "local" else None
        assert len(self.client.gather(self.made, direct=direct)) == self.size

    def relayed_result(self) -> None:
        assert len(self.client.gather(self.made, direct=False)) == self.size

    def argument(self) -> None:
        data = os.urandom(16) + bytes(self.size - 16)
        assert self.pool.submit(size_of, data).result() == self.size

    def small_calls(self) -> None:
        for _ in range(SMALL_CALLS):
            self.pool.submit(size_of, b"").result()

    def connection(self) -> None:
        from distributed import Client

        Client(self.client.scheduler.address, security=self.client.security).close()


@contextmanager
def places(size: int) -> Iterator[list[Place]]:
    from kubernetes_bed import KubernetesBed
    from scalable import ScalableSession

    with ExitStack() as ending:
        directory = Path(ending.enter_context(tempfile.TemporaryDirectory()))
        os.chdir(directory)
        os.environ["XDG_STATE_HOME"] = str(directory / "state")
        (directory / "scalable.yaml").write_text(MANIFEST)
        bed = ending.enter_context(KubernetesBed())
        os.environ["KUBECONFIG"] = str(bed.kubeconfig())
        remote = ScalableSession.from_yaml(target="k")
        ending.callback(remote.close)
        remote.start().wait_for_workers(1)
        local = ScalableSession.from_yaml(target="local")
        local.start(detach=True, name="bench").wait_for_workers(1)
        ending.callback(local.close)
        ending.callback(local.cluster.delete)
        yield [Place("local", local.client, size), Place("tunnel", remote.client, size)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", type=int, default=100, help="megabytes")
    asked = parser.parse_args()
    verbs: dict[str, Callable[[Place], None]] = {
        "result": Place.result,
        "result through the scheduler": Place.relayed_result,
        "argument": Place.argument,
        f"{SMALL_CALLS} small calls": Place.small_calls,
        "connection": Place.connection,
    }
    with places(asked.size * MB) as both:
        for name, verb in verbs.items():
            spent: dict[str, list[float]] = {place.name: [] for place in both}
            for _ in range(asked.rounds):
                for place in both:
                    began = time.perf_counter()
                    verb(place)
                    spent[place.name].append(time.perf_counter() - began)
            local, tunnel = (statistics.median(spent[place.name]) for place in both)
            print(f"{name:30} local {local:.3f} s, tunnel {tunnel:.3f} s, {tunnel / local:.1f} x")


if __name__ == "__main__":
    main()
