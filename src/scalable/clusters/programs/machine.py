"""A program on a cloud machine, run with ``python -m ... PROVIDER PROGRAM ...``.

PROGRAM is ``scheduler``, ``manager ID``, or ``workers --scheduler=ADDRESS --preload=FILE UNIT...``.
The provider fetches the files. The machine stops when the program exits.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalable.errors import ProviderError
from scalable.files import private_directory, write_private
from scalable.harmless import log_to_stderr
from scalable.protocol.addresses import HOST_VARIABLE
from scalable.protocol.code import in_image
from scalable.providers.registry import get_provider
from scalable.providers.remote.cloud import MACHINE_OF, MANAGING, SCHEDULER, MachineSide
from scalable.providers.remote.machines import CONFIG, PORT
from scalable.records.packing import key_of
from scalable.worker.notices import NOTICE_FILE, write_notice

# Preemption notices -------------------------------------------------------------------------------


NOTICE_POLL_S = 1.0


class NoticeWatch:
    """Poller that writes a preemption notice to the file that the machine's workers read."""

    def __init__(self, side: MachineSide, path: Path) -> None:
        #: Set once there was a notice.
        self.noticed = threading.Event()
        self.path = path
        self._side = side
        self._ended = threading.Event()
        self._failing = False

    def start(self) -> None:
        threading.Thread(target=self._watch, name="scalable notices", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def look(self) -> bool:
        """Return whether there is a notice, and query the machine if there was none before."""
        if not self.noticed.is_set() and (left_s := self._asked()) is not None:
            logger.warning("the cloud preempts this machine in %.0f s", left_s)
            write_notice(self.path, left_s)
            self.noticed.set()
        return self.noticed.is_set()

    def _watch(self) -> None:
        while not self.look() and not self._ended.wait(NOTICE_POLL_S):
            pass

    def _asked(self) -> float | None:
        """Return the seconds until the preemption, or None without a notice or an answer."""
        try:
            left_s = self._side.notice()
        except (ProviderError, OSError) as error:
            if not self._failing:
                logger.warning("could not check for a preemption notice, retrying: %s", error)
            self._failing = True
            return None
        self._failing = False
        return left_s


logger = logging.getLogger("scalable.clusters.programs")

#: Seconds between two checks of the units of this machine.
POLL_S, ENDING_POLL_S = 2.0, 0.2
#: Seconds that a unit has to exit after SIGTERM.
GRACE_S = 30.0
#: Seconds for which a manager waits for the scheduler's machine.
SCHEDULER_TIMEOUT_S = 900.0


def keep(files: Mapping[str, str], home: Path) -> Path:
    """Write private files to a directory in ``home``, and return the directory's path."""
    directory = private_directory(home / "files")
    for path, text in files.items():
        write_private(directory / key_of(path), text)
    return directory


def run_scheduler(files: Path, state: Path) -> int:
    """Run the scheduler until it exits, and return the exit code."""
    from scalable.clusters.programs import remote

    directory, _ = remote.unpacked(files, state)
    remote.run_scheduler(directory, PORT, relay_host=os.environ[HOST_VARIABLE])
    return 0


def run_manager(files: Path, state: Path, manager: str) -> int:
    """Run a manager until it leaves, and return the exit code."""
    from scalable.clusters.programs import remote

    directory, record = remote.unpacked(files, state)
    place = get_provider(record.provider).remote(record.place)
    deadline = time.monotonic() + SCHEDULER_TIMEOUT_S
    while (address := place.address(record.id)) is None:
        if time.monotonic() > deadline:
            logger.error("the scheduler has no address after %g s", SCHEDULER_TIMEOUT_S)
            return 1
        time.sleep(POLL_S)
    return remote.run_manager(directory, record, manager, address)


class Units:
    """The worker processes of this machine."""

    def __init__(self, commands: Mapping[str, Sequence[str]]) -> None:
        self._processes = {unit: subprocess.Popen(list(its)) for unit, its in commands.items()}
        self._told: dict[str, float] = {}

    def tell_all(self) -> None:
        """Send SIGTERM to all units. The cloud limits their time to exit."""
        for unit, process in self._processes.items():
            if unit not in self._told and process.poll() is None:
                self._told[unit] = time.monotonic()
                process.terminate()

    def end(self, units: frozenset[str]) -> None:
        """Send SIGTERM to some units, and kill those that do not exit in time."""
        for unit in units.intersection(self._processes):
            process, told = self._processes[unit], self._told.get(unit)
            if process.poll() is not None:
                continue
            if told is None:
                self._told[unit] = time.monotonic()
                process.terminate()
            elif time.monotonic() - told > GRACE_S:
                logger.warning("unit %s has not stopped after %g s: it is killed", unit, GRACE_S)
                process.kill()

    def exit_code(self) -> int | None:
        """Return the exit code of the machine's program, or None while a unit runs."""
        codes = [process.poll() for process in self._processes.values()]
        if any(code is None for code in codes):
            return None
        return max((abs(code) for code in codes if code is not None), default=0)


def run_workers(side: MachineSide, files: Path, arguments: Sequence[str]) -> int:
    """Run the units of this machine until all have exited, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scheduler", required=True, help="address of the scheduler")
    parser.add_argument("--preload", action="append", default=[], help="script to run before")
    parser.add_argument("units", nargs="+")
    given = parser.parse_args(arguments)
    config = files / CONFIG
    shared = json.loads(config.read_text(encoding="utf-8"))
    write_private(config, json.dumps(shared | {"scheduler": given.scheduler}))
    program = [sys.executable, "-m", "scalable.worker.program", str(config)]
    names, preload = given.units, given.preload
    watch = NoticeWatch(side, files.parent / "notice")
    os.environ[NOTICE_FILE] = str(watch.path)
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    units = Units({name: [*program, name, *preload] for name in names})
    watch.start()
    while (code := units.exit_code()) is None:
        if ending.wait(POLL_S):
            # With a notice there is time: the scheduler waits for the tasks, and stops the units.
            if not watch.look():
                units.tell_all()
            time.sleep(ENDING_POLL_S)
        elif len(names) > 1:
            try:
                units.end(side.stopped_units())
            except (OSError, ProviderError) as error:
                logger.warning("could not read which units must stop: %s", error)
    return code


def main() -> None:
    """Run the program named on the command line."""
    log_to_stderr()
    provider, program, *arguments = sys.argv[1:]
    side: Any = get_provider(provider).machine_side()
    files = side.files()
    os.environ[MACHINE_OF] = provider
    os.environ[HOST_VARIABLE] = side.address()
    with tempfile.TemporaryDirectory(prefix="scalable-machine-") as home:
        kept = keep(files, Path(home))
        state = private_directory(Path(home) / "state")
        logger.info("%s on %s", in_image(program), os.environ[HOST_VARIABLE])
        if program == SCHEDULER:
            code = run_scheduler(kept, state)
        elif program == MANAGING:
            code = run_manager(kept, state, *arguments)
        else:
            code = run_workers(side, kept, arguments)
    sys.exit(code)


if __name__ == "__main__":
    main()
