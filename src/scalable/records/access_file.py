"""Access files, with which clients and managers on other machines connect to a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from scalable.errors import ClusterError, UnknownClusterError
from scalable.files import check_replaceable, read_private, write_private
from scalable.model import names
from scalable.records.directory import ClusterDirectory
from scalable.records.finding import find

_VERSION = 1


@dataclass(frozen=True)
class AccessFile:
    """Address and credentials of a cluster."""

    id: str
    name: str
    #: Address of the scheduler.
    address: str
    #: PEM strings by keyword of ``distributed.Security``.
    pem: Mapping[str, str]
    tags: tuple[str, ...] = ()
    #: Tags by task name, from the manifest.
    tasks: Mapping[str, str] = field(default_factory=dict)
    #: Tags by label, from the manifest.
    labels: Mapping[str, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, directory: ClusterDirectory) -> AccessFile:
        """Return a cluster's address and credentials. Raise ClusterError if it is unreachable."""
        record, scheduler = directory.record(), directory.scheduler()
        if record.embedded:
            raise ClusterError(
                f"cluster {record.name!r} runs in process {record.creator.get('pid')}, and "
                "only that process can use it",
                hint="start it with `scalable up` or detach=True to reach it from elsewhere",
            )
        if scheduler is None:
            raise ClusterError(
                f"the scheduler of cluster {record.name!r} {directory.not_listening()}",
                hint=f"`scalable status {record.name}` shows its state",
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


def find_access(name: str) -> AccessFile:
    """Find a cluster's access by name, ``provider/name``, id (prefix) or path of an access file.
    Raise ClusterError if no cluster or several clusters match, or the credentials are unusable.
    """
    try:
        return AccessFile.of(find(name))
    except UnknownClusterError:
        path = Path(name)
        if path.is_file():
            return read_access_file(path)
        raise


def write_access_file(path: Path, directory: ClusterDirectory) -> None:
    """Write a cluster's address and credentials to a file that only its owner can read.
    Raise ClusterError for a symbolic link, another user's file or anything but a regular file.
    Remote clusters are refused too, since each process opens its own tunnel to them.
    """
    if directory.record().remote:
        raise ClusterError(
            f"cluster {directory.record().name!r} needs no access file",
            hint="`scalable connect` finds it by its name wherever its backend can be reached",
        )
    check_replaceable(path)
    write_private(
        path, json.dumps({"version": _VERSION, **asdict(AccessFile.of(directory))}) + "\n"
    )


def read_access_file(path: Path) -> AccessFile:
    """Read an access file. Raise ClusterError if it is invalid or others can read it."""
    try:
        data = json.loads(read_private(path))
        version = data.pop("version")
        if version != _VERSION:
            raise ClusterError(
                f"{path} is an access file of version {version}, but this release reads "
                f"version {_VERSION}",
                hint="update scalable on this machine",
            )
        names.FILE_NAME.require(data["id"])
        data["tags"] = tuple(data["tags"])
        return AccessFile(**data)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ClusterError(f"{path} is not an access file of a cluster: {error}") from error
