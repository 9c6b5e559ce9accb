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
from scalable.lifecycle.managing import wait_for_scheduler
from scalable.protocol.credentials import security_of
from scalable.protocol.handlers import Handler

HERE = Path(__file__).parent
TAGS = ("model", "post")
TIMEOUT_S, POLL_S = 600.0, 0.2
MANIFEST = """version: 1
project: {name: bench}
targets: {local: {provider: local, processes: true}}
components: {model: {}, post: {}}
"""


class Bed:
    """A scheduler in a process of its own, and a client of it.

    Parameters
    ----------
    place
        Directory for everything.
    measured
        Whether the turns of the scheduler's loop are measured.
    """

    def __init__(self, place: Path, *, measured: bool) -> None:
        os.environ |= {
            "XDG_STATE_HOME": str(place / "state"),
            "SCALABLE_RUNS_DIR": str(place / "runs"),
        }
        self._programs: list[subprocess.Popen[bytes]] = []
        self.directory = record_cluster(
            "bench", MANIFEST, "local", dashboard_address="127.0.0.1:0", tags=TAGS,
            wanted=dict.fromkeys(TAGS, 0), runs_dir=str(place / "runs"),
        )  # fmt: skip
        unmeasured = [] if measured else ["--unmeasured"]
        self.start("measured_scheduler.py", str(self.directory.path), *unmeasured)
        known = wait_for_scheduler(self.directory)
        self.page = known["dashboard"]
        security = security_of(self.directory.pem())
        self.client = ScalableClient(known["address"], security=security)

    def start(self, program: str, *arguments: str) -> None:
        """Start a program of this directory."""
        self._programs.append(subprocess.Popen([sys.executable, str(HERE / program), *arguments]))

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
def bed(*, measured: bool) -> Iterator[Bed]:
    with tempfile.TemporaryDirectory() as place:
        made = Bed(Path(place), measured=measured)
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
