"""Environment of a run from its record: versions, machine, hosts and manifest. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scalable.runs import RunRecord
from scalable.runs.report.spans import mapping, number, text

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


def environment_of(record: RunRecord, manifest: str = "") -> Environment:
    """Return the environment in a record. ``manifest`` is a resolved manifest without secrets."""
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
