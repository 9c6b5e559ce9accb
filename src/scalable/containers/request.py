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

    Attributes
    ----------
    runtime
        ``apptainer``, ``docker`` or ``podman``.
    image
        Path of an Apptainer image, or a reference in a registry.
    name
        Name of the container, unique on the machine; see :func:`container_name`.
    mounts
        Absolute path on the host -> absolute path in the container, writable.
    env
        Environment in the container; no other variable of the host is passed on. Other
        users can see the values in the list of processes: pass no secrets.
    gpus
        Number of GPUs; with more than 0 all NVIDIA GPUs of the machine are visible.
    workdir
        Directory in the container to start in; None for the choice of image or runtime.
    host_python
        Python of this machine, mounted read-only; None if the image has its own.
    entry
        Program of the image, with arguments, that gets the command as further arguments and
        starts it; empty to start the command directly. The image's own entry point is not used.
    user
        ``uid:gid`` to run as; None for the runtime's choice. Under docker written files would
        otherwise belong to root.

    Raises
    ------
    ProviderError
        When the image, a variable or a mount cannot be rendered; see :mod:`scalable.spec.names`.
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
        """Path of an image that is a file or directory; None for a reference."""
        path = self.image.startswith(("/", "./", "../")) or self.image.endswith(".sif")
        return self.image if path and not _SCHEME.match(self.image) else None

    @property
    def reference(self) -> str:
        """Image in the notation of the runtime.

        Every runtime accepts both ``ghcr.io/site/model:1`` and ``docker://ghcr.io/site/model:1``,
        so that one manifest serves a laptop and a cluster.
        """
        if self.runtime != "apptainer":
            return self.image.removeprefix("docker://")
        if self.image_file or _SCHEME.match(self.image):
            return self.image
        return f"docker://{self.image}"


def container_name(unit: str) -> str:
    """Return the name of a unit's container (unit: a worker, or a group of workers).

    Parameters
    ----------
    unit
        Name of the unit, unique among all clusters of this machine.

    Returns
    -------
    str
        ``scalable-`` and the unit's name. If characters of the name had to be replaced, a checksum
        is appended to keep the result unique.
    """
    cleaned = re.sub(r"[^a-zA-Z0-9_.-]", "-", unit)
    mark = "" if cleaned == unit else f"-{zlib.crc32(unit.encode()):08x}"
    return f"scalable-{cleaned}{mark}"
