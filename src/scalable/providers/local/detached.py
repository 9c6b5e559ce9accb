"""Worker processes that outlive the manager which started them, and are found again."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distributed.comm.addressing import get_address_host
from distributed.utils import get_ip

from scalable.containers import ContainerRequest, container_name, render_removal
from scalable.files import private_directory, write_private
from scalable.manager.launcher import UnitName
from scalable.manager.site import ManagerSite
from scalable.providers.local.launcher import (
    PROGRAM,
    ProcessLauncher,
    Unit,
    command_line,
)
from scalable.providers.local.processes import Program, WorkerProcess, programs
from scalable.providers.local.scratch import file_name, find_scratch
from scalable.worker.program import SCRATCH, WorkerConfig


class DetachedLauncher(ProcessLauncher):
    """Each unit is a process in a session of its own; its command line says whose it is.

    Parameters
    ----------
    site
        Where the workers belong.
    options
        Tag -> options of its workers.
    """

    def __init__(self, site: ManagerSite, options: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(site)
        self._options = options
        self._files = {tag: site.directory / f"{file_name(tag)}.json" for tag in options}
        self._written: set[Path] = set()

    async def adopt(self) -> dict[UnitName, str]:
        """Take over the processes that an earlier process of this manager started."""
        tags = {str(file): tag for tag, file in self._files.items()}
        # The oldest of a name is the worker, or the client of its container's runtime; others are
        # copies that a call forked, and what runs in the container.
        found = sorted(programs(self._site.directory), key=lambda p: p.process.create_time())
        adopted: dict[UnitName, str] = {}
        for program in found:
            path, *rest = program.arguments
            if path in tags and rest and rest[0] not in self._units:
                adopted[rest[0]] = tags[path]
                self._units[rest[0]] = self._adopted(rest[0], program, tags[path])
        return adopted

    def _adopted(self, name: str, program: Program, tag: str) -> Unit:
        options = self._options[tag]
        scratch = find_scratch(self._site.cluster_id, name)
        container: ContainerRequest | None = options["container"]
        removal = None
        if container is not None:
            removal = render_removal(dataclasses.replace(container, name=container_name(name)))
        log = self._log(name, Path())
        return Unit(WorkerProcess(program.process), scratch, log, options["memory_limit"], removal)

    def _spawn(
        self,
        name: str,
        options: Mapping[str, Any],
        scratch: Path,
        log: Path,
        container: ContainerRequest | None,
    ) -> subprocess.Popen[bytes]:
        file = self._files[next(iter(options["resources"]))]
        if file not in self._written:
            private_directory(file.parent)
            write_private(file, json.dumps(dataclasses.asdict(self._config(options))))
            self._written.add(file)
        place = {SCRATCH: str(scratch)}
        env = {**options["env"], **place}
        if container is not None:
            mounts = {**container.mounts, str(file.parent): str(file.parent)}
            inside = {**container.env, **place}
            container, env = dataclasses.replace(container, mounts=mounts, env=inside), {}
        program = [*PROGRAM, str(file), name, *options["preload"]]
        return self._run(command_line(container, program), log, env, stdin=subprocess.DEVNULL)

    def _config(self, options: Mapping[str, Any]) -> WorkerConfig:
        interface = options["interface"] or ""
        # Where the scheduler is elsewhere, so are other workers: they reach us as it does.
        scheduler = get_address_host(self._site.scheduler)
        host = "" if interface else str(get_ip(scheduler))  # type: ignore[no-untyped-call]
        return dataclasses.replace(super()._config(options), host=host, interface=interface)

    def _log(self, name: str, scratch: Path) -> Path:  # noqa: ARG002 - what is there outlives it
        logs = self._site.log_dir or self._site.directory / "logs"
        return logs / f"{file_name(name)}.log"
