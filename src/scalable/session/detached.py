"""Detached clusters, which outlive the process that starts them, and their worker managers."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from scalable.clusters.creation import (
    Creation,
    DetachOptions,
    ManagerRequest,
    checked_address,
    create,
    detached_manifest,
    manager_requests,
    refuse_threads,
    search_path,
)
from scalable.clusters.record import default_name
from scalable.clusters.resuming import running_cluster
from scalable.clusters.services import wait_until_ready
from scalable.clusters.specs import secrets_of
from scalable.errors import ManifestError, NameTakenError, PlanError
from scalable.session.request import Request

if TYPE_CHECKING:
    from scalable.model import Plan
    from scalable.records import ClusterDirectory

logger = logging.getLogger("scalable.session")

MANIFEST_CHANGED = (
    "the manifest has changed since the cluster started; the running cluster keeps its settings"
)


def create_cluster(request: Request, plan: Plan, options: DetachOptions) -> ClusterDirectory:
    """Start a detached cluster, and return before it is ready.
    Raises ManifestError if a target cannot be detached, and NameTakenError if the name is in use.
    """
    request.require_valid()
    request.require_clusters()
    resolved = detached_manifest(request.resolved, options)
    return create(
        Creation(
            resolved.spec,
            manager_requests(request.manifest, resolved),
            plan,
            resolved.to_yaml(),
            options,
            sys_path=search_path(request.spec),
        )
    )


def requested_managers(request: Request, options: DetachOptions) -> Mapping[str, ManagerRequest]:
    """Return the worker managers of a detached cluster by id. Raises ManifestError."""
    request.require_valid()
    request.require_clusters()
    requests = manager_requests(request.manifest, detached_manifest(request.resolved, options))
    for manager in requests.values():
        secrets_of(manager.spec)  # a missing one is an error before any question
    return requests


def use_or_create(
    request: Request, plan: Plan, name: str | None, timeout_s: float
) -> tuple[ClusterDirectory, bool]:
    """Return a ready cluster with the given name, and whether this function created it."""
    name = name or default_name(request.spec)
    existing = running_cluster(name)
    if existing is None:
        try:
            made = create_cluster(request, plan, DetachOptions(name=name))
        except NameTakenError:
            existing = running_cluster(name)  # another process was faster
            if existing is None:
                raise
        else:
            logger.debug("created cluster %r (%s)", name, made.id)
            # Importing Dask takes as long as starting a worker: do both at once.
            threading.Thread(target=_load_engine, daemon=True).start()
            wait_until_ready(made, timeout_s=timeout_s)
            return made, True
    logger.debug("using the running cluster %r (%s)", name, existing.id)
    if existing.record().lock != plan.manifest_lock:
        changes = changes_since(existing, request)
        logger.warning("%s%s", MANIFEST_CHANGED, "".join(f"\n  {line}" for line in changes))
    wait_until_ready(existing, timeout_s=timeout_s, workers=False)
    return existing, False


def changes_since(
    directory: ClusterDirectory, request: Request, options: DetachOptions | None = None
) -> list[str]:
    """Return the manifest values that have changed since a cluster's creation, if known."""
    from scalable.manifest import Manifest
    from scalable.providers.registry import option_models

    file, target = directory.manifest_path(), request.target
    try:
        stored = Manifest.load(file, option_models(), target=target).resolve(target)
    except (ManifestError, OSError) as error:
        logger.debug("the manifest of cluster %s cannot be compared: %s", directory.id, error)
        return []
    now = detached_manifest(request.resolved, options or DetachOptions())
    return differences(stored.data, now.data)


def manage(
    request: Request,
    cluster: str,
    manager: str,
    *,
    limits: Mapping[str, int],
    priority: int = 0,
    scheduler_address: str | None = None,
) -> int:
    """Run a manager that starts workers for a running cluster, and return an exit code.
    ``cluster`` is a name or an access file. An unknown tag in ``limits`` raises PlanError.
    """
    from scalable.clusters.managing import attach_manager

    request.require_valid()
    request.require_clusters()
    refuse_threads(request.spec)
    unknown = [tag for tag in limits if tag not in request.spec.components]
    if unknown:
        known = ", ".join(map(repr, request.spec.tags))
        raise PlanError(f"--max {unknown[0]}: no component has this name; known: {known}")
    return attach_manager(
        cluster,
        manager,
        request.spec,
        limits=limits,
        priority=priority,
        sys_path=search_path(request.spec),
        worker_address=checked_address(scheduler_address),
    )


def _load_engine() -> None:
    import scalable.client.attached
    import scalable.client.client  # noqa: F401 - loaded for later use


# Differences between two resolved manifests, as lines ---------------------------------------------


#: Keys whose values may be secrets.
_HIDDEN = frozenset({"env"})
_ABSENT = object()


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return a line for each value that differs, such as ``components.a.cpus: 1 -> 2``."""
    return list(_differing(before, after, ()))


def _differing(before: Any, after: Any, path: tuple[str, ...]) -> Iterator[str]:
    tables = [value for value in (before, after) if isinstance(value, Mapping)]
    if len(tables) == 2 or (any(tables) and _ABSENT in (before, after)):
        before, after = ({} if value is _ABSENT else value for value in (before, after))
        for key in dict.fromkeys([*before, *after]):
            there = before.get(key, _ABSENT), after.get(key, _ABSENT)
            yield from _differing(*there, (*path, str(key)))
    elif before != after:
        shown = f"{_as_written(before)} -> {_as_written(after)}"
        yield f"{'.'.join(path)}: {'changed' if _HIDDEN.intersection(path) else shown}"


def _as_written(value: Any) -> str:
    if value is _ABSENT:
        return "(not set)"
    return value if isinstance(value, str) else json.dumps(value)
