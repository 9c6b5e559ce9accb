"""Creation and removal of a cluster's machines."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from scalable.client.tunnel import BackgroundTunnel, Tunnel
from scalable.errors import ProviderError
from scalable.model import DeploymentSpec, ProgramState
from scalable.protocol.streams import KEPT_S, RELAY_PORT, SocketCarrier
from scalable.providers.remote.cloud import (
    MANAGING,
    SCHEDULER,
    WORKERS,
    Cloud,
    Machine,
    MachineState,
    Refusal,
)
from scalable.providers.remote.machine_launcher import MachineLauncher
from scalable.providers.remote.machines import CONFIG, PORT, MachineFrame
from scalable.providers.remote.session_files import manager_files
from scalable.units import parse_duration
from scalable.worker.config import WorkerConfig

logger = logging.getLogger("scalable.providers.remote")

#: Seconds between two requests for the state of a machine that is starting or stopping.
POLL_S = 2.0
#: Seconds between two checks of the scheduler's machine while the cluster is used.
WATCH_S = 30.0
DIAL_TIMEOUT_S = 3.0
#: Seconds within which all machines of a cluster have to stop.
REMOVAL_TIMEOUT_S = 300.0
LOG_LINES = 10


async def worker_files(
    cloud: Cloud, frame: MachineFrame, manager: str, configs: Mapping[str, WorkerConfig]
) -> None:
    """Store the configurations of a manager's workers in the cloud, by tag."""
    await asyncio.gather(
        *(
            cloud.put_files(
                frame.files(WORKERS, manager, tag),
                frame.marks(WORKERS, manager, tag),
                {CONFIG: json.dumps(dataclasses.asdict(config))},
            )
            for tag, config in configs.items()
        )
    )


async def start_scheduler(cloud: Cloud, frame: MachineFrame, files: Mapping[str, str]) -> Machine:
    """Prepare the site, store the scheduler's files, and request its machine."""
    # The files come first: every later resource can be found and deleted through them.
    await cloud.put_files(frame.files(SCHEDULER), frame.marks(SCHEDULER), files)
    await cloud.prepare(frame.cluster_id, frame.marks())
    request = frame.scheduler_request()
    answer = (await cloud.run([request]))[request.name]
    if isinstance(answer, Refusal):
        raise ProviderError(f"no machine for the scheduler: {answer.reason}", transient=True)
    logger.debug("cluster %s: the scheduler's machine is %s", frame.cluster_id, answer.id)
    return answer


async def start_manager(
    cloud: Cloud,
    frame: MachineFrame,
    manager: str,
    files: Mapping[str, str],
    hint: str | None = None,
) -> Machine:
    """Store a manager's files, stop its earlier machines, and request a new one."""
    marks = frame.marks(MANAGING, manager)
    earlier = await cloud.machines(marks)
    await cloud.stop([m for m in earlier if m.state is not MachineState.ENDED])
    await cloud.put_files(frame.files(MANAGING, manager), marks, files)
    await cloud.prepare(frame.cluster_id, frame.marks())
    request = frame.manager_request(manager, secrets.token_hex(3))
    answer = (await cloud.run([request]))[request.name]
    if isinstance(answer, Refusal):
        message = f"no machine for manager {manager!r}: {answer.reason}"
        raise ProviderError(message, hint=hint, transient=True)
    logger.debug("cluster %s: the machine of %s is %s", frame.cluster_id, manager, answer.id)
    return answer


async def remove_all(
    cloud: Cloud, frame: MachineFrame, *, wait: bool = True, last: Sequence[str] = ()
) -> list[str]:
    """Stop all machines of a cluster, then delete its other resources.
    Machines with an id in ``last`` are stopped at the end. Raises ProviderError if machines are
    left after 300 s.
    """
    found = [m for m in await cloud.machines(frame.marks()) if m.state is not MachineState.ENDED]
    await cloud.stop([machine for machine in found if machine.id not in last])
    deadline = time.monotonic() + REMOVAL_TIMEOUT_S
    left = found
    while wait and left:
        if time.monotonic() > deadline:
            shown = ", ".join(sorted(machine.id for machine in left))
            raise ProviderError(
                f"machines {shown} of cluster {frame.cluster_id} were requested to stop but "
                f"still exist after {REMOVAL_TIMEOUT_S:g} s"
            )
        left = [m for m in await cloud.machines(frame.marks()) if m.state is not MachineState.ENDED]
        starting = [m for m in left if m.state is not MachineState.ENDING]
        if starting:  # requested in the meantime
            await cloud.stop(starting)
        if left:
            await asyncio.sleep(POLL_S)
    removed = [f"machine {machine.id} ({_noun(machine)})" for machine in found]
    try:
        removed += await cloud.clean(frame.marks())
    except ProviderError as error:
        if wait:
            raise
        logger.info("resources of machines that are still stopping are not removed yet: %s", error)
    # The scheduler's files go last: through them the leftovers of an interrupted removal are found.
    for role in (WORKERS, MANAGING):
        removed += await cloud.delete_files(frame.marks(role))
    removed += await cloud.delete_files(frame.marks())
    await cloud.stop([machine for machine in found if machine.id in last])
    return removed


def _noun(machine: Machine) -> str:
    return ", ".join(machine.units) or machine.marks.get("scalable-role", "unknown")


class MachineSite:
    """The machines of one session's cluster (a :class:`.SessionSite`)."""

    starts_again = False

    def __init__(
        self, spec: DeploymentSpec, cloud: Cloud, cluster_id: str, place: Mapping[str, str]
    ) -> None:
        self.manager = spec.target_name
        # `place` is the site, as the cloud's own machines name it.
        self._spec, self._cloud, self._place = spec, cloud, place
        self._files: Mapping[str, str] = {}
        self.frame = MachineFrame(cluster_id, "", spec.options)
        for component in (None, *spec.components.values()):
            self.frame.image(component)
        self.launcher = MachineLauncher(cloud, self.frame, self.manager, spec.components)
        self._host = ""
        self._address = ""
        self._watching: asyncio.Task[None] | None = None
        self._on_end: Callable[[str], object] = lambda _reason: None

    @property
    def name(self) -> str:
        return f"{self._spec.project_name}-{self._spec.target_name}-{self.frame.cluster_id[:6]}"

    async def begin(self, on_end: Callable[[str], object]) -> None:
        self._on_end = on_end
        self.frame = dataclasses.replace(self.frame, owner=await self._cloud.owner())
        self.launcher.frame = self.frame

    async def make(self, files: Mapping[str, str], start_s: float) -> None:  # noqa: ARG002 - no cloud ends a machine by itself; the scheduler does
        self._files = files
        await start_scheduler(self._cloud, self.frame, files)

    async def scheduler(self, start_s: float) -> str:
        """Wait until the relay to the scheduler listens, and return the scheduler's address."""
        deadline = time.monotonic() + start_s
        reason: str | None = None
        while True:
            machine = await self._scheduler_machine()
            if machine is not None:
                reason = machine.reason or reason
                if machine.state is MachineState.ENDED:
                    raise ProviderError(
                        f"the scheduler's machine has stopped: {machine.reason}"
                        f"{await self._last_output(machine)}"
                    )
                host = machine.public_address or machine.address
                if host and machine.address and machine.state is MachineState.RUNNING:
                    reason = f"its relay does not answer at {host}:{RELAY_PORT}"
                    if await listens(host, RELAY_PORT, DIAL_TIMEOUT_S):
                        self._host = host
                        self._address = f"tls://{machine.address}:{PORT}"
                        self.launcher.frame = dataclasses.replace(
                            self.frame, scheduler=self._address
                        )
                        self._watch()
                        return self._address
            if time.monotonic() > deadline:
                raise ProviderError(
                    f"the scheduler's machine is not running after {start_s:g} s: {reason}",
                    hint="raise start_timeout in the target if it only needs more time; if the "
                    "relay does not answer, check the network's firewall rules for the port",
                )
            await asyncio.sleep(POLL_S)

    async def _scheduler_machine(self) -> Machine | None:
        found = await self._cloud.machines(self.frame.marks(SCHEDULER))
        return found[0] if found else None

    async def start_manager(self) -> None:
        # A machine's account is not the user's, so the site contains the owner.
        files = manager_files(self._files, self.manager, {**self._place, "owner": self.frame.owner})
        await start_manager(self._cloud, self.frame, self.manager, files)

    async def manager_state(self) -> ProgramState:
        found = await self._cloud.machines(self.frame.marks(MANAGING, self.manager))
        machine = max(found, key=lambda its: its.made_at, default=None)
        if machine is None:
            return ProgramState("pending", "its machine has not been started yet")
        if machine.state in (MachineState.PENDING, MachineState.RUNNING):
            return ProgramState(machine.state.value, machine.reason)
        return ProgramState("failed", f"{machine.reason}{await self._last_output(machine)}")

    async def _last_output(self, machine: Machine) -> str:
        try:
            text, _ = await self._cloud.output(machine, "")
        except ProviderError as error:
            logger.debug("the output of %s cannot be read: %s", machine.id, error)
            return ""
        lines = text.strip().splitlines()[-LOG_LINES:]
        return "; its last output:\n  " + "\n  ".join(lines) if lines else ""

    def _watch(self) -> None:
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._watch_scheduler())

    async def _watch_scheduler(self) -> None:
        """Call ``on_end`` when the scheduler's machine has stopped."""
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                machine = await self._scheduler_machine()
            except ProviderError as error:
                logger.debug("could not read the state of the scheduler's machine: %s", error)
                continue
            if machine is None or machine.state is MachineState.ENDED:
                reason = "it no longer exists" if machine is None else machine.reason
                self._on_end(f"the scheduler's machine has stopped: {reason}")
                return

    def tunnel(self) -> BackgroundTunnel:
        kept_s = parse_duration(self._spec.options["reconnect_within"])
        return tunnel_to(self._host, RELAY_PORT, kept_s=kept_s)

    async def add_workers(self, configs: Mapping[str, WorkerConfig]) -> None:
        await worker_files(self._cloud, self.frame, self.manager, configs)

    async def limit_life(self, seconds: float | None) -> None:
        """Do nothing, since the scheduler stops itself, and all machines with it."""

    def all_ends(self) -> None:
        self.launcher.all_ends()

    async def remove(self) -> None:
        await remove_all(self._cloud, self.frame)

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self.launcher.close()
        await self._cloud.close()


# Dialling -----------------------------------------------------------------------------------------


class TcpDial:
    """Opens carriers (connections of a tunnel) to a relay's port. They are encrypted end to end."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    async def __call__(self) -> SocketCarrier:
        """Open a carrier, or raise OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, address)
        except BaseException:
            connection.close()
            raise
        return SocketCarrier(connection)


async def listens(host: str, port: int, timeout_s: float) -> bool:
    """Return whether a port accepts a connection within ``timeout_s`` seconds."""
    try:
        async with asyncio.timeout(timeout_s):
            carrier = await TcpDial(host, port)()
    except (OSError, TimeoutError):
        return False
    await carrier.close()
    return True


def tunnel_to(host: str, port: int, *, kept_s: float = KEPT_S) -> BackgroundTunnel:
    """Return a tunnel to a relay. It closes connections after ``kept_s`` s without the relay."""
    return BackgroundTunnel(lambda: Tunnel(TcpDial(host, port), kept_s=kept_s))
