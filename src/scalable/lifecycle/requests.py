"""What is asked of the managers of a cluster that is to be detached."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from pathlib import Path

from scalable.errors import ManifestError, PlanError
from scalable.lifecycle.creation import DetachOptions, ManagerRequest
from scalable.lifecycle.services import SCHEDULER
from scalable.manifest import Manifest, ResolvedManifest
from scalable.spec import DeploymentSpec, ManagerSpec


def detached_manifest(resolved: ResolvedManifest, options: DetachOptions) -> ResolvedManifest:
    """The manifest with what is asked beside it.

    Raises
    ------
    PlanError
        When the target knows no such option.
    """
    if not options.processes:
        return resolved
    if "processes" not in resolved.spec.options:
        raise PlanError(
            f"--processes does not apply to target {resolved.spec.target_name!r}: provider "
            f"{resolved.spec.provider_name!r} has no such option"
        )
    return resolved.with_options({"processes": True})


def manager_requests(manifest: Manifest, resolved: ResolvedManifest) -> dict[str, ManagerRequest]:
    """Id -> request of each manager: those that the manifest lists, or one on its own target.

    Parameters
    ----------
    manifest
        For the targets of the managers.
    resolved
        The same for the target where the scheduler lives.

    Raises
    ------
    ManifestError
        When a target cannot be detached.
    """
    home = resolved.spec.target_name
    requests: dict[str, ManagerRequest] = {}
    for manager in resolved.spec.managers or (ManagerSpec(home),):
        its = resolved if manager.target == home else manifest.resolve(manager.target)
        refuse_threads(its.spec)
        requests[_unused(manager.target, requests)] = ManagerRequest(
            its.spec, its.to_yaml(), manager.priority, manager.limits
        )
    return requests


def refuse_threads(spec: DeploymentSpec) -> None:
    """Raise where workers are threads: those of the process that asks cannot outlive it."""
    if spec.options.get("processes") is False:
        raise ManifestError(
            f"target {spec.target_name!r} runs workers as threads, which cannot be detached",
            hint=f"set processes: true on target {spec.target_name!r}, or give --processes",
        )


def search_path(spec: DeploymentSpec) -> tuple[str, ...]:
    """Where workers look for modules: as in this process, and in the manifest's directory.

    `scalable up` has no script beside which they could be.
    """
    entries = [entry or str(Path.cwd()) for entry in sys.path]
    if spec.workflow_dir is not None and spec.workflow_dir not in entries:
        entries.insert(0, spec.workflow_dir)
    return tuple(entries)


def _unused(target: str, taken: Mapping[str, object]) -> str:
    """Id of a manager: its target, with a number where that has one already."""
    names = (target if n == 1 else f"{target}-{n}" for n in itertools.count(1))
    return next(name for name in names if name not in taken and name != SCHEDULER)
