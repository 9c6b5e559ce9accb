"""What is asked of a container runtime."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from scalable.containers.host_python import HostPython

Runtime: TypeAlias = Literal["apptainer", "docker", "podman"]

#: The interpreter of an image that brings its own.
IMAGE_PYTHON = "python3"

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")


@dataclass(frozen=True)
class ContainerRequest:
    """One container: what runs where, and what it sees of the host.

    Attributes
    ----------
    runtime
        ``apptainer``, ``docker`` or ``podman``.
    image
        Path of an Apptainer image, or a reference in a registry.
    name
        Unique on the machine; the container is removed by it. See :func:`container_name`.
    mounts
        Absolute path on the host -> absolute path in the container, writable.
    env
        Environment in the container; nothing else of the host's is passed on. Values show in the
        list of processes, so that secrets have no place here.
    gpus
        More than 0 makes the machine's NVIDIA GPUs visible.
    workdir
        Directory in the container to start in; None for the image's, or for apptainer's choice.
    host_python
        This machine's Python, to be mounted read-only; None where the image has its own.
    entry
        Program of the image, with arguments, that is given the command and starts it; empty to
        start the command itself. The image's own entry point is never used.
    user
        ``uid:gid`` to run as, for docker, whose daemon otherwise makes files that belong to root;
        None for the runtime's choice.
    """

    runtime: Runtime
    image: str
    name: str
    mounts: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    workdir: str | None = None
    host_python: HostPython | None = None
    entry: tuple[str, ...] = ()
    user: str | None = None

    def __post_init__(self) -> None:
        if self.runtime not in get_args(Runtime):
            raise ValueError(f"{self.runtime!r} is not a container runtime")
        if not self.image or self.image.startswith("-"):
            raise ValueError(f"{self.image!r} is not the name of an image")
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not a container name: use container_name()")

    @property
    def python(self) -> str:
        """The interpreter inside: the host's where it is mounted, the image's otherwise."""
        return IMAGE_PYTHON if self.host_python is None else self.host_python.executable

    @property
    def image_file(self) -> str | None:
        """Path of the image where it is a file or directory, None where it is a reference."""
        path = self.image.startswith(("/", "./", "../")) or self.image.endswith(".sif")
        return self.image if path and not _SCHEME.match(self.image) else None

    @property
    def reference(self) -> str:
        """The image as the runtime wants it written.

        ``ghcr.io/site/model:1`` and ``docker://ghcr.io/site/model:1`` are the same image for each
        runtime, so that one manifest serves a laptop and a cluster.
        """
        if self.runtime != "apptainer":
            return self.image.removeprefix("docker://")
        if self.image_file or _SCHEME.match(self.image):
            return self.image
        return f"docker://{self.image}"


def container_name(unit: str) -> str:
    """Name of a container for a unit.

    Parameters
    ----------
    unit
        Name of the unit, unique among all clusters of this machine.

    Returns
    -------
    str
        ``scalable-`` and the unit's name; where characters had to go, a checksum keeps it unique.
    """
    cleaned = re.sub(r"[^a-zA-Z0-9_.-]", "-", unit)
    mark = "" if cleaned == unit else f"-{zlib.crc32(unit.encode()):08x}"
    return f"scalable-{cleaned}{mark}"
