"""Worker processes that outlive the manager which started them, and are found again."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
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
from scalable.containers import ContainerRequest, container_name, render_command, render_removal
from scalable.errors import ProviderError
from scalable.files import private_directory, write_private
from scalable.liveness import identify, is_alive
from scalable.providers.local.processes import own_processes
from scalable.providers.local.render import end_of

PROGRAM = ("-m", "scalable.cluster.worker_process")
TERMINATE_S = 3.0
KILL_S = 5.0
POLL_S = 0.02
LOG_TAIL_BYTES = 8192
REMOVAL_S = 15.0
SCRATCH = "scalable-worker-"


@dataclass
class _Unit:
    identity: Mapping[str, Any]
    process: subprocess.Popen[bytes] | None = None
    limit: int = 0

    @property
    def pid(self) -> int:
        return int(self.identity["pid"])


class DetachedLauncher:
    """Each unit is a process in a session of its own, which names its cluster and itself.

    Parameters
    ----------
    site
        Where the workers belong.
    """

    def __init__(self, site: ManagerSite) -> None:
        self._site = site
        self._units: dict[UnitName, _Unit] = {}
        self._ended: dict[UnitName, str] = {}
        self._tags: dict[str, Mapping[str, Any]] = {}

    def add(self, tag: str, options: Mapping[str, Any]) -> None:
        """Prepare to start workers of a tag: write down, for their owner alone, what they need."""
        site = self._site
        container = options.get("container")
        inside = container is not None and container.host_python is None
        config = WorkerConfig(
            scheduler=site.scheduler,
            name="",
            nthreads=options["nthreads"],
            resources=options["resources"],
            memory_limit=options["memory_limit"],
            host="" if options.get("interface") else "127.0.0.1",
            interface=options.get("interface") or "",
            hand_over=True,
            sys_path=site.sys_path[:1] if inside else site.sys_path,
            security=security_fields(site.security),
            manager=site.manager,
            dask_config=serialized_config(),
        )
        private_directory(site.directory)
        write_private(self._config(tag), json.dumps(asdict(config)))
        self._tags[tag] = options

    def _config(self, tag: str) -> Path:
        return self._site.directory / f"{file_name(tag)}.json"

    # Launching and adopting -----------------------------------------------------------------------

    async def launch(self, entries: Mapping[UnitName, Mapping[str, Any]]) -> None:
        """Start a process for each entry; they connect later."""
        for name, entry in entries.items():
            if name not in self._units:
                self._units[name] = self._spawn(str(name), str(entry["pool"]))

    def _spawn(self, name: str, tag: str) -> _Unit:
        options = self._tags[tag]
        program = [*PROGRAM, str(self._config(tag)), name, *options["preload"]]
        container: ContainerRequest | None = options.get("container")
        if container is None:
            command = [sys.executable, *program]
        else:
            named = _named(container, name, self._site.directory)
            command = render_command(named, [named.python, *program])
        log_path = self._log(name)
        scratch = {"TMPDIR": str(self._scratch(name))}
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            private_directory(self._scratch(name))
            with log_path.open("ab") as log:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **({} if container else {**scratch, **options["env"]})},
                    start_new_session=True,
                )
        except OSError as error:
            raise ProviderError(
                f"worker {name} cannot be started: {error}", transient=True
            ) from error
        return _Unit(identify(process.pid), process, options["memory_limit"])

    async def adopt(self) -> dict[UnitName, str]:
        """Take over the processes that an earlier process of this manager started."""
        adopted: dict[UnitName, str] = {}
        tags = {str(self._config(tag)): tag for tag in self._tags}
        for found in own_processes(f"{self._site.directory}/"):
            for config, name in zip(found.arguments, found.arguments[1:], strict=False):
                tag = tags.get(config)
                # A child that a call forked has the same command line; the worker leads its group.
                if tag is not None and os.getpgid(found.pid) == found.pid:
                    limit = self._tags[tag]["memory_limit"]
                    self._units[name] = _Unit(identify(found.pid), limit=limit)
                    adopted[name] = tag
        return adopted

    # Looking --------------------------------------------------------------------------------------

    def observe(self) -> dict[UnitName, Observation]:
        """Look at each process."""
        return {name: self._observe(name, unit) for name, unit in self._units.items()}

    def _observe(self, name: UnitName, unit: _Unit) -> Observation:
        if name not in self._ended:
            if not _has_ended(unit):
                return Observation(UnitState.RUNNING)
            self._clear(name, unit)
        return Observation(UnitState.ENDED, self._ended[name])

    def _clear(self, name: UnitName, unit: _Unit) -> None:
        """See to what an ended process left behind."""
        # Its children first: once it is reaped, the number of its group may belong to others.
        if unit.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(unit.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                unit.process.wait(KILL_S)
        code = None if unit.process is None else unit.process.returncode
        self._ended[name] = "it ended" if code is None else end_of(code, unit.limit)
        remove_scratch(str(self._scratch(str(name))))

    def look_soon(self) -> None:
        """Nothing to do: every look is fresh."""

    # Ending ---------------------------------------------------------------------------------------

    async def stop(self, names: Sequence[UnitName]) -> None:
        """End processes: politely for 3 s, then not."""
        units = {name: self._units[name] for name in names if name in self._units}
        for patience_s, number in ((TERMINATE_S, signal.SIGTERM), (KILL_S, signal.SIGKILL)):
            for unit in units.values():
                if not _has_ended(unit):
                    _signal(unit, number)
            deadline = time.monotonic() + patience_s
            while not all(map(_has_ended, units.values())):
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(POLL_S)
        for name, unit in units.items():
            if name not in self._ended:
                self._clear(name, unit)
            self._remove_container(str(name))
            self._units.pop(name, None)
            self._ended.pop(name, None)

    def _remove_container(self, name: str) -> None:
        for options in self._tags.values():
            container = options.get("container")
            if container is not None:
                removal = render_removal(_named(container, name, self._site.directory))
                if removal is not None:
                    with suppress(subprocess.SubprocessError, OSError):
                        subprocess.run(removal, capture_output=True, check=False, timeout=REMOVAL_S)

    def logs(self, name: UnitName) -> str:
        """The last 8 KiB of a process's output."""
        try:
            with self._log(str(name)).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def _log(self, name: str) -> Path:
        directory = self._site.log_dir or self._site.directory / "logs"
        return directory / f"{file_name(name)}.log"

    def _scratch(self, name: str) -> Path:
        """Directory of one worker, which anybody who knows the cluster can find and remove."""
        return scratch_directory(self._site.cluster_id) / file_name(name)


def scratch_directory(cluster_id: str) -> Path:
    """Where workers of a cluster have their scratch directories on this machine."""
    return Path(tempfile.gettempdir()) / f"{SCRATCH}{os.geteuid()}-{cluster_id}"


def file_name(name: str) -> str:
    """A name as part of a file's."""
    return re.sub(r"[^\w.-]", "_", name)


def _named(container: ContainerRequest, name: str, directory: Path) -> ContainerRequest:
    import dataclasses

    mounts = {**container.mounts, str(directory): str(directory)}
    return dataclasses.replace(container, name=container_name(name), mounts=mounts)


def _has_ended(unit: _Unit) -> bool:
    if unit.process is not None:
        if unit.process.returncode is not None:
            return True
        # Without reaping it: its group's number stays its own until its children have ended.
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, unit.pid, options) is not None
    return is_alive(unit.identity) is False


def _signal(unit: _Unit, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError, psutil.Error):
        if number == signal.SIGKILL:
            os.killpg(unit.pid, number)
        else:
            os.kill(unit.pid, number)
