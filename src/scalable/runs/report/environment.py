"""Environment of a run from its record: versions, machine, hosts and manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from scalable.files import read_regular
from scalable.runs.reading import RunRecord
from scalable.runs.streams import mapping, number, text
from scalable.storage import without_secrets

NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class Environment:
    """Facts about the machine and software of a run. None means not recorded."""

    #: Versions by program or package. Older runs record only scalable's version.
    versions: Mapping[str, str] = field(default_factory=dict)
    #: Operating system and architecture.
    platform: str = NOT_RECORDED
    #: Host of the process that made the record, with its CPUs and bytes of memory.
    host: str = NOT_RECORDED
    cpus: int | None = None
    memory: int | None = None
    #: Number of hosts with workers.
    hosts: int | None = None
    #: Digest of the manifest.
    manifest_lock: str = NOT_RECORDED
    #: Resolved manifest without the values of environment variables, empty if unreadable.
    manifest: str = ""


def environment_of(record: RunRecord) -> Environment:
    """Return the environment in a record."""
    run, machine = record.run, mapping(record.run.get("machine"))
    versions = {str(k): str(v) for k, v in mapping(run.get("versions")).items()}
    if version := text(run.get("version")):
        versions.setdefault("scalable", version)
    sizes = {key: number(machine.get(key)) for key in ("cpus", "memory")}
    hosts = {row["host"] for row in record.workers if text(row.get("host"))}
    return Environment(
        versions=versions,
        platform=text(machine.get("platform")) or NOT_RECORDED,
        host=text(run.get("host")) or NOT_RECORDED,
        **{key: None if size is None else int(size) for key, size in sizes.items()},
        hosts=len(hosts) or None,
        manifest_lock=record.manifest_lock or NOT_RECORDED,
        manifest=_shown_manifest(record.path),
    )


# Manifests ----------------------------------------------------------------------------------------

#: Largest size in bytes of a manifest that is shown.
LARGEST = 100_000
_HIDDEN = "(left out)"


def _shown_manifest(run: Path) -> str:
    """Return a run's manifest as YAML without the variables' values, or "" if unreadable."""
    file = run / "manifest.yaml"
    try:
        if file.stat().st_size > LARGEST:
            return ""
        text = read_regular(file).decode("utf-8")
        # Our manifests have no aliases, which can make a short string very large.
        if "*" in text and any(isinstance(e, yaml.AliasEvent) for e in yaml.parse(text)):
            return ""
        value = yaml.safe_load(text)
        shown = yaml.safe_dump(_without_secrets(value), sort_keys=False, allow_unicode=True)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return ""
    return str(shown) if isinstance(value, dict) else ""


def most_workers(manifest: str, target: str) -> int | None:
    """Return the limit of a target's workers in a resolved manifest, or None without any."""
    found = mapping(yaml.safe_load(manifest))
    most = mapping(mapping(found.get("targets")).get(target)).get("max_workers")
    # Managers start more workers on other targets.
    return most if type(most) is int and not found.get("managers") else None


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            str(key): _without_values(inner) if key == "env" else _without_secrets(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return list(map(_without_secrets, value))
    return without_secrets(value) if isinstance(value, str) and "://" in value else value


def _without_values(env: Any) -> Any:
    return dict.fromkeys(map(str, env), _HIDDEN) if isinstance(env, dict) else _HIDDEN
