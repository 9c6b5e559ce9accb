"""The paths of this machine that a container mounts to run this machine's Python."""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

from scalable.protocol.code import lasting

#: Directories of the image that no mount may hide.
SYSTEM_DIRECTORIES = (
    *("/bin", "/etc", "/lib", "/lib64", "/opt", "/sbin", "/var"),
    *("/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local/bin", "/usr/local/lib"),
)
LINKS = 16


@dataclass(frozen=True)
class HostPython:
    """The interpreter of this machine, with the paths to mount read-only, each at its own path."""

    executable: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class PythonLayout:
    """The paths of a Python and its packages. All are absolute and exist."""

    #: Interpreter, and the targets of its symbolic links in order.
    executables: tuple[str, ...]
    #: Roots of the environment and of its base installation.
    prefixes: tuple[str, ...]
    #: Standard library and shared library, if they are not below a prefix.
    libraries: tuple[str, ...]
    #: ``sys.path``: site-packages, editable installs, the workflow's directory.
    search_path: tuple[str, ...]
    #: Directories that no mount may hide.
    protected: tuple[str, ...]


def host_python_of(layout: PythonLayout) -> HostPython:
    """Return the interpreter of a layout, and the paths to mount for it. No I/O.
    A prefix is mounted as a whole unless that hides a protected directory. For a Python in
    ``/usr``, only the interpreter, the standard library and the packages are mounted.
    """
    roots = [
        str(PurePath(path).parent.parent)
        for path in layout.executables
        if PurePath(path).parent.name == "bin"
    ]
    wanted = [
        *layout.prefixes,
        *roots,
        *layout.executables,
        *layout.libraries,
        *layout.search_path,
    ]
    harmless = (
        path
        for path in wanted
        if not any(PurePath(place).is_relative_to(path) for place in layout.protected)
    )
    return HostPython(layout.executables[0], _outermost(harmless))


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths that are not below another of these paths."""
    kept: list[str] = []
    for path in sorted(set(paths), key=lambda path: PurePath(path).parts):
        if not kept or not PurePath(path).is_relative_to(kept[-1]):
            kept.append(path)
    return tuple(kept)


def read_host_python() -> HostPython:
    """Return the Python of this process, with its packages."""
    return host_python_of(read_layout())


def read_layout() -> PythonLayout:
    """Return the paths of the Python of this process."""
    library = sysconfig.get_config_var("INSTSONAME")
    folder = sysconfig.get_config_var("LIBDIR")
    source = Path(__file__).parents[2]
    return PythonLayout(
        executables=(
            *_links(sys.executable),
            *_links(getattr(sys, "_base_executable", sys.executable)),
        ),
        prefixes=_existing(
            (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix),
        ),
        libraries=_existing(
            (
                sysconfig.get_path("stdlib"),
                sysconfig.get_path("platstdlib"),
                f"{folder}/{library}" if folder and library else "",
            )
        ),
        # sys.path already has the entries of .pth files; its empty entry, the current directory,
        # is left out.
        search_path=_existing((*lasting(sys.path), str(source))),
        protected=(*SYSTEM_DIRECTORIES, tempfile.gettempdir(), *_home()),
    )


def _home() -> list[str]:
    try:
        return [str(Path.home())]
    except RuntimeError:
        return []  # the user has no entry on this machine


def _existing(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(os.path.normpath(path) for path in paths if path.startswith("/") and _is(path))


def _is(path: str) -> bool:
    return Path(path).exists()


def _links(executable: str) -> list[str]:
    """Return a program and the targets of its links in order. The container needs all of them."""
    chain = [executable]
    while Path(chain[-1]).is_symlink() and len(chain) < LINKS:
        target = Path(chain[-1]).parent / Path(chain[-1]).readlink()
        chain.append(os.path.normpath(target))
    return chain
