"""The paths of this machine that a container mounts to run this machine's Python."""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

from scalable.protocol.search_path import lasting

#: Directories of the image that no mount may hide.
SYSTEM_DIRECTORIES = (
    *("/bin", "/etc", "/lib", "/lib64", "/opt", "/sbin", "/var"),
    *("/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local/bin", "/usr/local/lib"),
)
LINKS = 16


@dataclass(frozen=True)
class HostPython:
    """The Python of this machine, and the paths that a container must mount to run it.

    Attributes
    ----------
    executable
        Interpreter; the path is the same outside and inside.
    paths
        Paths to mount read-only, each at its own path.
    """

    executable: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class PythonLayout:
    """The paths of a Python and its packages. All are absolute and exist.

    Attributes
    ----------
    executables
        Interpreter, and the targets of its symbolic links in order.
    prefixes
        Roots of the environment and of the installation that it is based on.
    libraries
        Its standard library and its shared library, where they are not below a prefix.
    search_path
        Entries of ``sys.path``: site-packages, sources of editable installs, the workflow's
        directory.
    protected
        Directories that no mount may hide.
    """

    executables: tuple[str, ...]
    prefixes: tuple[str, ...]
    libraries: tuple[str, ...]
    search_path: tuple[str, ...]
    protected: tuple[str, ...]


def host_python_of(layout: PythonLayout) -> HostPython:
    """Return the interpreter of a layout, and the paths to mount for it. No I/O.

    Prefixes are mounted as a whole unless that would hide a protected directory. For a Python in
    ``/usr`` the interpreter, the standard library and the packages are mounted; ``/usr`` is not.
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
        return []  # a user whom this machine does not know has none


def _existing(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(os.path.normpath(path) for path in paths if path.startswith("/") and _is(path))


def _is(path: str) -> bool:
    return Path(path).exists()


def _links(executable: str) -> list[str]:
    """Return a program and the targets of its links in order; the container needs all of them."""
    chain = [executable]
    while Path(chain[-1]).is_symlink() and len(chain) < LINKS:
        target = Path(chain[-1]).parent / Path(chain[-1]).readlink()
        chain.append(os.path.normpath(target))
    return chain
