"""The environment of a run: versions, machine, hosts and manifest, as its record tells. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scalable.report.spans import mapping, number, text
from scalable.telemetry import RunRecord

NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class Environment:
    """Facts about where a run took place.

    Attributes
    ----------
    versions
        Name of a program or package -> its version. Older runs record only that of scalable.
    platform
        Operating system and architecture.
    host
        Host of the process that made the record.
    cpus, memory
        Number of CPUs of that host, and its memory in bytes; None if not recorded.
    hosts
        Number of hosts on which workers were; None if not recorded.
    manifest_lock
        Digest of the manifest.
    manifest
        The resolved manifest without the values of environment variables; empty if it cannot be
        read.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    platform: str = NOT_RECORDED
    host: str = NOT_RECORDED
    cpus: int | None = None
    memory: int | None = None
    hosts: int | None = None
    manifest_lock: str = NOT_RECORDED
    manifest: str = ""


def environment_of(record: RunRecord, manifest: str = "") -> Environment:
    """Return the environment that a record tells.

    Parameters
    ----------
    record
        Record of a run.
    manifest
        The resolved manifest as text that may be shown.
    """
    run = record.run
    versions = {str(k): str(v) for k, v in mapping(run.get("versions")).items()}
    if "scalable" not in versions and text(run.get("version")):
        versions["scalable"] = text(run.get("version"))
    machine = mapping(run.get("machine"))
    cpus, memory = number(machine.get("cpus")), number(machine.get("memory"))
    hosts = {row["host"] for row in record.workers if text(row.get("host"))}
    return Environment(
        versions=versions,
        platform=text(machine.get("platform")) or NOT_RECORDED,
        host=text(run.get("host")) or NOT_RECORDED,
        cpus=None if cpus is None else int(cpus),
        memory=None if memory is None else int(memory),
        hosts=len(hosts) or None,
        manifest_lock=record.manifest_lock or NOT_RECORDED,
        manifest=manifest,
    )
