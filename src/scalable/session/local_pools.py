"""The request of a session on this machine, made without a manifest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalable.manifest.resolved import ResolvedManifest
from scalable.providers.local.defaults import DEFAULTS
from scalable.session.request import Request
from scalable.spec import ComponentSpec, DeploymentSpec, WorkerRange, names

if TYPE_CHECKING:
    from scalable.manifest import Manifest

TARGET = "local"


def local_request(
    pools: Mapping[str, int | Mapping[str, Any]],
    *,
    processes: bool,
    threads_per_worker: int,
    project: str,
) -> Request:
    """Return the :class:`Request` that a manifest with these pools would give.
    Plain numbers of workers need no import of pydantic. Other pools may raise ManifestError.
    """
    data = {
        "version": 1,
        "project": {"name": project},
        "targets": {
            TARGET: {
                "provider": TARGET,
                "threads_per_worker": threads_per_worker,
                "processes": processes,
            }
        },
        "components": {
            tag: pool if isinstance(pool, Mapping) else {"workers": pool}
            for tag, pool in pools.items()
        },
    }
    if (
        pools
        and all(names.TAG.accepts(tag) and _is_count(pool) for tag, pool in pools.items())
        and isinstance(processes, bool)
        and _is_count(threads_per_worker)
        and threads_per_worker > 0
        and _is_name(project)
    ):
        return Request(_resolved(data))
    manifest = _checked(data)
    return Request(manifest.resolve(TARGET), manifest)


def _checked(data: Mapping[str, Any]) -> Manifest:
    from scalable.manifest import Manifest
    from scalable.providers.registry import option_models

    return Manifest.from_mapping(data, option_models())


def _resolved(data: Mapping[str, Any]) -> ResolvedManifest:
    counts = {tag: component["workers"] for tag, component in data["components"].items()}
    bounds = {tag: {"workers": {"minimum": n, "maximum": n}} for tag, n in counts.items()}
    data = {**data, "components": bounds}
    options = {key: v for key, v in data["targets"][TARGET].items() if key != "provider"}
    spec = DeploymentSpec(
        project_name=data["project"]["name"],
        target_name=TARGET,
        provider_name=TARGET,
        components={
            tag: ComponentSpec(name=tag, workers=WorkerRange(n, n)) for tag, n in counts.items()
        },
        options={**DEFAULTS, **options},
        written_options=frozenset(options),
        workflow_dir=str(Path.cwd()),
    )
    return ResolvedManifest(spec, data)


def _is_count(count: object) -> bool:
    return type(count) is int and count >= 0


def _is_name(project: object) -> bool:
    """Return True if the name of a project needs no further check."""
    return names.PROJECT.accepts(project) and re.fullmatch(r"[\w .-]+", str(project)) is not None
