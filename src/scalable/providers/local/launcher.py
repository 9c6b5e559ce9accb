"""Starts worker processes on this machine, and ends them."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from scalable.containers import (
    ContainerRequest,
    container_name,
    render_command,
    render_removal,
    run_bounded,
)
from scalable.errors import ProviderError
from scalable.files import read_tail
from scalable.manager.launcher import Observation, UnitName, UnitState
from scalable.manager.site import ManagerSite
from scalable.providers.local.processes import POLL_S, TERMINATE_S, WorkerProcess
from scalable.providers.local.render import end_of
from scalable.providers.local.scratch import file_name, make_scratch
from scalable.worker.program import (
    WorkerConfig,
    remove_scratch,
    security_fields,
    serialized_config,
)

PROGRAM = ("-m", "scalable.worker.program")
STOPPED_GRACE_S = 10.0
REMOVAL_S = 15.0


@dataclass
class Unit:
    """A worker's process and what has to be cleared away after it.

    Attributes
    ----------
    process
        The process.
    scratch
        Its own directories.
    log
        Where its output goes.
    limit
        Bytes of memory that it may use; 0 for no limit.
    removal
        The command that removes its container, or None.
    stopped_since
        Monotonic seconds since which a signal has stopped it, or None.
    """

    process: WorkerProcess
    scratch: tuple[Path, ...]
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

    #: Starting a worker takes a core for half a second: more at once would only be late together.
    at_once = 4 * (os.cpu_count() or 1)

    def __init__(self, site: ManagerSite) -> None:
        self._site = site
        self._units: dict[UnitName, Unit] = {}
        self._ended: dict[UnitName, _End] = {}

    # Starting -----------------------------------------------------------------------------------

    async def launch(self, entries: Mapping[UnitName, Mapping[str, Any]]) -> None:
        """Start a process for each entry; they connect later."""
        for name, entry in entries.items():
            if name not in self._units:
                self._units[name] = self._start(str(name), entry["options"])

    async def adopt(self) -> dict[UnitName, str]:
        """Nothing: these units end with the process that launched them."""
        return {}

    def _start(self, name: str, options: Mapping[str, Any]) -> Unit:
        """Start the process of a worker, with a directory of its own."""
        scratch: Path | None = None
        try:
            scratch = make_scratch(self._site.cluster_id, name)
            log = self._log(name, scratch)
            log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            container = _container(options["container"], name, scratch)
            child = self._spawn(name, options, scratch, log, container)
        except (OSError, ValueError) as error:
            remove_scratch("" if scratch is None else str(scratch))
            raise ProviderError(
                f"worker {name} cannot be started: {error}", transient=isinstance(error, OSError)
            ) from error
        process = WorkerProcess(psutil.Process(child.pid), child)
        removal = None if container is None else render_removal(container)
        return Unit(process, (scratch,), log, options["memory_limit"], removal)

    def _spawn(
        self,
        name: str,
        options: Mapping[str, Any],
        scratch: Path,
        log: Path,
        container: ContainerRequest | None,
    ) -> subprocess.Popen[bytes]:
        config = dataclasses.replace(
            self._config(options),
            name=name,
            local_directory=str(scratch),
            preload=options["preload"],
        )
        env = {} if container else options["env"]
        child = self._run(command_line(container, PROGRAM), log, env, stdin=subprocess.PIPE)
        assert child.stdin is not None
        with suppress(BrokenPipeError):  # it ended already; its exit is seen as of any other
            child.stdin.write(config.to_line())
            child.stdin.flush()
        return child

    def _run(
        self, command: Sequence[str], log: Path, env: Mapping[str, str], *, stdin: int
    ) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                # A group of its own: Ctrl-C is ours to handle, and its children end with it.
                start_new_session=True,
            )

    def _config(self, options: Mapping[str, Any]) -> WorkerConfig:
        """What the workers of a pool have in common."""
        site, container = self._site, options["container"]
        # An image has modules of its own; of ours it sees the workflow's directory.
        alone = container is not None and container.host_python is None
        return WorkerConfig(
            scheduler=site.scheduler,
            name="",
            nthreads=options["nthreads"],
            resources=options["resources"],
            memory_limit=options["memory_limit"],
            sys_path=site.sys_path[:1] if alone else site.sys_path,
            security=security_fields(site.security),
            manager=site.manager,
            dask_config=serialized_config(),
        )

    def _log(self, name: str, scratch: Path) -> Path:
        logs = self._site.log_dir
        return scratch / "worker.log" if logs is None else logs / f"{file_name(name)}.log"

    # Looking ------------------------------------------------------------------------------------

    def observe(self) -> dict[UnitName, Observation]:
        """Look at each process."""
        return {name: self._observe(name, unit) for name, unit in self._units.items()}

    def _observe(self, name: UnitName, unit: Unit) -> Observation:
        if name not in self._ended:
            if not unit.process.has_exited():
                return _running(unit)
            self._reap(name, unit)
        return Observation(UnitState.ENDED, self._ended[name].reason)

    def look_soon(self) -> None:
        """Nothing to do: every look is fresh."""

    async def logs(self, name: UnitName) -> str:
        """Return the last 8 KiB of a process's output."""
        if name in self._ended:
            return self._ended[name].last_output
        return read_tail(self._units[name].log) if name in self._units else ""

    # Ending -------------------------------------------------------------------------------------

    async def stop(self, names: Sequence[UnitName]) -> None:
        """End processes: politely for 3 s, then not."""
        units = {name: self._units[name] for name in names if name in self._units}
        waiting = [unit.process for name, unit in units.items() if name not in self._ended]
        for process in waiting:
            process.terminate()
        deadline = time.monotonic() + TERMINATE_S
        while not all(process.has_exited() for process in waiting):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(POLL_S)
        for name, unit in units.items():
            if name not in self._ended:
                self._reap(name, unit)
            self._units.pop(name, None)

    def _reap(self, name: UnitName, unit: Unit) -> None:
        unit.process.end()
        if unit.removal is not None:
            run_bounded(unit.removal, REMOVAL_S)
        code = unit.process.returncode
        reason = "it ended" if code is None else end_of(code, unit.limit)
        self._ended[name] = _End(reason, read_tail(unit.log))
        for scratch in unit.scratch:
            remove_scratch(str(scratch))


def _container(
    request: ContainerRequest | None, name: str, scratch: Path
) -> ContainerRequest | None:
    """The container of one worker: with a name and a scratch directory of its own."""
    if request is None:
        return None
    mounts = {**request.mounts, str(scratch): str(scratch)}
    return dataclasses.replace(request, name=container_name(name), mounts=mounts)


def command_line(container: ContainerRequest | None, program: Sequence[str]) -> list[str]:
    """How Python is started with these arguments, here or in a container."""
    if container is None:
        return [sys.executable, *program]
    return render_command(container, [container.python, *program])


def _running(unit: Unit) -> Observation:
    """A process that is there; one that was stopped by a signal for too long is as good as gone."""
    now = time.monotonic()
    unit.stopped_since = (unit.stopped_since or now) if unit.process.is_stopped() else None
    if unit.stopped_since is not None and now - unit.stopped_since > STOPPED_GRACE_S:
        return Observation(UnitState.ENDED, f"it was stopped by a signal for {STOPPED_GRACE_S:g} s")
    return Observation(UnitState.RUNNING)
