"""Pools of worker processes, and the launcher of those that outlive it."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distributed.comm.addressing import get_address_host
from distributed.utils import get_ip

from scalable.containers import ContainerRequest, container_name, prove, render_removal, request_for
from scalable.files import private_directory, write_private
from scalable.manager.launcher import UnitName
from scalable.manager.pools import ManagerSite, Pool, config_path
from scalable.model import DeploymentSpec
from scalable.providers.local.fork_server import ForkServerProcess
from scalable.providers.local.launcher import ProcessLauncher, WorkerProgram, started
from scalable.providers.local.processes import (
    RunningProgram,
    WorkerProcess,
    file_name,
    find_scratch,
    programs,
)
from scalable.providers.local.render import own_paths, process_options, workflow_directory
from scalable.providers.local.units import Belongings, LocalUnit
from scalable.worker.config import SCRATCH, WorkerConfig
from scalable.worker.process_worker import ProcessWorker


class DetachedLauncher(ProcessLauncher):
    """Launcher of worker processes that keep running after this process.
    A worker's command line contains the cluster's directory and the worker's name.
    """

    def __init__(self, site: ManagerSite, options: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(site)
        self._options = options
        self._files = {tag: config_path(site.directory, tag) for tag in options}
        self._written: set[Path] = set()

    async def adopt(self) -> dict[UnitName, str]:
        """Adopt the processes that an earlier process of this manager started."""
        tags = {str(file): tag for tag, file in self._files.items()}
        # Several processes may have one worker's name. The oldest is the worker, or the client of
        # its container's runtime. The others were forked by a task, or run in the container.
        found = sorted(programs(self._site.directory), key=lambda p: p.process.create_time())
        adopted: dict[UnitName, str] = {}
        for program in found:
            path, *rest = program.arguments
            if path in tags and rest and rest[0] not in self._units:
                name = rest[0]
                adopted[name] = tags[path]
                unit = self._units[name] = self._adopted(name, program, tags[path])
                unit.begin()
        await started([self._units[name] for name in adopted])
        return adopted

    def _adopted(self, name: str, program: RunningProgram, tag: str) -> LocalUnit:
        options = self._options[tag]
        container: ContainerRequest | None = options["container"]
        removal = None
        if container is not None:
            removal = render_removal(dataclasses.replace(container, name=container_name(name)))
        belongings = Belongings(
            find_scratch(self._site.cluster_id, name),
            self._log(name, Path()),
            options["memory_limit"],
            removal,
        )
        return LocalUnit(name, lambda: WorkerProcess(program.process), belongings, self._changed)

    def _program(
        self,
        name: str,
        options: Mapping[str, Any],
        scratch: Path,
        container: ContainerRequest | None,
    ) -> WorkerProgram:
        file = self._files[next(iter(options["resources"]))]
        if file not in self._written:
            private_directory(file.parent)
            write_private(file, json.dumps(dataclasses.asdict(self._config(options))))
            self._written.add(file)
        place = {SCRATCH: str(scratch)}
        environment = {**options["env"], **place}
        if container is not None:
            mounts = {**container.mounts, str(file.parent): str(file.parent)}
            inside = {**container.env, **place}
            container = dataclasses.replace(container, mounts=mounts, env=inside)
            environment = {}
        preload = tuple(options["preload"])
        arguments = (str(file), name, *preload)
        return WorkerProgram(name, arguments, environment, None, container, preload)

    def _config(self, options: Mapping[str, Any]) -> WorkerConfig:
        interface = options["interface"] or ""
        # Workers on the scheduler's machine and on others have to use the same address.
        scheduler = get_address_host(self._site.scheduler)
        host = "" if interface else str(get_ip(scheduler))  # type: ignore[no-untyped-call]
        return dataclasses.replace(super()._config(options), host=host, interface=interface)

    def _log(self, name: str, scratch: Path) -> Path:  # noqa: ARG002 - the log outlives the scratch
        logs = self._site.log_dir or self._site.directory / "logs"
        return logs / f"{file_name(name)}.log"


# Pools --------------------------------------------------------------------------------------------


def process_pools(
    spec: DeploymentSpec, site: ManagerSite, server: ForkServerProcess | None = None
) -> list[Pool]:
    """Return the empty pools of a manager, whose workers are processes of this machine."""
    slots = spec.options["threads_per_worker"]
    containers = _containers(spec, site.sys_path)
    options = {
        tag: {
            **process_options(component, slots, workflow_directory(spec)),
            "container": containers.get(tag),
            "interface": spec.options["interface"],
        }
        for tag, component in spec.components.items()
    }
    launcher = DetachedLauncher(site, options) if site.detached else ProcessLauncher(site, server)
    return [
        Pool(
            tag,
            launcher,
            {"cls": ProcessWorker, "options": options[tag]},
            slots,
            shape={"cpus": part.cpus, "memory": part.memory, "gpus": part.gpus},
        )
        for tag, part in spec.components.items()
    ]


def _containers(spec: DeploymentSpec, sys_path: Sequence[str]) -> dict[str, ContainerRequest]:
    """Map the components that have one to their container, after a trial start of each."""
    found = {
        tag: made for tag, made in container_requests(spec, sys_path).items() if made is not None
    }
    for request in found.values():
        prove(request)
    return found


def container_requests(
    spec: DeploymentSpec, sys_path: Sequence[str]
) -> dict[str, ContainerRequest | None]:
    """Map each component to its container or None."""
    slots, found = spec.options["threads_per_worker"], {}
    for tag, component in spec.components.items():
        mounts = {path: path for path in own_paths(component, workflow_directory(spec), sys_path)}
        found[tag] = request_for(
            component,
            spec.options["containers"],
            unit=f"{tag}-{secrets.token_hex(3)}",
            environment=component.environment(slots),
            mounts=mounts,
        )
    return found
