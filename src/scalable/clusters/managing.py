"""Managers of detached clusters: attaching, providing workers, leaving.

A manager is a separate program (``scalable.clusters.programs.manager``), or runs in the foreground.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import secrets
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed.core import rpc

from scalable import settings
from scalable.clusters.specs import stored_spec, worker_prices
from scalable.errors import ClusterError
from scalable.files import private_directory, write_private
from scalable.harmless import log_to_stderr
from scalable.liveness import identify_process, is_alive
from scalable.manager.pools import COMPONENTS, ManagerSite
from scalable.manager.reconciler import Reconciler
from scalable.model import DeploymentSpec, names
from scalable.protocol.addresses import is_loopback
from scalable.protocol.credentials import no_answer, security_of
from scalable.protocol.handlers import Handler, request
from scalable.protocol.pools import Attachment
from scalable.providers.registry import get_provider, provider_traits
from scalable.records import ClusterDirectory, find_access
from scalable.records.directory import MANAGER

logger = logging.getLogger("scalable.clusters")

ADDRESS_TIMEOUT_S = 120.0
#: Timeout in seconds. It is short, so that a scheduler's exit is noticed soon.
CONNECT_TIMEOUT_S = 10.0
ADDRESS_POLL_S = 0.02
ATTACH_TIMEOUT_S = 60.0
#: Seconds without an answer after which the scheduler counts as gone for good.
SCHEDULER_LOST_S = 20.0
LEAVE_POLL_S = 0.1
#: Seconds between attempts to attach while the scheduler still lists the earlier process.
TURN_POLL_S = 1.0
#: Exit code of a process that SIGTERM has stopped, as shells report it.
TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True)
class ManagerConfig:
    """Configuration of a manager."""

    manager: str
    spec: DeploymentSpec
    cluster_id: str
    cluster_name: str
    #: Address of the scheduler.
    address: str
    #: PEM strings by keyword of ``distributed.Security``.
    pem: Mapping[str, str]
    #: Private directory of the manager.
    directory: Path
    #: Directory for the output of the manager's workers.
    log_dir: Path | None
    sys_path: tuple[str, ...]
    #: Managers with lower numbers get workers first.
    priority: int = 0
    #: Upper limits of the manager's workers, by tag.
    limits: Mapping[str, int] = field(default_factory=dict)
    #: Address of the scheduler for the workers. None for ``address``.
    worker_address: str | None = None
    #: True if a successor takes over the workers after SIGTERM. It waits until this one has left.
    replaceable: bool = False
    #: Secret values by tag and variable.
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)


def config_of(directory: ClusterDirectory, manager: str) -> ManagerConfig:
    """Return the configuration of a recorded manager. Blocks until the scheduler has an address."""
    record = directory.record()
    described = record.managers.get(manager)
    if described is None:
        raise ClusterError(f"the record of cluster {record.name!r} names no manager {manager!r}")
    spec = stored_spec(directory, manager)
    known = wait_for_scheduler(directory)
    if not known.get("address"):
        raise ClusterError(f"the scheduler of cluster {record.name!r} has not written its address")
    home = directory.manager_directory(manager)
    log_dir = known.get("log_dir") or home / "logs"
    return ManagerConfig(
        manager=manager,
        spec=spec,
        cluster_id=directory.id,
        cluster_name=record.name,
        address=known["address"],
        pem=directory.pem(),
        directory=home,
        log_dir=Path(log_dir),
        sys_path=record.sys_path,
        priority=described["priority"],
        limits=described["limits"],
        worker_address=described["scheduler_address"] or _outer_address(directory, manager),
        secrets=json.loads(directory.secret_values(manager)),
    )


def _outer_address(directory: ClusterDirectory, manager: str) -> str | None:
    """Return a remote scheduler's address for workers outside its site, or None."""
    record = directory.record()
    if not record.remote or record.managers[manager]["provider"] == record.provider:
        return None
    address: str | None = (
        get_provider(record.provider).remote(record.place).outer_address(record.id)
    )
    return address


def wait_for_scheduler(directory: ClusterDirectory) -> Mapping[str, Any]:
    """Wait until a cluster's scheduler listens, and return the content of its address file."""
    deadline = time.monotonic() + ADDRESS_TIMEOUT_S
    while True:
        known = directory.scheduler()
        if known is not None:
            return known
        if not directory.path.exists():
            raise ClusterError("the cluster was deleted while it was starting")
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the scheduler of the cluster in {directory.path} did not listen within "
                f"{ADDRESS_TIMEOUT_S:g} s"
            )
        time.sleep(ADDRESS_POLL_S)


class ManagerProcess:
    """The manager program, from attaching to the cluster until leaving it."""

    def __init__(self, config: ManagerConfig) -> None:
        self.config = config
        self.nonce = secrets.token_hex(3)
        self._reconciler = Reconciler(f"{config.manager}-{self.nonce}")
        self._security = security_of(config.pem)
        self._leaving = 0

    async def run(self) -> int:
        """Run until the manager leaves, and return the exit code. May raise ClusterError."""
        config = self.config
        arguments = self._security.get_connection_args("client")
        async with rpc(
            config.address, timeout=CONNECT_TIMEOUT_S, connection_args=arguments
        ) as comm:
            await self._attach(comm)
            try:
                await self._begin(comm)
            except BaseException:
                # Otherwise the scheduler would rely on this manager until its lease expires.
                await _quietly(comm, config.manager, self.nonce, gone=True)
                raise
            return await self._stay(comm)

    async def _begin(self, comm: Any) -> None:
        config = self.config
        # Only after attaching: if two managers attach at once, the refused one leaves no files.
        private_directory(config.directory)
        note = {**identify_process(), "target": config.spec.target_name, "nonce": self.nonce}
        write_private(config.directory / MANAGER, json.dumps(note))
        logger.info("manager %r is attached to cluster %r", config.manager, config.cluster_name)
        for pool in get_provider(config.spec.provider_name).pools(config.spec, self._site()):
            self._reconciler.inventory.add_pool(pool)
        adopted = await self._reconciler.inventory.adopt()
        if adopted:
            logger.info("took over %d workers", len(adopted))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._leave)
        self._reconciler.start(comm, config.manager, self.nonce)
        self._reconciler.wake()

    def _site(self) -> ManagerSite:
        config = self.config
        return ManagerSite(
            name=config.cluster_name,
            cluster_id=config.cluster_id,
            manager=config.manager,
            incarnation=f"{config.manager}-{self.nonce}",
            scheduler=self._worker_address(),
            security=self._security,
            directory=config.directory,
            log_dir=config.log_dir,
            sys_path=config.sys_path,
            detached=True,
            secrets=config.secrets,
        )

    def _worker_address(self) -> str:
        config, provider = self.config, self.config.spec.provider_name
        address = config.worker_address or config.address
        if is_loopback(address) and not provider_traits(provider).on_this_machine:
            logger.warning(
                "workers of manager %r are given %s as the scheduler's address, which refers to "
                "their own machine; set scheduler_address: HOST:PORT in its entry in managers",
                config.manager,
                address,
            )
        return address

    async def _attach(self, comm: Any) -> None:
        config, spec = self.config, self.config.spec
        traits = provider_traits(spec.provider_name)
        attachment = Attachment(
            manager=config.manager,
            nonce=self.nonce,
            identity=identify_process(),
            target=spec.target_name,
            provider=spec.provider_name,
            starting=dataclasses.asdict(traits.starting),
            shares_files=traits.shares_files,
            priority=config.priority,
            limits=dict(config.limits),
            pools={tag: _shape(part) for tag, part in spec.components.items()},
            prices=worker_prices(spec),
        )

        async def attach(**more: Any) -> Any:
            attaching = request(comm, Handler.ATTACH, **attachment.to_message(), **more)
            return await asyncio.wait_for(attaching, ATTACH_TIMEOUT_S)

        try:
            answer = await attach()
            logger.debug("manager %s requested to attach: %s", config.manager, answer)
            holder = answer["holder"]
            if holder is not None and is_alive(holder["identity"]) is False:
                answer = await attach(instead_of=holder["nonce"])
            if config.replaceable and answer["holder"] is not None:
                logger.info("manager %r waits: %s", config.manager, answer["reason"])
            while config.replaceable and answer["holder"] is not None:
                await asyncio.sleep(TURN_POLL_S)
                answer = await attach()
        except (OSError, TimeoutError) as error:
            raise ClusterError(
                f"the scheduler of cluster {config.cluster_name!r} does not answer at "
                f"{config.address}: {no_answer(error)}"
            ) from error
        if not answer["accepted"]:
            raise ClusterError(
                f"cluster {config.cluster_name!r} does not accept manager {config.manager!r}: "
                f"{answer['reason']}",
                hint=_way_out(answer["holder"]),
            )

    def _leave(self) -> None:
        self._leaving += 1
        if self.config.replaceable:
            logger.info("manager %r leaves its workers to its next process", self.config.manager)
        elif self._leaving == 1:
            logger.info(
                "manager %r will exit when its workers have finished their tasks",
                self.config.manager,
            )
            self._reconciler.inventory.leave()
        else:
            logger.info("manager %r exits at once", self.config.manager)

    async def _stay(self, comm: Any) -> int:
        reconciler, told = self._reconciler, False
        while True:
            await asyncio.sleep(LEAVE_POLL_S)
            if self._leaving and self.config.replaceable:
                reconciler.abandon()
                return TERMINATED
            if self._leaving and not told:
                told = True
                await _quietly(comm, self.config.manager, self.nonce, gone=False)
            if reconciler.replaced:
                reconciler.abandon()
                raise ClusterError(f"another process is manager {self.config.manager!r} now")
            silent_s = reconciler.unreachable_s
            if silent_s > SCHEDULER_LOST_S:
                await reconciler.close()
                raise ClusterError(
                    f"the scheduler of cluster {self.config.cluster_name!r} has not answered for "
                    f"{silent_s:.0f} s: it is considered gone, so this manager stops its workers"
                )
            done = self._leaving and not reconciler.inventory.existing()
            if reconciler.end_wanted:
                logger.info("cluster %r is stopping", self.config.cluster_name)
            if done or reconciler.end_wanted or self._leaving > 1:
                await reconciler.close()
                await _quietly(comm, self.config.manager, self.nonce, gone=True)
                # They contain credentials and are not needed any more.
                shutil.rmtree(self.config.directory / COMPONENTS, ignore_errors=True)
                for file in self.config.directory.glob("*.json"):
                    file.unlink(missing_ok=True)
                return 0


async def _quietly(comm: Any, manager: str, nonce: str, *, gone: bool) -> None:
    """Report that a manager leaves. Only warn if the scheduler does not answer."""
    try:
        leave = request(comm, Handler.LEAVE, manager=manager, nonce=nonce, gone=gone)
        await asyncio.wait_for(leave, ATTACH_TIMEOUT_S)
    except (OSError, TimeoutError) as error:
        logger.warning("could not notify the scheduler that this manager leaves: %s", error)


def _shape(component: Any) -> dict[str, Any]:
    return {"cpus": component.cpus, "memory": component.memory, "gpus": component.gpus}


def _way_out(holder: Mapping[str, Any] | None) -> str | None:
    if holder is None:
        return None
    its = holder["identity"]
    return (
        f"that manager is process {its.get('pid')} on {its.get('host')} and reported "
        f"{holder['silent_s']:.0f} s ago; choose another --id, or try again when it has stopped"
    )


def run_manager(config: ManagerConfig) -> int:
    """Run a manager in this process until it leaves. Return the exit code."""
    return asyncio.run(ManagerProcess(config).run())


def attach_manager(
    cluster: str,
    manager: str,
    spec: DeploymentSpec,
    *,
    limits: Mapping[str, int],
    priority: int,
    sys_path: tuple[str, ...],
    worker_address: str | None = None,
) -> int:
    """Run a manager for a running cluster in the foreground, and return the exit code.
    ``cluster`` is a name, or the path of an access file of a cluster on another machine.
    """
    names.MANAGER.require(manager)
    access = find_access(cluster)
    home = ClusterDirectory(ClusterDirectory.parent() / access.id)
    known = home.scheduler() if home.path.is_dir() else None
    if known is None:
        # The cluster is on another machine: keep the manager's files under the cluster's id.
        home = ClusterDirectory(settings.state_dir() / "guests" / access.id)
    directory = home.manager_directory(manager)
    log_to_stderr()
    config = ManagerConfig(
        manager=manager,
        spec=spec,
        cluster_id=access.id,
        cluster_name=access.name,
        address=access.address,
        pem=access.pem,
        directory=directory,
        log_dir=Path(known["log_dir"]) if known else directory / "logs",
        sys_path=sys_path,
        priority=priority,
        limits=limits,
        worker_address=worker_address,
    )
    return run_manager(config)
