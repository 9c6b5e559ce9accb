"""The copy of a run whose files are on a remote site."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from scalable.clusters.control import ask
from scalable.errors import ClusterError
from scalable.files import private_directory
from scalable.model import names
from scalable.records import ClusterDirectory

logger = logging.getLogger("scalable.clusters")

_STREAM = ".jsonl"
#: Seconds between two copies, and longest wait for one.
PULL_S = 10.0
PULL_TIMEOUT_S = 60.0

#: Coroutine function that returns the run's name and the additions to its files.
Read = Callable[[Mapping[str, int]], Awaitable[Mapping[str, Any]]]


async def copy_run(read: Read, parent: Path) -> Path:
    """Update the copy of a run below ``parent``, and return its directory."""
    path: Path | None = None
    while True:
        answer = await read({} if path is None else _sizes(path))
        first, path = path is None, parent / names.FILE_NAME.require(str(answer["run"]))
        if first and path.is_dir():
            continue  # existing data need not be sent
        private_directory(path)
        for name, data in answer["files"].items():
            names.FILE_NAME.require(name)
            with (path / name).open("ab" if name.endswith(_STREAM) else "wb") as file:
                file.write(data)
        if not any(name.endswith(_STREAM) and data for name, data in answer["files"].items()):
            return path


class StreamCopy:
    """Appends some streams of a remote run to the rows of a run here."""

    def __init__(self, directory: Path, streams: Iterable[str]) -> None:
        self._directory = directory
        self._sizes = {f"{stream}{_STREAM}": 0 for stream in streams}

    async def pull(self, read: Read) -> None:
        """Append the rows since the last call."""
        while True:
            files = (await read(self._sizes))["files"]
            added = {name: data for name, data in files.items() if name in self._sizes and data}
            for name, data in added.items():
                with (self._directory / name).open("ab") as file:
                    file.write(data)
                self._sizes[name] += len(data)
            if not added:
                return


class RepeatedPull:
    """Updates a copy every few seconds in a thread, until it is closed."""

    def __init__(self, cluster: Any, copy: StreamCopy) -> None:
        self._cluster, self._copy = cluster, copy
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scalable-rows", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._done.wait(PULL_S):
            self.pull()

    def pull(self) -> None:
        """Copy the additions since the last time. A failure is only logged."""
        with self._lock:
            try:
                self._cluster.sync(self._pull, callback_timeout=PULL_TIMEOUT_S)
            except (OSError, TimeoutError, ClusterError) as error:
                logger.warning("the record of the run is not complete: %s", error)

    async def _pull(self) -> None:
        await self._copy.pull(self._cluster.run_files)

    def close(self) -> None:
        """Copy the last rows."""
        self._done.set()
        self._thread.join(PULL_TIMEOUT_S)
        self.pull()


def flush_run(directory: ClusterDirectory) -> None:
    """Request the scheduler to write the buffered rows of its run."""
    directory.fetch_run()
    run = (directory.scheduler() or {}).get("run")
    try:
        known = {} if run is None else _sizes(Path(run))
        if known:  # there is a record on this machine
            ask(directory, lambda calls: calls.run_files(known))
    except (ClusterError, OSError) as error:
        logger.debug("the last rows of %s are not written: %s", directory.id, error)


def _sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in directory.iterdir() if path.is_file()}
