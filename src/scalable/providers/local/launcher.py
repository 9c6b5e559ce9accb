"""Starts worker processes on this machine, and ends them."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from scalable.cluster.launcher import Observation, UnitName, UnitState
from scalable.cluster.site import ManagerSite
from scalable.cluster.worker_process import (
    WorkerConfig,
    remove_scratch,
    security_fields,
    serialized_config,
)
from scalable.containers import (
    ContainerRequest,
    container_name,
    render_command,
    render_removal,
    run_bounded,
)
from scalable.errors import ProviderError
from scalable.providers.local.render import end_of

COMMAND = (sys.executable, "-m", "scalable.cluster.worker_process")
TERMINATE_S = 3.0
KILL_S = 5.0
LOG_TAIL_BYTES = 8192
STOPPED_GRACE_S = 10.0
REMOVAL_S = 15.0


@dataclass
class _Unit:
    process: subprocess.Popen[bytes]
    scratch: Path
    log: Path
    limit: int
    removal: list[str] | None = None
    stopped_since: float | None = None


@dataclass(frozen=True)
class _End:
    reason: str
    last_output: str


class ProcessLauncher:
    """Each unit is a process in a group of its own, with a pipe that ends when we do.

    Parameters
    ----------
    site
        Where the workers belong; they get its credentials through the pipe.
    """

    def __init__(self, site: ManagerSite) -> None:
        self._site = site
        self._units: dict[UnitName, _Unit] = {}
        self._ended: dict[UnitName, _End] = {}

    def add(self, tag: str, options: Mapping[str, Any]) -> None:
        """Nothing to prepare: each worker is told all it needs when it starts."""

    async def launch(self, entries: Mapping[UnitName, Mapping[str, Any]]) -> None:
        """Start a process for each entry; they connect later."""
        for name, entry in entries.items():
            if name not in self._units:
                self._units[name] = self._spawn(str(name), entry["options"])

    async def adopt(self) -> dict[UnitName, str]:
        """Nothing: these units end with the process that launched them."""
        return {}

    def _spawn(self, name: str, options: Mapping[str, Any]) -> _Unit:
        # A directory for each: a common one that comes and goes could be put there by others.
        scratch = Path(tempfile.mkdtemp(prefix="scalable-"))
        config = WorkerConfig(
            scheduler=self._site.scheduler,
            name=name,
            nthreads=options["nthreads"],
            resources=options["resources"],
            memory_limit=options["memory_limit"],
            local_directory=str(scratch),
            preload=tuple(options["preload"]),
            sys_path=self._site.sys_path,
            security=security_fields(self._site.security),
            manager=self._site.manager,
            dask_config=serialized_config(),
        )
        container = _container(options.get("container"), name, scratch)
        if container is not None and container.host_python is None:
            # An image has modules of its own; of ours it sees the workflow's directory.
            config = dataclasses.replace(config, sys_path=config.sys_path[:1])
        log_path = self._log(name, scratch)
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with log_path.open("ab") as log:
                process = subprocess.Popen(
                    COMMAND if container is None else render_command(container, _inside(container)),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **({} if container else options["env"])},
                    # A group of its own: Ctrl-C is ours to handle, and its children end with it.
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            remove_scratch(str(scratch))
            raise ProviderError(
                f"worker {name} cannot be started: {error}", transient=isinstance(error, OSError)
            ) from error
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it ended already; its exit is seen as of any other
            process.stdin.write(config.to_line())
            process.stdin.flush()
        removal = None if container is None else render_removal(container)
        return _Unit(process, scratch, log_path, options["memory_limit"], removal)

    def observe(self) -> dict[UnitName, Observation]:
        """Look at each process."""
        return {name: self._observe(name, unit) for name, unit in self._units.items()}

    def _observe(self, name: UnitName, unit: _Unit) -> Observation:
        if name not in self._ended:
            if not _has_exited(unit.process):
                return _running(unit)
            self._reap(name, unit)
        return Observation(UnitState.ENDED, self._ended[name].reason)

    def _reap(self, name: UnitName, unit: _Unit) -> None:
        # Its children first: once it is reaped, the number of its group may belong to others.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(unit.process.pid, signal.SIGKILL)
        try:
            unit.process.wait(KILL_S)
        except subprocess.TimeoutExpired:
            raise ProviderError(f"process {unit.process.pid} does not end when killed") from None
        assert unit.process.stdin is not None
        with suppress(BrokenPipeError):
            unit.process.stdin.close()
        if unit.removal is not None:
            run_bounded(unit.removal, REMOVAL_S)
        reason = end_of(unit.process.returncode, unit.limit)
        self._ended[name] = _End(reason, _tail(unit.log))
        remove_scratch(str(unit.scratch))

    async def stop(self, names: Sequence[UnitName]) -> None:
        """End processes: politely for 3 s, then not."""
        units = {name: self._units[name] for name in names if name in self._units}
        for name, unit in units.items():
            if name not in self._ended and not _has_exited(unit.process):
                unit.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + TERMINATE_S
        while any(n not in self._ended and not _has_exited(u.process) for n, u in units.items()):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.02)
        for name, unit in units.items():
            if name not in self._ended:
                self._reap(name, unit)
            self._units.pop(name, None)

    def look_soon(self) -> None:
        """Nothing to do: every look is fresh."""

    def logs(self, name: UnitName) -> str:
        """The last 8 KiB of a process's output."""
        if name in self._ended:
            return self._ended[name].last_output
        return _tail(self._units[name].log) if name in self._units else ""

    def _log(self, name: str, scratch: Path) -> Path:
        logs = self._site.log_dir
        return scratch / "worker.log" if logs is None else logs / f"{_file_name(name)}.log"


def _container(
    request: ContainerRequest | None, name: str, scratch: Path
) -> ContainerRequest | None:
    """The container of one worker: with a name and a scratch directory of its own."""
    if request is None:
        return None
    mounts = {**request.mounts, str(scratch): str(scratch)}
    return dataclasses.replace(request, name=container_name(name), mounts=mounts)


def _inside(container: ContainerRequest) -> list[str]:
    return [container.python, *COMMAND[1:]]


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")
    except OSError:
        return ""


def _running(unit: _Unit) -> Observation:
    """A process that is there; one that was stopped by a signal for too long is as good as gone."""
    now = time.monotonic()
    stopped = psutil.Process(unit.process.pid).status() == psutil.STATUS_STOPPED
    unit.stopped_since = (unit.stopped_since or now) if stopped else None
    if unit.stopped_since is not None and now - unit.stopped_since > STOPPED_GRACE_S:
        return Observation(UnitState.ENDED, f"it was stopped by a signal for {STOPPED_GRACE_S:g} s")
    return Observation(UnitState.RUNNING)


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)


def _has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Whether a child has ended, without reaping it."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
