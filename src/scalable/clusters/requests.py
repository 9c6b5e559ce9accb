"""Requests for the managers of a detached cluster."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from scalable.clusters.creation import DetachOptions, ManagerRequest
from scalable.clusters.services import SCHEDULER
from scalable.errors import ManifestError, PlanError
from scalable.manifest import Manifest, ResolvedManifest
from scalable.model import DeploymentSpec, ManagerSpec
from scalable.protocol import code as modules
from scalable.protocol.addresses import scheduler_url
from scalable.providers.registry import provider_class


def detached_manifest(resolved: ResolvedManifest, options: DetachOptions) -> ResolvedManifest:
    """Apply ``--processes`` and ``--budget``. Raise PlanError if the target lacks the option."""
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
    Without managers in the manifest there is one, on the scheduler's target. Raise ManifestError
    if a target cannot be detached, or the scheduler's address is invalid.
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
            f"target {spec.target_name!r}: provider {spec.provider_name!r} has no detached "
            "clusters in this version; a session without detach=True ends with its process"
        )


def refuse_threads(spec: DeploymentSpec) -> None:
    """Raise ManifestError if workers are threads, which would stop with this process."""
    if spec.options.get("processes") is False:
        raise ManifestError(
            f"target {spec.target_name!r} runs workers as threads, which cannot be detached",
            hint=f"set processes: true on target {spec.target_name!r}, or give --processes",
        )


def search_path(spec: DeploymentSpec) -> tuple[str, ...]:
    """Return ``sys.path`` for workers: the current one, and the manifest's directory.
    ``scalable up`` runs no script. Without the manifest's directory, workers would not find the
    modules of the workflow.
    """
    entries = list(modules.search_path())
    if spec.workflow_dir is not None and spec.workflow_dir not in entries:
        entries.insert(0, spec.workflow_dir)
    return tuple(entries)


def _unused(target: str, taken: Mapping[str, object]) -> str:
    """Return an id for a manager: its target, with a number if that id is taken."""
    names = (target if n == 1 else f"{target}-{n}" for n in itertools.count(1))
    return next(name for name in names if name not in taken and name != SCHEDULER)
