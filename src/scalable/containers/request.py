"""The description of a container for a container runtime."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from scalable.containers.host_python import HostPython
from scalable.errors import ProviderError
from scalable.spec import names

Runtime: TypeAlias = Literal["apptainer", "docker", "podman"]

#: Interpreter of an image that has its own Python.
IMAGE_PYTHON = "python3"

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")


@dataclass(frozen=True)
class ContainerRequest:
    """One container: its runtime, image and view of the host.
    Raises ProviderError if the image, a variable or a mount cannot be rendered: see
    :mod:`scalable.spec.names`.
    """

    runtime: Runtime
    #: Path of an Apptainer image, or a reference in a registry.
    image: str
    #: Name that is unique on the machine, see :func:`container_name`.
    name: str
    #: Absolute paths in the container, by absolute path on the host. Writable.
    mounts: Mapping[str, str] = field(default_factory=dict)
    #: The only variables that are passed on. No secrets: the process list shows them.
    env: Mapping[str, str] = field(default_factory=dict)
    #: Number of GPUs. More than 0 makes all NVIDIA GPUs of the machine visible.
    gpus: int = 0
    #: Start directory in the container. None for the image's or runtime's default.
    workdir: str | None = None
    #: Python of this machine, mounted read-only. None if the image has its own.
    host_python: HostPython | None = None
    #: Program of the image that starts the command. The image's entry point is not used.
    entry: tuple[str, ...] = ()
    #: ``uid:gid``, or None for the default. Docker's default writes files as root.
    user: str | None = None

    def __post_init__(self) -> None:
        if self.runtime not in get_args(Runtime):
            raise ValueError(f"{self.runtime!r} is not a container runtime")
        for reference in (self.image, self.image.removeprefix("docker://")):
            names.IMAGE.require(reference, ProviderError)
        names.check_variables(self.env, ProviderError, names.ANY_VARIABLE)
        for path in (p for mount in self.mounts.items() for p in mount):
            names.PATH.require(path, ProviderError)
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not a container name: use container_name()")

    @property
    def python(self) -> str:
        """Interpreter inside the container: the mounted one of the host, or the image's."""
        return IMAGE_PYTHON if self.host_python is None else self.host_python.executable

    @property
    def image_file(self) -> str | None:
        """Path of an image that is a file or directory, or None for a reference."""
        path = self.image.startswith(("/", "./", "../")) or self.image.endswith(".sif")
        return self.image if path and not _SCHEME.match(self.image) else None

    @property
    def reference(self) -> str:
        """Image in the notation of the runtime. Every runtime accepts both notations."""
        if self.runtime != "apptainer":
            return self.image.removeprefix("docker://")
        if self.image_file or _SCHEME.match(self.image):
            return self.image
        return f"docker://{self.image}"


def container_name(unit: str) -> str:
    """Return the name of the container of a unit (a worker, or a group of workers).
    ``unit`` is unique among all clusters of this machine. A checksum keeps the name unique if
    characters had to be replaced.
    """
    cleaned = re.sub(r"[^a-zA-Z0-9_.-]", "-", unit)
    mark = "" if cleaned == unit else f"-{zlib.crc32(unit.encode()):08x}"
    return f"scalable-{cleaned}{mark}"
