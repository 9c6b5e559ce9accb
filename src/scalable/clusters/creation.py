"""Creation of detached clusters, which outlive this process, and requests for their managers."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scalable import settings
from scalable.clusters import services
from scalable.clusters.ending import clear_away
from scalable.clusters.record import cluster_record
from scalable.clusters.remote import fetch_copies
from scalable.clusters.services import SCHEDULER
from scalable.clusters.specs import encoded, secrets_of
from scalable.errors import (
    ClusterError,
    ManifestError,
    NameTakenError,
    PlanError,
    ProviderError,
    ScalableError,
)
from scalable.manifest import Manifest, ResolvedManifest
from scalable.model import ClusterRecord, DeploymentSpec, ManagerSpec, Plan, names
from scalable.protocol import code as modules
from scalable.protocol.addresses import listen_address, scheduler_url
from scalable.protocol.credentials import new_credentials
from scalable.providers.registry import get_provider, provider_class, provider_traits
from scalable.records import ClusterDirectory, opened
from scalable.records.directory import unwritable
from scalable.records.packing import BEGUN, PLACE
from scalable.units import seconds_of

logger = logging.getLogger("scalable.clusters")

#: Seconds without work after which a detached cluster stops, unless the manifest or user sets it.
IDLE_TIMEOUT_S = 1800.0
MANAGER_GRACE_S = 1800.0


@dataclass(frozen=True)
class DetachOptions:
    """Options of a detached cluster that are not in its manifest. None means the target's value."""

    #: None for ``project-target``.
    name: str | None = None
    #: Seconds, or a duration such as "90s".
    idle_timeout_s: str | float | None = None
    time_to_live_s: str | float | None = None
    #: Whether managers are started, not only the scheduler.
    workers: bool = True
    #: Whether workers are processes even if the target has threads.
    processes: bool = False
    #: Address at which the dashboard listens.
    dashboard_address: str | None = None
    #: Amount of money that the cluster may spend.
    budget: float | None = None


@dataclass(frozen=True)
class ManagerRequest:
    """Request for a manager, the program that starts and stops workers on one target."""

    spec: DeploymentSpec
    manifest_yaml: str
    #: Managers with lower numbers get workers first.
    priority: int = 0
    #: Upper limits of the manager's workers, by tag.
    limits: Mapping[str, int] = field(default_factory=dict)
    #: Scheduler URL for the workers. None for the manager's own scheduler URL.
    scheduler_address: str | None = None


@dataclass(frozen=True)
class Creation:
    """Request for a detached cluster."""

    #: Deployment spec of the scheduler's target.
    spec: DeploymentSpec
    managers: Mapping[str, ManagerRequest]
    #: The plan, with the initial worker counts.
    plan: Plan
    #: The resolved manifest, for people.
    manifest_yaml: str
    options: DetachOptions = field(default_factory=DetachOptions)
    #: Entries of ``sys.path`` for workers.
    sys_path: tuple[str, ...] = ()


def lifetimes(spec: DeploymentSpec, options: DetachOptions) -> tuple[float, float | None]:
    """Return the idle timeout and time to live of a detached cluster, in seconds."""
    idle = seconds_of("idle_timeout_s", options.idle_timeout_s)
    live = seconds_of("time_to_live_s", options.time_to_live_s)
    return idle or spec.idle_timeout_s or IDLE_TIMEOUT_S, live or spec.time_to_live_s


def create(creation: Creation) -> ClusterDirectory:
    """Record a cluster, start its scheduler and its managers, and return at once.
    Raise ClusterError if the name is taken or files cannot be written. Raise ProviderError if a
    program cannot start. The cluster is then removed if it has no scheduler, or is remote and has
    no managers. Otherwise, ``scalable up`` starts the managers.
    """
    record = _record(creation)
    names.CLUSTER.require(record.name)
    for request in creation.managers.values():
        secrets_of(request.spec)  # an error changes nothing
    _refuse_bad_address(record.dashboard_address)
    directory = ClusterDirectory.create(
        record,
        manifest_yaml=creation.manifest_yaml,
        spec=encoded(creation.spec),
        plan=creation.plan.to_dict(),
    )
    logger.debug("cluster %s is recorded as %s: %s", record.name, record.id, dict(record.wanted))
    try:
        directory.write_pem(*new_credentials())
        directory = opened(directory.path)
        _start(directory, creation)
    except NameTakenError:
        fetch_copies()  # it was created on another machine: from now on it is recorded here
        raise
    except OSError as error:
        _clear_away(directory)  # it is unusable while nothing can be written
        raise unwritable(directory.path, error) from error
    return directory


def _start(directory: ClusterDirectory, creation: Creation) -> None:
    try:
        services.start_scheduler(directory, creation.spec)
    except ScalableError as error:
        # If its backend does not answer, the scheduler may have been started.
        if not getattr(error, "transient", False):
            begun = any((directory.path / name).exists() for name in (BEGUN, PLACE))
            if directory.record().remote and not begun:
                directory.remove()  # nothing was created there
            else:
                _clear_away(directory)
        raise
    try:
        if creation.options.workers:
            _start_managers(directory, creation.managers)
    except ScalableError as error:
        # A remote scheduler without a manager costs money, and a missing permission would be
        # missing again.
        if directory.record().remote and not getattr(error, "transient", False):
            _clear_away(directory)
        raise
    finally:
        directory.set_stage("made")


def _clear_away(directory: ClusterDirectory) -> None:
    """Remove a cluster that failed to start, but keep its record if its backend does not answer."""
    try:
        clear_away(directory)
    except ProviderError as error:
        logger.warning("could not remove what was started of cluster %s: %s", directory.id, error)


def _refuse_bad_address(address: str | None) -> None:
    """Raise ClusterError if the dashboard cannot listen at an address."""
    if address is None:
        return
    try:
        listen_address(address)
    except ValueError as error:
        raise ClusterError(
            f"the dashboard cannot be served: {error}",
            hint="give a port, as in :8787, and forward it with ssh -L to reach it from elsewhere",
        ) from error


def _described(managers: Mapping[str, ManagerRequest]) -> dict[str, dict[str, Any]]:
    """Return managers as they appear in the cluster's record."""
    return {
        manager: {
            "target": request.spec.target_name,
            "provider": request.spec.provider_name,
            "priority": request.priority,
            "limits": dict(request.limits),
            "scheduler_address": request.scheduler_address,
        }
        for manager, request in managers.items()
    }


def add_managers(directory: ClusterDirectory, managers: Mapping[str, ManagerRequest]) -> None:
    """Add managers to a cluster that was started without any."""
    directory.write_record(replace(directory.record(), managers=_described(managers)))
    _start_managers(directory, managers)


def _start_managers(directory: ClusterDirectory, managers: Mapping[str, ManagerRequest]) -> None:
    for manager, request in managers.items():
        directory.write_request(
            manager, request.manifest_yaml, encoded(request.spec), secrets_of(request.spec)
        )
        services.start_manager(directory, manager, request.spec)


def _record(creation: Creation) -> ClusterRecord:
    spec, options = creation.spec, creation.options
    idle_timeout_s, time_to_live_s = lifetimes(spec, options)
    traits = provider_traits(spec.provider_name)
    option = traits.services_option
    chosen = option is not None and spec.options.get(option[0]) == option[1]
    place = get_provider(spec.provider_name).place_of(spec) if traits.remote else {}
    record = cluster_record(spec, creation.plan)
    return replace(
        record,
        name=options.name or record.name,
        managers=_described(creation.managers) if options.workers else {},
        wanted=record.wanted if options.workers else {},
        idle_timeout_s=idle_timeout_s,
        time_to_live_s=time_to_live_s,
        manager_grace_s=spec.manager_grace_s or MANAGER_GRACE_S,
        spill_after_s=spec.spill_after_s,
        manager_policy=spec.manager_policy,
        workflow_dir=spec.workflow_dir,
        working_dir=str(Path.cwd()),
        runs_dir=str(settings.runs_dir().absolute()),
        log_dir=spec.options.get("logs"),
        sys_path=creation.sys_path,
        services=spec.provider_name if chosen or traits.remote else services.PROCESS,
        dashboard_address=options.dashboard_address or spec.options.get("dashboard_address"),
        remote=traits.remote,
        place=place,
    )


# Managers -----------------------------------------------------------------------------------------


def detached_manifest(resolved: ResolvedManifest, options: DetachOptions) -> ResolvedManifest:
    """Apply ``--processes`` and ``--budget``. Raise PlanError if ``--processes`` does not apply."""
    resolved = resolved.with_budget(options.budget)
    if not options.processes:
        return resolved
    if "processes" not in resolved.spec.options:
        raise PlanError(
            f"--processes does not apply to target {resolved.spec.target_name!r}: provider "
            f"{resolved.spec.provider_name!r} has no such option"
        )
    return resolved.with_options({"processes": True})


def manager_requests(manifest: Manifest, resolved: ResolvedManifest) -> dict[str, ManagerRequest]:
    """Map the managers of a cluster to their requests.
    Without managers in the manifest, there is one on the scheduler's target. Raise ManifestError if
    a target cannot be detached, or the scheduler's address is invalid.
    """
    home = resolved.spec.target_name
    requests: dict[str, ManagerRequest] = {}
    for manager in resolved.spec.managers or (ManagerSpec(home),):
        its = resolved if manager.target == home else manifest.resolve(manager.target)
        require_pools(its.spec)
        refuse_threads(its.spec)
        requests[_unused(manager.target, requests)] = ManagerRequest(
            its.spec,
            its.to_yaml(),
            manager.priority,
            manager.limits,
            checked_address(manager.scheduler_address),
        )
    return requests


def checked_address(written: str | None) -> str | None:
    """Return the scheduler URL for workers, or None if unset. Raise ManifestError if invalid."""
    if written is None:
        return None
    try:
        return scheduler_url(written)
    except ValueError as error:
        raise ManifestError(
            f"scheduler_address: {error}",
            hint="write the host and the port at which workers of this manager reach the scheduler",
        ) from error


def require_pools(spec: DeploymentSpec) -> None:
    """Raise NotImplementedError if the target's provider has no detached clusters."""
    if not hasattr(provider_class(spec.provider_name), "pools"):
        raise NotImplementedError(
            f"target {spec.target_name!r}: provider {spec.provider_name!r} cannot start detached "
            "clusters in this version; a session without detach=True stops with its process"
        )


def refuse_threads(spec: DeploymentSpec) -> None:
    """Raise ManifestError if workers are threads, since they would stop with this process."""
    if spec.options.get("processes") is False:
        raise ManifestError(
            f"target {spec.target_name!r} runs workers as threads, which cannot be detached",
            hint=f"set processes: true on target {spec.target_name!r}, or give --processes",
        )


def search_path(spec: DeploymentSpec) -> tuple[str, ...]:
    """Return ``sys.path`` and the manifest's directory, where workers find workflow modules."""
    entries = list(modules.search_path())
    if spec.workflow_dir is not None and spec.workflow_dir not in entries:
        entries.insert(0, spec.workflow_dir)
    return tuple(entries)


def _unused(target: str, taken: Mapping[str, object]) -> str:
    """Return an unused manager id: the target's name, with a number if necessary."""
    names = (target if n == 1 else f"{target}-{n}" for n in itertools.count(1))
    return next(name for name in names if name not in taken and name != SCHEDULER)
