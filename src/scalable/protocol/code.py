"""Modules that a task needs, and their versions.

A workflow's own modules have source files outside Python and installed packages. A *code id*
identifies the versions that one process has loaded.
"""

from __future__ import annotations

import io
import os
import platform
import secrets
import shutil
import stat
import sys
import sysconfig
import tarfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Self

from scalable import settings
from scalable.files import working_directory

#: Attribute of a worker's ``__main__``, whose names may be those of another client's script.
STANDS_FOR_SCRIPT = "__stands_for_script__"
#: Packages that are never uploaded, even if they are used from their source directories.
ENGINE = frozenset({"scalable", "dask", "distributed"})
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
    #: Version of each module, by module name.
    modules: Mapping[str, ModuleCode] = field(default_factory=dict)
    #: Directories in which other modules are found.
    search_path: tuple[str, ...] = ()
    #: Archive of the workflow's files, for processes without the client's file system.
    files: CarriedFiles | None = None

    @cached_property
    def id(self) -> str:
        hashed = blake2b(repr((self.process, self.search_path)).encode(), digest_size=8)
        for name, module in sorted(self.modules.items()):
            hashed.update(repr((name, module.digest)).encode())
        if self.files is not None:
            hashed.update(repr(self.files).encode())
        return hashed.hexdigest()


def digest_of(source: bytes) -> str:
    """Return the digest of a module's source."""
    return blake2b(source, digest_size=8).hexdigest()


def read_source(path: str) -> bytes | None:
    """Return a source file's content, or None if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return None


def digest_in(path: str) -> str | None:
    """Return the digest of a source file, or None if it cannot be read."""
    source = read_source(path)
    return None if source is None else digest_of(source)


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
    return name.partition(".")[0] not in ENGINE and not is_installed(path)


def own_search_path(entries: Iterable[str]) -> tuple[str, ...]:
    """Return the entries of a search path that belong to the workflow."""
    return tuple(entry for entry in entries if Path(entry).is_dir() and not is_installed(entry))


def in_image(name: str, image: str | None = None) -> str:
    """Return a process name followed by its image, if any (by default this process's image)."""
    if image is None:
        image = os.environ.get(settings.IMAGE, "")
    return f"{name} (image {image})" if image else name


def locate(error: BaseException, where: str, call: str) -> None:
    """Add the process, the task and a hint to the message of a ModuleNotFoundError, once."""
    if type(error) is ModuleNotFoundError and where not in str(error):
        top = (error.name or "").partition(".")[0] or "it"
        reword(
            error,
            f"{error} on {where}, where {call} needs it. Install {top} in the Python environment "
            "of the workers (in the image, if the component has one). Modules of the workflow need "
            "no installation, if this process has imported them or finds them on sys.path.",
        )


def reword(error: ImportError, message: str) -> None:
    """Replace the message of an error, which keeps its traceback, causes and notes."""
    error.args, error.msg = (message,), message


# Archives -----------------------------------------------------------------------------------------

#: Bytes of one message with a part of an archive. A message delays all others of its scheduler for
#: about as long as its bytes take to be encrypted: some milliseconds. Smaller parts take the
#: scheduler longer in total.
PART = 1 << 20
#: Level of zlib: the fastest, since sources become several times smaller at any level.
_LEVEL = 1


class ArchiveError(ValueError):
    """Raised for an archive that is damaged or was not made by :func:`pack`."""


@dataclass(frozen=True)
class CarriedFiles:
    """Description of an archive of a workflow's files, without its content."""

    #: Digest of the unpacked archive.
    digest: str
    #: Bytes of the unpacked archive.
    size: int
    #: (directory on the client's machine as in ``sys.path``, its name in the archive).
    roots: tuple[tuple[str, str], ...] = ()

    def name_of(self, path: str) -> str | None:
        """Return the archive name of a client's file, or None if it is outside the roots."""
        for root, name in self.roots:
            with suppress(ValueError):
                return PurePosixPath(name, Path(path).relative_to(root)).as_posix()
        return None


@dataclass(frozen=True)
class ArchiveEntry:
    """One file of an archive."""

    #: Path relative to the base, with slashes.
    name: str
    content: bytes
    executable: bool = False


def pack(entries: Iterable[ArchiveEntry]) -> tuple[str, int, bytes]:
    """Return an archive's digest, size and compressed content. Equal files give equal digests."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for entry in sorted(entries, key=lambda entry: entry.name):
            about = tarfile.TarInfo(entry.name)  # owner, group and time are 0
            about.size = len(entry.content)
            about.mode = 0o700 if entry.executable else 0o600
            archive.addfile(about, io.BytesIO(entry.content))
    raw = file.getbuffer()
    return _digest(raw), len(raw), zlib.compress(raw, _LEVEL)


def _digest(raw: bytes | memoryview) -> str:
    return blake2b(raw, digest_size=16).hexdigest()


def parts_of(data: bytes) -> Sequence[memoryview]:
    """Split an archive into parts for sending."""
    view = memoryview(data)
    return [view[start : start + PART] for start in range(0, len(view), PART)]


def unpack(data: bytes, files: CarriedFiles, place: Path) -> None:
    """Unpack an archive into ``place``, or raise ArchiveError without leaving ``place`` behind."""
    raw = _uncompressed(data, files)
    unfinished = place.parent / f".{place.name}-{secrets.token_hex(4)}"
    unfinished.mkdir(mode=0o700)
    try:
        with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
            for member in archive:
                _write(archive, member, unfinished)
        unfinished.rename(place)
    except (tarfile.TarError, OSError) as error:
        if place.is_dir():
            return  # another thread was faster
        raise ArchiveError(f"archive {files.digest} cannot be unpacked: {error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _uncompressed(data: bytes, files: CarriedFiles) -> bytes:
    """Return an archive's content. Decompresses at most one byte more than described."""
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(data, files.size + 1)
    except zlib.error as error:
        raise ArchiveError(f"archive {files.digest} is damaged: {error}") from error
    if len(raw) != files.size or _digest(raw) != files.digest:
        raise ArchiveError(f"archive {files.digest} does not match its digest")
    return raw


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    name = PurePosixPath(member.name)
    if not member.isreg() or name.is_absolute() or ".." in name.parts or "\0" in member.name:
        raise ArchiveError(f"the archive contains {member.name!r}, which is not a file inside it")
    path = place / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    source = archive.extractfile(member)
    assert source is not None
    mode = 0o700 if member.mode & 0o100 else 0o600
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(path, flags, mode), "wb") as file:  # noqa: PTH123 - of a descriptor
        shutil.copyfileobj(source, file)


# Module search path -------------------------------------------------------------------------------

_FULL_RANGE = 2**32 - 1
#: Part of the path of every local directory of Dask.
_SCRATCH_SPACE = "dask-scratch-space"


def search_path() -> tuple[str, ...]:
    """Return ``sys.path`` without local directories of nodes, which other users could recreate."""
    return tuple(entry or str(working_directory()) for entry in lasting(sys.path))


def lasting(entries: Iterable[str]) -> list[str]:
    """Return the entries of a search path that are not local directories of server nodes.
    Entries that are not strings are left out, as Python does.
    """
    return [each for each in entries if isinstance(each, str) and _SCRATCH_SPACE not in each]


def interpreter_options(directory: str | Path) -> tuple[str, ...]:
    """Return the options of ``python -m``: ``-P`` if others may change the working directory."""
    status = Path(directory).stat()
    return () if is_trusted(status.st_uid) and not status.st_mode & stat.S_IWOTH else ("-P",)


@cache
def _in_user_namespace() -> bool:
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return False
    return [line.split() for line in lines] != [["0", "0", str(_FULL_RANGE)]]


def is_unmapped(uid: int) -> bool:
    """Return whether an owner is unknown here, as root may be inside a container."""
    if not _in_user_namespace():
        return False
    try:
        return uid == int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return False


def is_trusted(uid: int) -> bool:
    """Return whether a directory of this owner is as safe as one of our own."""
    return uid in (0, os.geteuid()) or is_unmapped(uid)


# Versions -----------------------------------------------------------------------------------------

#: Package whose releases must be equal, because they encode messages in different ways.
STRICT = "distributed"
PACKAGES = ("dask", STRICT, "scalable")
_ON = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True)
class ImageVersions:
    """Package versions in the image of a scheduler."""

    image: str
    #: Version by package, including ``python`` and ``scalable``.
    packages: Mapping[str, str]
    #: True if clients with another release of ``distributed`` may connect.
    allows_mismatch: bool = False

    @classmethod
    def of_this_process(cls) -> Self | None:
        """Return this process's versions, or None if it does not run in an image."""
        image = os.environ.get(settings.IMAGE, "")
        if not image:
            return None
        allowed = os.environ.get(settings.ALLOW_VERSION_MISMATCH, "").lower() in _ON
        return cls(image, own_versions(), allowed)

    def differences(self) -> dict[str, tuple[str, str]]:
        """Map packages to the image's and this process's versions if they differ (not patches)."""
        found = {}
        for package, here in own_versions().items():
            there = str(self.packages.get(package, "unknown"))
            if "unknown" not in (there, here) and _counting(package, there) != _counting(
                package, here
            ):
                found[package] = there, here
        return found


def _counting(package: str, text: str) -> str:
    return ".".join(text.split(".")[:2]) if package == "python" else text


@cache
def own_versions() -> dict[str, str]:
    """Return package versions of this process, without importing the packages."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # used from its source directory
            found[package] = "unknown"
    return found
