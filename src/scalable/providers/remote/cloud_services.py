"""Scheduler and managers of a detached cluster, on machines of a cloud."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalable.errors import NameTakenError, ProviderError
from scalable.files import write_private
from scalable.manager.launcher import UnitName
from scalable.manager.pools import ManagerSite, Pool
from scalable.model import ClusterRecord, DeploymentSpec
from scalable.protocol.credentials import security_of
from scalable.providers.remote.cloud import (
    MACHINE_OF,
    OWNER,
    ROLE,
    SCHEDULER,
    WORKERS,
    Cloud,
    MachineState,
)
from scalable.providers.remote.cloud_place import (
    START_TIMEOUT_S,
    CloudPlace,
    ask,
    inner_address,
    is_fresh,
    scheduler_of,
)
from scalable.providers.remote.machine_launcher import MachineLauncher
from scalable.providers.remote.machine_site import (
    remove_all,
    start_manager,
    start_scheduler,
    worker_files,
)
from scalable.providers.remote.machines import MachineFrame
from scalable.providers.remote.workers import pool_of, worker_config
from scalable.records import ClusterDirectory
from scalable.records.directory import RECORD, remember
from scalable.records.packing import BEGUN, packed, record_in

logger = logging.getLogger("scalable.providers.remote")

#: Opens a connection to a site, for a target's spec if machines will be started.
Connect = Callable[[Mapping[str, str], DeploymentSpec | None], Cloud]


class CloudServices:
    """Starts the schedulers and managers of detached clusters (a :class:`.ClusterServices`)."""

    def __init__(
        self,
        spec: DeploymentSpec | None,
        connect: Connect,
        inner_place: Callable[[Mapping[str, str]], dict[str, str]],
    ) -> None:
        # `inner_place` translates a site for the cloud's own machines.
        self._spec, self._connect, self._inner_place = spec, connect, inner_place

    def start(self, directory: Path, service: str, program: Sequence[str], log: Path) -> None:  # noqa: ARG002 - the image has its own Python, and the cloud keeps the output
        """Request a program's machine. Raises NameTakenError if a cluster has the name."""
        cluster = ClusterDirectory(directory)
        place = cluster.record().place
        if service == SCHEDULER:
            remember(cluster.record().provider, place)
        start = self._start_scheduler if service == SCHEDULER else self._start_manager
        ask(
            lambda: self._connect(place, self._spec),
            lambda cloud: start(cloud, cluster, service),
            START_TIMEOUT_S,
        )

    def state(self, cluster_id: str) -> dict[str, str]:
        try:
            record = ClusterDirectory(ClusterDirectory.parent() / cluster_id).record()
        except FileNotFoundError:
            return {}
        found = CloudPlace(lambda: self._connect(record.place, None)).programs(cluster_id)
        return {
            name: its.state for name, its in found.items() if its.state in ("pending", "running")
        }

    async def _frame(self, cloud: Cloud, cluster: ClusterDirectory) -> MachineFrame:
        assert self._spec is not None
        return MachineFrame(cluster.id, await cloud.owner(), self._spec.options)

    async def _start_scheduler(self, cloud: Cloud, cluster: ClusterDirectory, _: str) -> None:
        frame, record = await self._frame(cloud, cluster), cluster.record()
        await _refuse_taken(cloud, frame, record)
        files = self._files(frame, cluster)
        # From here on there may be resources, so the cleanup of a refused start includes the cloud.
        write_private(cluster.path / BEGUN, "")
        await start_scheduler(cloud, frame, files)
        await _refuse_ended(cloud, frame, cluster, record.name)
        # Two creators that start at the same time find each other now: the later one gives up.
        await _refuse_taken(cloud, frame, record, begun=True)

    async def _start_manager(self, cloud: Cloud, cluster: ClusterDirectory, manager: str) -> None:
        frame = await self._frame(cloud, cluster)
        # A manager on a machine has no right to store files, but its starter has.
        await keep_worker_files(cloud, frame, manager, self._spec, security_of(cluster.pem()))
        hint = f"run `scalable manager restart {cluster.record().name}` later"
        files = self._files(frame, cluster, manager)
        await start_manager(cloud, frame, manager, files, hint)
        await _refuse_ended(cloud, frame, cluster, manager)

    def _files(
        self, frame: MachineFrame, cluster: ClusterDirectory, manager: str | None = None
    ) -> dict[str, str]:
        """Return a program's files. The site and owner in them are valid on cloud machines."""
        record = cluster.record()
        place = self._inner_place(record.place) | {"owner": frame.owner}
        inner = dataclasses.replace(record, place=place)
        return packed(cluster, manager) | {RECORD: json.dumps(inner.to_dict())}


async def _refuse_ended(
    cloud: Cloud, frame: MachineFrame, cluster: ClusterDirectory, noun: str
) -> None:
    """Delete a cluster that another process has stopped, and raise ProviderError."""
    with suppress(FileNotFoundError):
        if cluster.record().stage != "deleting":
            return
    await remove_all(cloud, frame)
    raise ProviderError(f"{noun!r} was stopped by another process while it was starting")


async def _refuse_taken(
    cloud: Cloud, frame: MachineFrame, record: ClusterRecord, *, begun: bool = False
) -> None:
    """Raise NameTakenError if the user has another running cluster of that name on the site."""
    mine = (record.created_at, record.id)
    for stored in await cloud.files({OWNER: frame.owner, ROLE: SCHEDULER}):
        other = record_in(stored.files)
        if other.id == record.id or other.name != record.name:
            continue
        if begun and (other.created_at, other.id) > mine:
            continue
        machine = await scheduler_of(cloud, other.id)
        if machine is None:
            # An earlier creator may be slower, and its machine would start after this one.
            if not (begun and is_fresh(stored.files)):
                continue
            found = f"{other.id}, whose machine has not been started yet"
        elif machine.state in (MachineState.ENDING, MachineState.ENDED):
            continue
        else:
            found = machine.id
        raise NameTakenError(
            f"a cluster {record.name!r} already exists: {found}",
            hint=f"choose another name, or delete it: scalable down {record.name}",
        )


# Pools --------------------------------------------------------------------------------------------


class ManagedMachines(MachineLauncher):
    """Launcher of one manager's machines, which outlive its process."""

    def __init__(
        self,
        cloud: Cloud,
        frame: MachineFrame,
        site: ManagerSite,
        spec: DeploymentSpec,
        *,
        belongs: bool,
    ) -> None:
        super().__init__(cloud, frame, site.manager, spec.components)
        # `belongs` means that the scheduler is in the same site: workers use its inner address.
        self._site, self._spec, self._belongs = site, spec, belongs

    async def adopt(self) -> dict[UnitName, str]:
        """Find the scheduler, store worker files if needed, and take over machines."""
        cloud, site = self._cloud, self._site
        address = site.scheduler
        if self._belongs:
            machine = await scheduler_of(cloud, site.cluster_id)
            address = (machine and inner_address(machine)) or address
        owner = await cloud.owner()
        self.frame = dataclasses.replace(self.frame, owner=owner, scheduler=address)
        if MACHINE_OF not in os.environ:
            await keep_worker_files(
                cloud, self.frame, self._manager, self._spec, site.security, site.secrets
            )
            await cloud.prepare(self.frame.cluster_id, self.frame.marks())
        return await super().adopt()

    async def close(self) -> None:
        await super().close()
        if not self._belongs and self.frame.owner:
            await self._clear_away()
        await self._cloud.close()

    async def _clear_away(self) -> None:
        """Delete what this manager has created for a cluster of another backend."""
        cloud, marks = self._cloud, self.frame.marks()
        try:
            await cloud.delete_files(self.frame.marks(WORKERS, self._manager))
            machines = await cloud.machines(marks)
            others = [machine for machine in machines if machine.state is not MachineState.ENDED]
            if not others and not await cloud.files(marks):
                await cloud.clean(marks)
        except ProviderError as error:
            logger.warning(
                "resources of manager %s remain until `scalable down`: %s",
                self._manager,
                error,
            )


async def keep_worker_files(
    cloud: Cloud,
    frame: MachineFrame,
    manager: str,
    spec: DeploymentSpec | None,
    security: Any,
    secrets: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Store a manager's worker configurations. The scheduler's address is passed separately."""
    assert spec is not None
    configs = {
        c.name: worker_config(c, "", security, manager, secrets=secrets)
        for c in spec.components.values()
    }
    await worker_files(cloud, frame, manager, configs)


def managed_pools(spec: DeploymentSpec, site: ManagerSite, connect: Connect) -> list[Pool]:
    """Return the pools of a manager that is a separate program."""
    record = _record_of(site)
    # On a machine of the site, the record is that of a process there and contains the site too.
    belongs = record is not None and bool(record.place) and record.provider == spec.provider_name
    frame = MachineFrame(site.cluster_id, "", spec.options)
    cloud = connect(record.place if belongs and record is not None else {}, spec)
    launcher = ManagedMachines(cloud, frame, site, spec, belongs=belongs)
    return [pool_of(component, launcher, spec) for component in spec.components.values()]


def _record_of(site: ManagerSite) -> ClusterRecord | None:
    """Return the record of a manager's cluster, or None if the record is on another machine."""
    try:
        return ClusterDirectory(site.directory.parent.parent).record()
    except (FileNotFoundError, NotADirectoryError):
        return None
