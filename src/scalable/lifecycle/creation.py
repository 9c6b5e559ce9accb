"""Starts a cluster apart from the process that asks for it. Nothing here imports the engine."""

from __future__ import annotations

import getpass
import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalable import settings
from scalable.errors import ClusterError
from scalable.lifecycle import services
from scalable.lifecycle.stored_specs import encoded, stored_spec
from scalable.liveness import identify_process, is_alive
from scalable.planning import adaptive_bounds, expectations, written_total
from scalable.providers.registry import provider_traits
from scalable.records import ClusterDirectory, all_directories, find, status_of
from scalable.spec import ClusterRecord, ClusterStatus, DeploymentSpec, Plan

logger = logging.getLogger("scalable.lifecycle")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
#: A detached cluster without work ends after so long where nothing else is said.
IDLE_TIMEOUT_S = 1800.0
MANAGER_GRACE_S = 1800.0
READY_POLL_S = 0.05
#: Longer than a job for it may reasonably wait in a queue.
MANAGER_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class DetachOptions:
    """What is asked of a detached cluster beside its manifest.

    Attributes
    ----------
    name
        By default made of the project and the target.
    idle_timeout_s, time_to_live_s
        Seconds; None for what the target says.
    workers
        Whether managers are started; without, only the scheduler is.
    processes
        Whether a local target runs workers as processes although it does not say so.
    dashboard_address
        Where the live page listens; None for what the target says.
    """

    name: str | None = None
    idle_timeout_s: float | None = None
    time_to_live_s: float | None = None
    workers: bool = True
    processes: bool = False
    dashboard_address: str | None = None


@dataclass(frozen=True)
class ManagerRequest:
    """One of the managers of a cluster that is to be made.

    Attributes
    ----------
    spec
        The request for the target on which it provisions.
    manifest_yaml
        The manifest as it is resolved for that target.
    priority
        Lower numbers are filled first.
    limits
        Tag -> most workers of it.
    """

    spec: DeploymentSpec
    manifest_yaml: str
    priority: int = 0
    limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Creation:
    """A cluster that is to be made.

    Attributes
    ----------
    spec
        The request for the target where its scheduler lives.
    managers
        Id -> manager.
    plan
        What it will take.
    manifest_yaml
        The resolved manifest, for scheduler and managers to read again.
    options
        What is asked beside the manifest.
    sys_path
        Where workers look for the workflow's modules.
    """

    spec: DeploymentSpec
    managers: Mapping[str, ManagerRequest]
    plan: Plan
    manifest_yaml: str
    options: DetachOptions = field(default_factory=DetachOptions)
    sys_path: tuple[str, ...] = ()


def default_name(spec: DeploymentSpec) -> str:
    """Name of a cluster that was given none."""
    slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{spec.project_name}-{spec.target_name}")
    return slug.strip("-.") or "cluster"


def lifetimes(spec: DeploymentSpec, options: DetachOptions) -> tuple[float, float | None]:
    """Idle timeout and time to live of a detached cluster, in seconds."""
    idle = options.idle_timeout_s or spec.idle_timeout_s or IDLE_TIMEOUT_S
    return idle, options.time_to_live_s or spec.time_to_live_s


def create(creation: Creation) -> ClusterDirectory:
    """Record a cluster, start its scheduler and its managers, and return at once.

    Raises
    ------
    ClusterError
        When there is a cluster of that name already.
    ProviderError
        When the place refuses; what was made remains visible as ``creating``, and ``down`` ends it.
    """
    record = _record(creation)
    if not _NAME.fullmatch(record.name):
        raise ClusterError(
            f"{record.name!r} cannot be the name of a cluster",
            hint="letters, digits, '_', '-' and '.', at most 63, the first a letter or digit",
        )
    _refuse_open_page(record.dashboard_address)
    directory = ClusterDirectory.create(
        record,
        manifest_yaml=creation.manifest_yaml,
        spec=encoded(creation.spec),
        plan=creation.plan.to_dict(),
    )
    services.start_scheduler(directory, creation.spec)
    if creation.options.workers:
        _start_managers(directory, creation.managers)
    directory.set_stage("made")
    return directory


def _refuse_open_page(address: str | None) -> None:
    """The live page of a detached cluster listens on loopback alone."""
    host = (address or "").rpartition(":")[0]
    if host not in ("", "localhost", "127.0.0.1"):
        raise ClusterError(
            f"the live page cannot listen on {host}: it is for this machine alone",
            hint="give a port, as in :8787; from elsewhere reach it with ssh -L",
        )


def embedded_record(spec: DeploymentSpec) -> ClusterDirectory | None:
    """Record a cluster that lives in this process, so that it is listed; None where that fails.

    What cannot be listed can still run.
    """
    identifier = str(uuid.uuid4())
    record = ClusterRecord(
        id=identifier,
        name=f"{default_name(spec)}-{identifier[:6]}",
        provider=spec.provider_name,
        target=spec.target_name,
        project=spec.project_name,
        owner=getpass.getuser(),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        stage="made",
        embedded=True,
        creator=identify_process(),
        tags=spec.tags,
    )
    try:
        return ClusterDirectory.create(record)
    except (OSError, ClusterError) as error:
        logger.warning("this cluster will not be listed: %s", error)
        return None


def _described(managers: Mapping[str, ManagerRequest]) -> dict[str, dict[str, Any]]:
    """Managers as their cluster's record has them."""
    return {
        manager: {
            "target": request.spec.target_name,
            "provider": request.spec.provider_name,
            "priority": request.priority,
            "limits": dict(request.limits),
        }
        for manager, request in managers.items()
    }


def add_managers(directory: ClusterDirectory, managers: Mapping[str, ManagerRequest]) -> None:
    """Give managers to a cluster that was started without any."""
    directory.write_record(replace(directory.record(), managers=_described(managers)))
    _start_managers(directory, managers)


def _start_managers(directory: ClusterDirectory, managers: Mapping[str, ManagerRequest]) -> None:
    for manager, request in managers.items():
        directory.write_request(manager, request.manifest_yaml, encoded(request.spec))
        services.start_manager(directory, manager, request.spec)


def _record(creation: Creation) -> ClusterRecord:
    spec, options = creation.spec, creation.options
    idle_timeout_s, time_to_live_s = lifetimes(spec, options)
    labels: dict[str, list[str]] = {}
    for tag, component in spec.components.items():
        for label in component.tags:
            labels.setdefault(label, []).append(tag)
    most = written_total(spec)
    bounds = adaptive_bounds(spec)
    option = provider_traits(spec.provider_name).services_option
    by_provider = option is not None and spec.options.get(option[0]) == option[1]
    return ClusterRecord(
        id=str(uuid.uuid4()),
        name=options.name or default_name(spec),
        provider=spec.provider_name,
        target=spec.target_name,
        project=spec.project_name,
        owner=getpass.getuser(),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        stage="creating",
        embedded=False,
        creator=identify_process(),
        lock=creation.plan.manifest_lock,
        tags=spec.tags,
        tasks={task.name: task.component for task in spec.tasks.values()},
        labels=labels,
        managers=_described(creation.managers) if options.workers else {},
        wanted=dict(creation.plan.scale_plan.workers_by_tag) if options.workers else {},
        max_workers=None if most is None else most[1],
        adaptive={t: (own.minimum, own.maximum) for t, own in bounds.pools.items()},
        adaptive_maximum=bounds.maximum,
        expectations=expectations(spec, creation.plan),
        objective=creation.plan.objective,
        policy=creation.plan.policy,
        idle_timeout_s=idle_timeout_s,
        time_to_live_s=time_to_live_s,
        manager_grace_s=spec.manager_grace_s or MANAGER_GRACE_S,
        spill_after_s=spec.spill_after_s,
        workflow_dir=spec.workflow_dir,
        working_dir=str(Path.cwd()),
        runs_dir=str(settings.runs_dir().absolute()),
        log_dir=spec.options.get("logs"),
        sys_path=creation.sys_path,
        services=spec.provider_name if by_provider else "process",
        dashboard_address=options.dashboard_address or spec.options.get("dashboard_address"),
    )


def wait_until_ready(
    directory: ClusterDirectory,
    on_status: Callable[[ClusterStatus], None] = lambda _: None,
    timeout_s: float = 600.0,
    *,
    workers: bool = True,
) -> ClusterStatus:
    """Wait until the first worker of each wanted pool is there.

    Parameters
    ----------
    directory
        The cluster.
    on_status
        Called with every look at it.
    timeout_s
        How long to wait.
    workers
        Whether workers are awaited; otherwise the scheduler alone.

    Raises
    ------
    ClusterError
        When its scheduler ended, no pool can start, or it took too long. The cluster stays.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        status = status_of(directory, time.time())
        on_status(status)
        _refuse_dead(directory, status)
        listening = directory.scheduler() is not None and directory.status() is not None
        if listening and (not workers or _has_first_workers(status)):
            return status
        if time.monotonic() > deadline:
            raise ClusterError(
                f"cluster {status.name!r} was not ready after {timeout_s:g} s: {status.reason}",
                hint=f"it goes on; see `scalable status {status.name}` and "
                f"`scalable logs {status.name}`",
            )
        time.sleep(READY_POLL_S)


def _has_first_workers(status: ClusterStatus) -> bool:
    if status.state not in ("running", "degraded"):
        return False
    return all(pool["running"] for pool in status.pools.values() if pool["wanted"])


def _refuse_dead(directory: ClusterDirectory, status: ClusterStatus) -> None:
    name = status.name
    for service, log in services.ended_early(directory):
        raise ClusterError(
            f"{service} of cluster {name!r} ended: {log or 'it left no word'}",
            hint=f"`scalable logs {name} --worker {service}` has all of it; "
            f"`scalable down {name}` clears it away",
        )
    if status.state in ("failed", "stale", "deleting", "unreachable"):
        raise ClusterError(f"cluster {name!r} is {status.state}: {status.reason or 'no reason'}")
    for tag, pool in status.pools.items():
        if pool.get("reason") and not pool["running"]:
            raise ClusterError(
                f"pool {tag!r} of cluster {name!r} has no worker: {pool['reason']}",
                hint=f"`scalable scale {name} {tag}=N` tries again",
            )


def running_cluster(name: str) -> ClusterDirectory | None:
    """A cluster of that name that can be used; one that is no more is cleared away first.

    Raises
    ------
    ClusterError
        When there is one that does not answer, is being deleted, or lives in another process.
    """
    from scalable.lifecycle.ending import end

    directory = find_exactly(name)
    if directory is None:
        return None
    record = directory.record()
    if record.stage == "creating" and is_alive(record.creator) is False:
        # Whoever began to make it is gone; what it made may be in use.
        if not services.is_running(directory, services.SCHEDULER):
            end(directory.id)
            return None
        directory.set_stage("made")
    status = status_of(directory, time.time())
    if status.state in ("failed", "stale"):
        end(directory.id)
        return None
    if status.embedded or status.state in ("unreachable", "deleting"):
        raise ClusterError(
            f"there is a cluster {name!r}, which is {status.state}"
            + (" and lives in a process of its own" if status.embedded else ""),
            hint="choose another name",
        )
    return directory


def wait_for_managers(directory: ClusterDirectory, names: Sequence[str]) -> None:
    """Wait until managers have attached.

    Raises
    ------
    ClusterError
        When one has ended instead, or it took too long.
    """
    deadline = time.monotonic() + MANAGER_TIMEOUT_S
    while True:
        status = status_of(directory, time.time())
        _refuse_dead(directory, status)
        attached = {m["id"] for m in status.managers if m["state"] == "attached"}
        missing = [name for name in names if name not in attached]
        if not missing:
            return
        if time.monotonic() > deadline:
            raise ClusterError(
                f"manager {missing[0]!r} of cluster {status.name!r} has not attached after "
                f"{MANAGER_TIMEOUT_S:g} s",
                hint=f"see `scalable logs {status.name} --worker manager-{missing[0]}`",
            )
        time.sleep(READY_POLL_S)


def find_exactly(name: str) -> ClusterDirectory | None:
    """The cluster that bears this very name, or None."""
    directories, unread = all_directories()
    for directory in directories:
        if directory.record().name == name:
            return directory
    if unread:
        # It may be one of those, and running.
        raise ClusterError(f"no cluster that can be read is called {name!r}: {'; '.join(unread)}")
    return None


def resume(name: str) -> list[str]:
    """Start the managers of a cluster that are not there any more; they adopt their workers.

    Returns
    -------
    list of str
        Ids of those that were started; empty where all are there.

    Raises
    ------
    ClusterError
        When there is no such cluster, or its scheduler is gone.
    """
    directory = find(name)
    status = status_of(directory, time.time())
    if status.embedded:
        raise ClusterError(f"cluster {status.name!r} lives in a process of its own user's")
    if status.state in ("failed", "stale", "deleting", "unreachable"):
        raise ClusterError(
            f"cluster {status.name!r} is {status.state} and cannot be resumed: {status.reason}",
            hint=f"`scalable down {status.name}` clears it away; `scalable up` makes it anew",
        )
    started = []
    for manager in directory.record().managers:
        if not services.is_running(directory, manager):
            services.start_manager(directory, manager, stored_spec(directory, manager))
            started.append(manager)
    return started


def lost_elsewhere(directory: ClusterDirectory) -> list[str]:
    """Managers that nothing was heard of, and that only whoever attached them can bring back."""
    own = directory.record().managers
    said = (directory.status() or {}).get("managers", ())
    return [m["id"] for m in said if m["state"] == "lost" and m["id"] not in own]
