"""One file with all that clients and managers on other machines need to reach a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from scalable.errors import ClusterError
from scalable.files import read_private, write_private
from scalable.records.directory import ClusterDirectory

_VERSION = 1


@dataclass(frozen=True)
class Bundle:
    """Where a cluster is, and the credentials that open it.

    Attributes
    ----------
    id, name, address
        The cluster and its scheduler.
    pem
        Keyword of ``distributed.Security`` -> PEM text.
    tags, tasks, labels
        Of its manifest.
    """

    id: str
    name: str
    address: str
    pem: Mapping[str, str]
    tags: tuple[str, ...] = ()
    tasks: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, directory: ClusterDirectory) -> Bundle:
        """The bundle of a cluster of this machine.

        Raises
        ------
        ClusterError
            When it has no scheduler that could be reached.
        """
        record, scheduler = directory.record(), directory.scheduler()
        if record.embedded:
            raise ClusterError(
                f"cluster {record.name!r} lives in process {record.creator.get('pid')}, and "
                "listens to that alone",
                hint="start it with `scalable up` or detach=True to reach it from elsewhere",
            )
        if scheduler is None:
            raise ClusterError(
                f"cluster {record.name!r} has no scheduler that listens",
                hint=f"`scalable status {record.name}` says how it is",
            )
        return cls(
            id=record.id,
            name=record.name,
            address=str(scheduler["address"]),
            pem=directory.pem(),
            tags=record.tags,
            tasks=record.tasks,
            labels=record.labels,
        )


def write_bundle(path: Path, directory: ClusterDirectory) -> None:
    """Write a cluster's bundle to a file that only its owner may read."""
    write_private(path, json.dumps({"version": _VERSION, **asdict(Bundle.of(directory))}) + "\n")


def read_bundle(path: Path) -> Bundle:
    """Read a bundle.

    Raises
    ------
    ClusterError
        When the file is none, or others may read it.
    """
    try:
        data = json.loads(read_private(path))
        version = data.pop("version")
        if version != _VERSION:
            raise ClusterError(f"{path} is a bundle of version {version}: update scalable")
        data["tags"] = tuple(data["tags"])
        return Bundle(**data)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ClusterError(f"{path} is no bundle of a cluster: {error}") from error
