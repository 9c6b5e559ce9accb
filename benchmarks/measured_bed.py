"""A measured scheduler in a process of its own, other programs beside it, and a client here."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measured_scheduler import record_cluster
from scalable import ScalableClient
from scalable.clusters.managing import wait_for_scheduler
from scalable.protocol.credentials import security_of
from scalable.protocol.handlers import Handler

HERE = Path(__file__).parent
TAGS = ("model", "post")
TIMEOUT_S, POLL_S = 600.0, 0.1
MANIFEST = """version: 1
project: {name: bench}
targets: {local: {provider: local, processes: true}}
components: {model: {}, post: {}}
"""


class Bed:
    """A scheduler in a process of its own, and a client of it."""

    def __init__(self, place: Path, *options: str) -> None:
        os.environ |= {
            "XDG_STATE_HOME": str(place / "state"),
            "SCALABLE_RUNS_DIR": str(place / "runs"),
        }
        self._programs: list[subprocess.Popen[bytes]] = []
        self.directory = record_cluster(
            "bench", MANIFEST, "local", dashboard_address="127.0.0.1:0", tags=TAGS,
            wanted=dict.fromkeys(TAGS, 0), runs_dir=str(place / "runs"),
        )  # fmt: skip
        self.scheduler = self.start("measured_scheduler.py", str(self.directory.path), *options)
        known = wait_for_scheduler(self.directory)
        self.page = known["dashboard"]
        self.address = known["address"]
        tls = self.address.startswith("tls")
        # False, not None: otherwise Dask looks for credentials by the address.
        self.security = security_of(self.directory.pem()) if tls else False
        self.client = ScalableClient(self.address, security=self.security)

    def start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program of this directory, and return it."""
        started = subprocess.Popen([sys.executable, str(HERE / program), *arguments])
        self._programs.append(started)
        return started

    def call(self, handler: str, **arguments: Any) -> Any:
        """Call a handler of the scheduler."""
        return self.client.sync(getattr(self.client.scheduler, handler), **arguments)

    def close(self) -> None:
        """End the cluster and its programs."""
        self.call(Handler.END.value, reason="the benchmark is over")
        self.client.close()
        for program in self._programs:
            try:
                program.wait(60)
            except subprocess.TimeoutExpired:
                program.kill()


@contextmanager
def bed(*options: str) -> Iterator[Bed]:
    with tempfile.TemporaryDirectory() as place:
        made = Bed(Path(place), *options)
        try:
            yield made
        finally:
            made.close()


def until(condition: Callable[[], bool], what: str) -> float:
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() - began > TIMEOUT_S:
            raise SystemExit(f"waited {TIMEOUT_S:g} s in vain: {what}")
        time.sleep(POLL_S)
    return time.perf_counter() - began
