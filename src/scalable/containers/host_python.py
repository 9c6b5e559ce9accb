"""Which paths of this machine a container needs in order to run this machine's Python."""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

#: Directories that an image fills itself: mounted over, they would hide what it is there for.
SYSTEM_DIRECTORIES = (
    *("/bin", "/etc", "/lib", "/lib64", "/opt", "/sbin", "/var"),
    *("/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local/bin", "/usr/local/lib"),
)
LINKS = 16


@dataclass(frozen=True)
class HostPython:
    """A Python of the host, as a container gets to see it.

    Attributes
    ----------
    executable
        Its interpreter: the same path outside and inside.
    paths
        What is mounted, read-only, each at the path that it has outside.
    """

    executable: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class PythonLayout:
    """Where a Python and its packages lie. All paths are absolute and exist.

    Attributes
    ----------
    executables
        The interpreter first, then what it links to, link by link.
    prefixes
        Roots of the environment and of the installation that it was made from.
    libraries
        Its standard library and its shared library, where they are not below a prefix.
    search_path
        Where modules are found: site-packages, sources of editable installs, the workflow's
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
    """Decide what must be mounted for a Python. Pure.

    Roots are mounted whole, except where that would hide a protected directory: of a Python in
    ``/usr`` come its interpreter, its standard library and its packages, and the image's ``/usr``
    stays.
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
    """Leave out what lies below another path."""
    kept: list[str] = []
    for path in sorted(set(paths), key=lambda path: PurePath(path).parts):
        if not kept or not PurePath(path).is_relative_to(kept[-1]):
            kept.append(path)
    return tuple(kept)


def read_host_python() -> HostPython:
    """The Python that runs this, with its packages."""
    return host_python_of(read_layout())


def read_layout() -> PythonLayout:
    """Where the Python that runs this lies."""
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
        # Entries that .pth files add are on the search path already; the empty one is wherever we
        # happen to be.
        search_path=_existing((*sys.path, str(source))),
        protected=(*SYSTEM_DIRECTORIES, tempfile.gettempdir(), str(Path.home())),
    )


def _existing(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(os.path.normpath(path) for path in paths if path.startswith("/") and _is(path))


def _is(path: str) -> bool:
    return Path(path).exists()


def _links(executable: str) -> list[str]:
    """A program and what it links to, link by link; each link must be there inside too."""
    chain = [executable]
    while Path(chain[-1]).is_symlink() and len(chain) < LINKS:
        target = Path(chain[-1]).parent / Path(chain[-1]).readlink()
        chain.append(os.path.normpath(target))
    return chain
