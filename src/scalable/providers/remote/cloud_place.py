"""Clusters on a cloud's machines, for any process with access to the account."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar

from scalable.client.tunnel import Tunnel
from scalable.errors import ClusterError, ProviderError
from scalable.model import ProgramState
from scalable.protocol.streams import RELAY_PORT
from scalable.providers.remote.cloud import (
    CLUSTER,
    MACHINE_OF,
    MANAGER,
    MANAGING,
    OWNER,
    ROLE,
    SCHEDULER,
    Cloud,
    Machine,
    MachineState,
)
from scalable.providers.remote.machine_site import (
    DIAL_TIMEOUT_S,
    REMOVAL_TIMEOUT_S,
    TcpDial,
    listens,
    remove_all,
)
from scalable.providers.remote.machines import PORT, MachineFrame
from scalable.records.packing import record_in

logger = logging.getLogger("scalable.providers.remote")

ANSWER_TIMEOUT_S = 20.0
LOGS_TIMEOUT_S = 120.0
#: Age in seconds at which a session has failed if it has no scheduler machine, or the program on
#: that machine has not started.
MACHINELESS_S = 900.0
#: Seconds within which the creator of a detached cluster requests the scheduler's machine or gives
#: up, and a minute for differences between clocks.
START_TIMEOUT_S, CLOCKS_S = 120.0, 60.0


class CloudPlace:
    """Clusters of one user in one cloud site (a :class:`.RemotePlace`)."""

    def __init__(self, connect: Callable[[], Cloud]) -> None:
        self._connect = connect

    def clusters(self) -> dict[str, dict[str, str]]:
        return ask(self._connect, _clusters, ANSWER_TIMEOUT_S)

    def programs(self, cluster_id: str) -> dict[str, ProgramState]:
        return ask(self._connect, lambda cloud: _programs(cloud, cluster_id), ANSWER_TIMEOUT_S)

    def address(self, cluster_id: str) -> str | None:
        if MACHINE_OF not in os.environ:
            return None
        machine = ask(self._connect, lambda c: scheduler_of(c, cluster_id), ANSWER_TIMEOUT_S)
        return None if machine is None else inner_address(machine)

    def outer_address(self, cluster_id: str) -> str | None:
        """Return the scheduler's public address, or else the one within its network."""
        machine = ask(self._connect, lambda c: scheduler_of(c, cluster_id), ANSWER_TIMEOUT_S)
        host = None if machine is None else machine.public_address or machine.address
        return f"tls://{host}:{PORT}" if host else None

    def tunnel(self, cluster_id: str) -> SchedulerTunnel:
        return SchedulerTunnel(self._connect, cluster_id)

    def logs(self, cluster_id: str, since: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        return ask(self._connect, lambda cloud: _logs(cloud, cluster_id, since), LOGS_TIMEOUT_S)

    def keep(self, cluster_id: str, seconds: float | None) -> None:
        """Do nothing, since the scheduler stops itself in time, and all machines with it."""

    def delete(self, cluster_id: str, *, wait: bool = True) -> list[str]:
        async def delete(cloud: Cloud) -> list[str]:
            frame = MachineFrame(cluster_id, await cloud.owner(), {})
            own = [] if wait else await _machines_of_this_process(cloud, frame)
            return await remove_all(cloud, frame, wait=wait, last=own)

        return ask(self._connect, delete, REMOVAL_TIMEOUT_S + ANSWER_TIMEOUT_S)


async def _machines_of_this_process(cloud: Cloud, frame: MachineFrame) -> list[str]:
    """Return the ids of the managers' machines, one of which runs the caller."""
    return [machine.id for machine in await cloud.machines(frame.marks(MANAGING))]


async def _clusters(cloud: Cloud) -> dict[str, dict[str, str]]:
    own = {OWNER: await cloud.owner()}
    found: dict[str, dict[str, str]] = {}
    for role in (SCHEDULER, MANAGING):
        for stored in await cloud.files(own | {ROLE: role}):
            cluster_id = stored.marks.get(CLUSTER, "")
            if role == SCHEDULER and _is_detached(cluster_id, stored.files):
                found[cluster_id] = dict(stored.files)
            elif cluster_id in found:
                for path, text in stored.files.items():
                    found[cluster_id].setdefault(path, text)
    return found


def _is_detached(cluster_id: str, files: Mapping[str, str]) -> bool:
    """Return whether files belong to a cluster that does not need its creator."""
    try:
        record = record_in(files)
    except ClusterError as error:
        logger.debug("the files of cluster %s are ignored: %s", cluster_id, error)
        return False
    return record.id == cluster_id and not is_session(cluster_id)


def is_session(cluster_id: str) -> bool:
    """Return whether a cluster stops with its creator's session, judged by its id's form."""
    try:
        return str(uuid.UUID(cluster_id)) != cluster_id
    except ValueError:
        return True


def remains(connect: Callable[[], Cloud]) -> dict[str, str]:
    """Map cluster ids to a description: a session without scheduler, or resources without files."""

    async def find(cloud: Cloud) -> dict[str, str]:
        own = {OWNER: await cloud.owner()}
        machines = [m for m in await cloud.machines(own) if m.state is not MachineState.ENDED]
        led = {
            m.marks.get(CLUSTER)
            for m in machines
            if m.marks.get(ROLE) == SCHEDULER and not await has_never_begun(cloud, m)
        }
        found = dict(await cloud.leftovers(own))
        known = set()
        for stored in await cloud.files(own):
            cluster_id = stored.marks.get(CLUSTER, "")
            known.add(cluster_id)
            if stored.marks.get(ROLE) != SCHEDULER or not is_session(cluster_id):
                continue
            if cluster_id not in led and not is_fresh(stored.files):
                found[cluster_id] = "files of a closed session"
        for machine in machines:
            cluster_id = machine.marks.get(CLUSTER, "")
            if cluster_id not in known and 0 < machine.made_at < time.time() - MACHINELESS_S:
                found.setdefault(cluster_id, "machines without the files of a cluster")
            if cluster_id in found:
                found[cluster_id] = f"{found[cluster_id]}, machine {machine.id}"
        return found

    return ask(connect, find, ANSWER_TIMEOUT_S)


def is_fresh(files: Mapping[str, str]) -> bool:
    """Return whether files are so new that their machine may not exist yet."""
    try:
        record = record_in(files)
        made = datetime.fromisoformat(record.created_at)
    except (ClusterError, ValueError):
        return False
    limit_s = MACHINELESS_S if is_session(record.id) else START_TIMEOUT_S + CLOCKS_S
    return (datetime.now(UTC) - made).total_seconds() < limit_s


async def scheduler_of(cloud: Cloud, cluster_id: str) -> Machine | None:
    """Return the machine of a cluster's scheduler, preferably the newest running one."""
    frame = MachineFrame(cluster_id, await cloud.owner(), {})
    found = await cloud.machines(frame.marks(SCHEDULER))
    runs = [machine for machine in found if machine.state is MachineState.RUNNING]
    return max(runs or found, key=lambda machine: machine.made_at, default=None)


def inner_address(machine: Machine) -> str | None:
    """Return a scheduler's address within the cloud's network, or None if it has none yet."""
    return f"tls://{machine.address}:{PORT}" if machine.address else None


async def _programs(cloud: Cloud, cluster_id: str) -> dict[str, ProgramState]:
    frame = MachineFrame(cluster_id, await cloud.owner(), {})
    found: dict[str, ProgramState] = {}
    files = await cloud.files(frame.marks(SCHEDULER))
    if not files:
        return found
    machines = [
        machine
        for role in (SCHEDULER, MANAGING)
        for machine in await cloud.machines(frame.marks(role))
    ]
    for machine in sorted(machines, key=lambda its: its.made_at):
        program = machine.marks.get(MANAGER, SCHEDULER)
        found[program] = _state(machine, last=program == SCHEDULER)
        if program == SCHEDULER and await has_never_begun(cloud, machine):
            found[program] = ProgramState(
                "failed", f"machine {machine.id} runs, but its program has never started"
            )
    # The files exist before the machine, and after a machine that ended long ago.
    fresh = is_fresh(files[0].files)
    machineless = ProgramState("pending", "its machine has not been started yet")
    gone = ProgramState("failed", "the scheduler's machine no longer exists")
    found.setdefault(SCHEDULER, machineless if fresh else gone)
    return found


async def has_never_begun(cloud: Cloud, machine: Machine) -> bool:
    """Return whether a scheduler's machine is old, but its program has shown no sign of life."""
    there = machine.state in (MachineState.PENDING, MachineState.RUNNING)
    if not there or not 0 < machine.made_at < time.time() - MACHINELESS_S:
        return False
    host = machine.public_address or machine.address
    if host and await listens(host, RELAY_PORT, DIAL_TIMEOUT_S):
        return False
    text, _ = await cloud.output(machine, "")
    return not text.strip()


def _state(machine: Machine, *, last: bool) -> ProgramState:
    if machine.state in (MachineState.PENDING, MachineState.RUNNING):
        return ProgramState(machine.state.value, machine.reason)
    if machine.exit_code == 0 and not machine.from_outside:
        return ProgramState("completed", machine.reason)
    noun = "scheduler" if last else "manager"
    return ProgramState("failed", machine.reason or f"the {noun}'s machine has ended")


async def _logs(
    cloud: Cloud, cluster_id: str, since: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    frame = MachineFrame(cluster_id, await cloud.owner(), {})
    found: dict[str, tuple[str, str]] = {}
    for machine in await cloud.machines(frame.marks()):
        name = _log_name(machine)
        text, mark = await cloud.output(machine, since.get(name, ""))
        if text:
            found[name] = text, mark
    return found


def _log_name(machine: Machine) -> str:
    role = machine.marks.get(ROLE)
    if role == SCHEDULER:
        return SCHEDULER
    if role == MANAGING:
        return f"manager-{machine.marks.get(MANAGER)}"
    return machine.units[0] if machine.units else machine.id


class SchedulerTunnel:
    """Tunnel to one cluster's scheduler. ``open`` looks up its machine."""

    def __init__(self, connect: Callable[[], Cloud], cluster_id: str) -> None:
        self._connect, self._cluster_id = connect, cluster_id
        self._tunnel: Tunnel | None = None

    async def open(self) -> int:
        cloud: Any = self._connect()
        try:
            machine = await scheduler_of(cloud, self._cluster_id)
        finally:
            await cloud.close()
        host = None if machine is None else machine.public_address or machine.address
        if host is None:
            raise ProviderError(
                f"the scheduler of cluster {self._cluster_id} has no address yet", transient=True
            )
        subject = f"the scheduler of cluster {self._cluster_id}"
        self._tunnel = Tunnel(TcpDial(host, RELAY_PORT), subject)
        return await self._tunnel.open()

    async def close(self) -> None:
        if self._tunnel is not None:
            await self._tunnel.close()


# Asking -------------------------------------------------------------------------------------------

Result = TypeVar("Result")


def ask(
    connect: Callable[[], Cloud],
    question: Callable[[Cloud], Awaitable[Result]],
    timeout_s: float,
) -> Result:
    """Run ``question`` with a temporary connection.
    May be called inside an event loop. Blocks for at most ``timeout_s`` seconds. Raises
    ProviderError if the cloud refuses or does not answer in time.
    """

    async def asked() -> Result:
        cloud = connect()
        try:
            return await asyncio.wait_for(question(cloud), timeout_s)
        except TimeoutError as error:
            raise ProviderError(
                f"the cloud has not answered within {timeout_s:g} s", transient=True
            ) from error
        finally:
            await cloud.close()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(asked())
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, asked()).result()
