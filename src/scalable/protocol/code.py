"""The modules that a task needs, and the version of each.

A workflow's own modules have source files outside Python and installed packages. A *code id*
identifies the versions that one process has loaded.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

from scalable import settings
from scalable.protocol.archive import CarriedFiles

#: Packages that are never uploaded, even if they are used from their source directories.
_ENGINE = frozenset({"scalable", "dask", "distributed"})
_INSTALLED = ("site-packages", "dist-packages")
_MAIN = ("__main__", "__mp_main__")


@dataclass(frozen=True)
class ModuleCode:
    """One version of a module."""

    path: str
    #: Digest of the source.
    digest: str
    is_package: bool = False


@dataclass(frozen=True)
class CodeTable:
    """The modules that one process has loaded for its tasks."""

    process: str
    #: Version by module name.
    modules: Mapping[str, ModuleCode] = field(default_factory=dict)
    #: Directories in which other modules are found.
    search_path: tuple[str, ...] = ()
    #: Archive of the workflow's files, for processes without the client's file system.
    files: CarriedFiles | None = None

    @property
    def id(self) -> str:
        hashed = blake2b(repr((self.process, self.search_path)).encode(), digest_size=8)
        for name, module in sorted(self.modules.items()):
            hashed.update(repr((name, module.digest)).encode())
        if self.files is not None:
            hashed.update(repr(self.files).encode())
        return hashed.hexdigest()

    def to_message(self) -> dict[str, Any]:
        modules = {n: [m.path, m.digest, m.is_package] for n, m in self.modules.items()}
        return {
            "process": self.process,
            "modules": modules,
            "search_path": list(self.search_path),
            "files": None if self.files is None else self.files.to_message(),
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Self:
        modules = {name: ModuleCode(*values) for name, values in message["modules"].items()}
        files = message.get("files")
        return cls(
            message["process"],
            modules,
            tuple(message["search_path"]),
            None if files is None else CarriedFiles.from_message(files),
        )


def digest_of(source: bytes) -> str:
    """Return the digest of a module's source."""
    return blake2b(source, digest_size=8).hexdigest()


def read_source(path: str) -> bytes | None:
    """Return a source file's content, or None if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return None


@cache
def _directories_of_python() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    names = ["stdlib", "platstdlib", "purelib", "platlib"]
    if sys.prefix != sys.base_prefix:  # commands that packages install, not a user's directory
        names.append("scripts")
    return tuple({Path(paths[name]).resolve() for name in names})


@cache
def is_installed(path: str) -> bool:
    """Return whether a path is part of Python or of an installed package."""
    real = Path(path).resolve()
    return any(real.is_relative_to(place) for place in _directories_of_python()) or any(
        part in _INSTALLED for part in (*Path(path).parts, *real.parts)
    )


def is_own(name: str, path: str | None) -> bool:
    """Return whether a module belongs to the workflow, given its name and source file."""
    if not path or not path.endswith(".py") or name in _MAIN:
        return False
    return name.partition(".")[0] not in _ENGINE and not is_installed(path)


def own_search_path(entries: Iterable[str]) -> tuple[str, ...]:
    """Return the entries of a search path that belong to the workflow."""
    return tuple(entry for entry in entries if Path(entry).is_dir() and not is_installed(entry))


def in_image(name: str, image: str | None = None) -> str:
    """Return a process name with its image, if any, which is by default that of this process."""
    if image is None:
        image = os.environ.get(settings.IMAGE, "")
    return f"{name} (image {image})" if image else name


def located(error: BaseException, where: str, call: str) -> BaseException | None:
    """Return a task's ModuleNotFoundError with the process name added.

    Returns None for other errors, and if the message already contains the name.
    """
    if type(error) is not ModuleNotFoundError or where in str(error):
        return None
    told = f"{error} on {where}, in {call}. {_way_out(error)}"
    return ModuleNotFoundError(told, name=error.name, path=error.path)


def missing_module(error: ModuleNotFoundError, call: str, where: str) -> ModuleNotFoundError:
    """Return the error for a task that needs a module which its process does not have."""
    return ModuleNotFoundError(
        f"No module named {error.name!r} on {where}, where {call} needs it. {_way_out(error)}",
        name=error.name,
    )


def _way_out(error: ModuleNotFoundError) -> str:
    top = (error.name or "").partition(".")[0] or "it"
    return (
        f"Install {top} in the Python environment of the workers (in the image, if the component "
        "has one). Modules of the workflow need no installation, if this process has imported them "
        "or finds them on sys.path."
    )
