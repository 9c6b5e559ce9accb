"""Selection of the workflow's files to upload to workers without its file system.

They are the project's directories of ``sys.path``, without environments, caches, hidden and large
files, and what ``.gitignore`` files exclude.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from scalable.protocol.code import is_installed

logger = logging.getLogger("scalable.client")

#: Files with patterns of files that are left out, in the syntax of ``.gitignore``.
IGNORE_FILES = (".gitignore", ".scalableignore")
#: Files that only the directory of a project has.
_PROJECT_FILES = (
    *("pyproject.toml", "setup.py", "setup.cfg"),
    *("scalable.yaml", "scalable.yml", "scalable.toml"),
)
#: Names of directories that are never uploaded.
_LEFT_OUT = frozenset({"__pycache__", "site-packages", "dist-packages", "node_modules"})
#: Files that mark a directory as an environment or a cache.
_MARKERS = frozenset({"pyvenv.cfg", "conda-meta", "CACHEDIR.TAG"})
#: Packages of the image. Another copy must not come before them.
_ENGINE = frozenset({"scalable", "dask", "distributed"})
#: Largest number of files. A directory with more is not the directory of a workflow.
MOST_FILES = 20_000


@dataclass(frozen=True)
class Project:
    """Directories of a workflow whose files are uploaded."""

    #: Directory of the project.
    base: Path
    #: Directories to search for modules, in the order of ``sys.path``: the path there, and the path
    #: without symbolic links, which is below the base.
    roots: tuple[tuple[str, Path], ...]

    def named_roots(self) -> tuple[tuple[str, str], ...]:
        """Return the roots with their names relative to the base."""
        return tuple((path, real.relative_to(self.base).as_posix()) for path, real in self.roots)


@dataclass
class Selection:
    """Files of a project that are uploaded, and those that are not."""

    #: Status of each file, by name relative to the base.
    files: dict[str, os.stat_result] = field(default_factory=dict)
    #: Size of each file over the limit, by name.
    too_large: dict[str, int] = field(default_factory=dict)
    #: Names of symbolic links that lead out of the project.
    outside: list[str] = field(default_factory=list)
    #: True if the search stopped at :data:`MOST_FILES` files.
    too_many: bool = False

    @property
    def size(self) -> int:
        """Size of all files together in bytes."""
        return sum(status.st_size for status in self.files.values())


def project_of(entries: Sequence[str]) -> Project | None:
    """Return the project with the workflow's ``sys.path`` entries, or None if it has none."""
    base = _base_of(_start())
    roots: dict[str, Path] = {}
    for entry in entries:
        path = os.path.abspath(entry)  # noqa: PTH100 - links stay: modules have such paths
        real = Path(path).resolve()
        if real.is_relative_to(base) and not _is_shared(real):
            roots[path] = real
        else:
            logger.debug("directory %s is not carried: it is not in project %s", path, base)
    return Project(base, tuple(roots.items())) if roots else None


def _start() -> Path:
    """Return the directory of the script, or without a script, the working directory."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if isinstance(script, str) and Path(script).is_file() and not is_installed(script):
        return Path(script).resolve().parent
    return Path.cwd().resolve()


def _base_of(start: Path) -> Path:
    places = [place for place in (start, *start.parents) if not _is_shared(place)]
    for place in places:
        if (place / ".git").exists():
            return place
    for place in places:
        if any((place / name).is_file() for name in _PROJECT_FILES):
            return place
    return start


def _is_shared(path: Path) -> bool:
    """Return whether a directory has other content: a home directory, ``/tmp``, or one above."""
    places = [Path(tempfile.gettempdir()).resolve(), Path("/tmp")]  # noqa: S108 - never written
    with suppress(RuntimeError):  # a user without a home directory
        places.append(Path.home().resolve())
    return any(place.is_relative_to(path) for place in places)


def select(project: Project, file_limit: int) -> Selection:
    """Return the files of a project up to a size in bytes. ModuleNotFoundError without pathspec."""
    chosen = Selection()
    roots = dict.fromkeys(real for _, real in project.roots)
    for root in roots:
        if any(other != root and root.is_relative_to(other) for other in roots):
            continue  # a part of the other
        _Walk(project.base, root, file_limit, chosen).run()
    return chosen


class _Walk:
    """Search of one directory for files to upload."""

    def __init__(self, base: Path, root: Path, file_limit: int, chosen: Selection) -> None:
        self._base, self._root = base, root
        self._file_limit, self._chosen = file_limit, chosen

    def run(self) -> None:
        above = [self._base, *reversed(self._root.parents)]
        places = [p for p in above if p.is_relative_to(self._base) and p != self._root]
        rules: list[_Rules] = []
        for place in dict.fromkeys(places):
            rules += _rules_in(place, _names_in(place))
        self._walk(self._root, rules, (self._root.resolve(),))

    def _walk(self, directory: Path, rules: list[_Rules], way: tuple[Path, ...]) -> None:
        found = {entry.name: entry for entry in _entries(directory)}
        if directory != self._root and not _MARKERS.isdisjoint(found):
            return
        rules = [*rules, *_rules_in(directory, found)]
        for name, entry in sorted(found.items()):
            if self._chosen.too_many:
                return
            path = directory / name
            if self._is_left_out(path, name, rules):
                continue
            real = path.resolve() if entry.is_symlink() else path
            if entry.is_symlink() and not real.is_relative_to(self._base):
                self._chosen.outside.append(self._name(path))
            elif entry.is_dir():
                if not entry.is_symlink():
                    self._walk(path, rules, way)
                elif real not in way and not any(place.is_relative_to(real) for place in way):
                    self._walk(path, rules, (*way, real))
            else:
                self._take(path)

    def _is_left_out(self, path: Path, name: str, rules: list[_Rules]) -> bool:
        if name.startswith(".") or name in _LEFT_OUT or name.endswith((".pyc", "~")):
            return True
        if path.parent == self._root and name.removesuffix(".py") in _ENGINE:
            return True
        is_directory = path.is_dir()
        for each in reversed(rules):
            excluded = each.excludes(path, is_directory=is_directory)
            if excluded is not None:
                return excluded
        return False

    def _take(self, path: Path) -> None:
        try:
            status = path.stat()
        except OSError:
            return  # it is gone, or a link that leads nowhere
        if not stat.S_ISREG(status.st_mode):
            return
        name = self._name(path)
        if status.st_size > self._file_limit:
            self._chosen.too_large[name] = status.st_size
            return
        self._chosen.files[name] = status
        self._chosen.too_many = len(self._chosen.files) > MOST_FILES

    def _name(self, path: Path) -> str:
        return path.relative_to(self._base).as_posix()


class _Rules:
    """Patterns of one ignore file, which apply below its directory."""

    def __init__(self, directory: Path, lines: Iterable[str]) -> None:
        # Not git itself: the same files are selected on a machine without git, in a directory that
        # is not a repository, and in repositories within repositories.
        from pathspec import GitIgnoreSpec

        self._directory = directory
        self._patterns = GitIgnoreSpec.from_lines(lines)

    def excludes(self, path: Path, *, is_directory: bool) -> bool | None:
        """Return whether the patterns exclude a path, or None if no pattern matches it."""
        name = path.relative_to(self._directory).as_posix()
        return self._patterns.check_file(f"{name}/" if is_directory else name).include


def _rules_in(directory: Path, names: Any) -> Iterator[_Rules]:
    for name in IGNORE_FILES:
        if name in names:
            try:
                text = (directory / name).read_text(errors="surrogateescape")
            except OSError:
                continue
            yield _Rules(directory, text.splitlines())


def _names_in(directory: Path) -> frozenset[str]:
    return frozenset(entry.name for entry in _entries(directory))


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            return list(found)
    except OSError:
        return []


@cache
def can_select() -> bool:
    """Return whether pathspec is installed, which is needed to select the files of a project."""
    try:
        import pathspec  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True
