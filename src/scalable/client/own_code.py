"""Workflow modules in the versions that this process has loaded."""

from __future__ import annotations

import logging
import os
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import psutil

from scalable import settings
from scalable.errors import ClusterError
from scalable.files import working_directory
from scalable.protocol.code import (
    ArchiveEntry,
    CarriedFiles,
    CodeTable,
    ModuleCode,
    digest_of,
    is_installed,
    is_own,
    lasting,
    own_search_path,
    pack,
    read_source,
)
from scalable.protocol.importing import here
from scalable.protocol.operations import PROCESS
from scalable.units import format_bytes, parse_bytes

logger = logging.getLogger("scalable.client")

#: Seconds between two checks of the source files.
LOOK_S = 2.0
_EDITED = (
    "%s changed after this process had imported it, but before its version was noted: tasks run "
    "the file as it is now; restart the process, or reload the module"
)
_NOT_RELOADED = (
    "%s was not reloaded completely: tasks use the earlier version on every worker; fix the "
    "file and reload it, or call client.sync_code()"
)
#: Largest size in bytes of the sources that are sent. Beyond it, workers need the files.
MOST_SOURCES = 1 << 24


@dataclass
class _Loaded:
    """Module as it was when it was first found."""

    spec: Any
    stamp: tuple[int, int]
    code: ModuleCode
    source: bytes
    told: bool = False


class OwnCode:
    """Versions of the workflow's modules in this process, as first found or last reloaded."""

    def __init__(self) -> None:
        self._loaded: dict[str, _Loaded] = {}
        self._table: CodeTable | None = None
        self._path: list[str] = []
        self._modules = 0
        self._looked_at = 0.0
        self._readings = 0
        self._lock = threading.Lock()

    def table(self) -> CodeTable:
        """Return the current table: the same object as long as nothing has changed."""
        # Checked for each task: no function is called as long as nothing has changed.
        modules = sys.modules
        changed = self._table is None or len(modules) != self._modules or sys.path != self._path
        for name, known in () if changed else self._loaded.items():
            if getattr(modules.get(name), "__spec__", None) is not known.spec:
                changed = True
                break
        if changed:
            with self._lock:
                self._scan()
        if time.monotonic() - self._looked_at > LOOK_S:
            self._warn_of_edits()
        assert self._table is not None
        return self._table

    def sources(self) -> dict[str, bytes]:
        """Return all modules' sources by digest, or an empty dict if their total is too large."""
        found = {loaded.code.digest: loaded.source for loaded in self._loaded.values()}
        return found if sum(map(len, found.values())) <= MOST_SOURCES else {}

    def read_again(self) -> list[str]:
        """Read the files again, and return the names of the modules that have changed."""
        with self._lock:
            before = {name: loaded.code for name, loaded in self._loaded.items()}
            self._loaded.clear()
            # Modules that only tasks import may have changed too, and need another code id.
            self._readings += 1
            self._scan(anew=True)
            return [
                n for n, known in self._loaded.items() if before.get(n, known.code) != known.code
            ]

    def _scan(self, *, anew: bool = False) -> None:
        """Read new and reloaded modules. ``anew`` omits the warnings about edited files."""
        self._modules, self._path = len(sys.modules), list(sys.path)
        found = {}
        doubtful: dict[str, list[str]] = {_EDITED: [], _NOT_RELOADED: []}
        for name, module in list(sys.modules.items()):
            spec = _spec_of(module)
            known = self._loaded.get(name)
            if known is not None and known.spec is spec:
                found[name] = known
            elif spec is not None and (loaded := _loaded(name, spec)) is not None:
                found[name] = loaded
                path, source = spec.origin, loaded.source
                if anew or (known is not None and known.code == loaded.code):
                    continue
                if known is not None and not runs(module, path, source):
                    found[name] = replace(known, spec=spec, told=True)
                    doubtful[_NOT_RELOADED].append(name)
                elif known is None and was_edited(module, path, source):
                    doubtful[_EDITED].append(name)
        self._loaded = found
        for words, names in doubtful.items():
            if names:
                logger.warning(words, names_of(names))
        codes = {name: loaded.code for name, loaded in found.items()}
        path = own_search_path(entry or str(working_directory()) for entry in lasting(self._path))
        last = self._table
        if anew or last is None or (codes, path) != (last.modules, last.search_path):
            process = f"{PROCESS}-{self._readings}" if self._readings else PROCESS
            self._table = CodeTable(process, codes, path)
            logger.debug("code %s: %d modules of the workflow", self._table.id, len(codes))

    def _warn_of_edits(self) -> None:
        """Warn once about each module whose file has changed since this process loaded it."""
        self._looked_at = time.monotonic()
        edited = []
        for name, known in list(self._loaded.items()):
            stamp = _stamp(known.code.path)
            if known.told or stamp is None or stamp == known.stamp:
                continue
            known.stamp = stamp
            if digest_of(read_source(known.code.path) or b"") != known.code.digest:
                known.told = True
                edited.append(name)
        if edited:
            logger.warning(
                "%s changed since this process imported it: tasks on all workers run the imported "
                "version, until you call importlib.reload() or client.sync_code()",
                names_of(edited),
            )


def names_of(modules: Iterable[str]) -> str:
    """Return module names for a message, shortened to the first few."""
    names = sorted(modules)
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"module {shown}" if len(names) == 1 else f"modules {shown}"


def _spec_of(module: ModuleType) -> Any:
    try:
        return vars(module).get("__spec__")
    except TypeError:  # sys.modules may contain any object
        return None


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _loaded(name: str, spec: Any) -> _Loaded | None:
    path = getattr(spec, "origin", None)
    if not isinstance(path, str) or not is_own(name, path):
        return None
    stamp, source = _stamp(path), read_source(path)
    if stamp is None or source is None:
        return None
    is_package = getattr(spec, "submodule_search_locations", None) is not None
    return _Loaded(
        spec, stamp, ModuleCode(str(Path(path).absolute()), digest_of(source), is_package), source
    )


#: The modules of this process.
own_code = OwnCode()


def note_code() -> None:
    """Record the loaded versions of modules before they are edited."""
    if here() is None:  # else a task submits tasks, with the modules of its client
        own_code.table()


# Imported -----------------------------------------------------------------------------------------

#: Seconds by which the start time of a process may be wrong.
_CLOCK_S = 2.0
#: Size in bytes of the header of a compiled file, and its parts with the kind of the file, and the
#: time and the size of the source.
_HEADER = 16
_KIND, _TIME, _SIZE = slice(4, 8), slice(8, 12), slice(12, 16)


@cache
def _process_started_at() -> float:
    return float(psutil.Process().create_time()) + _CLOCK_S


def was_edited(module: ModuleType, path: str, source: bytes) -> bool:
    """Return whether a module's file was edited after its import, as far as that is known."""
    try:
        status = Path(path).stat()
        if status.st_mtime < _process_started_at():
            return False
        if _is_compiled_from_another(module, int(status.st_mtime), status.st_size):
            return True
    except OSError:
        return False
    return not runs(module, path, source)


def _is_compiled_from_another(module: ModuleType, modified: int, size: int) -> bool:
    """Return whether this process compiled the module from another version of its source."""
    cached = getattr(module.__spec__, "cached", None)
    try:
        # An older compiled file proves nothing: a process that cannot write it leaves it as it is.
        if not cached or Path(cached).stat().st_mtime < _process_started_at():
            return False
        with Path(cached).open("rb") as file:
            header = file.read(_HEADER)
    except OSError:
        return False
    if len(header) < _HEADER or any(header[_KIND]):
        return False
    stamp = [int.from_bytes(header[part], "little") for part in (_TIME, _SIZE)]
    return stamp != [modified & 0xFFFFFFFF, size & 0xFFFFFFFF]


def runs(module: ModuleType, path: str, source: bytes) -> bool:
    """Return whether the functions that a module and a source share are equal."""
    try:
        compiled = compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    known: dict[str, list[CodeType]] = {}
    for code in _codes(compiled):
        known.setdefault(code.co_qualname, []).append(code)
    return all(
        function.__code__ in known.get(function.__code__.co_qualname, [function.__code__])
        for function in _functions(module)
        if function.__code__.co_filename == path
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Yield the functions of a module, and those of its classes."""
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        for each in [value, *vars(value).values()] if isinstance(value, type) else [value]:
            function = getattr(each, "__func__", each)  # of a static method or a class method
            if isinstance(function, FunctionType):
                yield function


# Files for remote clusters ------------------------------------------------------------------------


FILE_LIMIT, LIMIT = "10MiB", "64MiB"
#: Seconds between two checks of the files, and the largest share of time that checks may take.
LOOK_SHARE = 0.01
_SHOWN = 5


@dataclass(frozen=True)
class Snapshot:
    """Files of a workflow as they were at one time."""

    #: Their directories.
    project: WorkflowFiles
    #: Description of the archive.
    about: CarriedFiles
    #: Compressed content of the archive.
    data: bytes = field(repr=False)
    #: Digest of each file, by name.
    digests: Mapping[str, str] = field(repr=False)
    #: Time and size of each file, by name.
    stamps: Mapping[str, tuple[int, int]] = field(repr=False)


class OwnFiles:
    """Snapshot of this process's workflow, renewed when its modules or directories change."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._table: CodeTable | None = None
        self._result: CodeTable | None = None
        self._told: set[str] = set()
        self._next_look = 0.0
        self._lock = threading.RLock()

    def carried_with(self, table: CodeTable) -> tuple[CodeTable, Snapshot | None]:
        """Return the table with the archive of the workflow's files, and the snapshot.
        The snapshot is None, and the table has no archive, if nothing can be uploaded.
        """
        with self._lock:
            if self._result is None or self._table is not table:
                if self._table is None or not self._fits(table):
                    self._snapshot = self._take(table)
                about = None if self._snapshot is None else self._snapshot.about
                self._table, self._result = table, replace(table, files=about)
            elif time.monotonic() > self._next_look:
                self._warn_of_edits()
            return self._result, self._snapshot

    def read_again(self, except_for: Iterable[str] = ()) -> list[str]:
        """Drop the snapshot, and return the names of changed files, except ``except_for``."""
        with self._lock:
            changed = self._edited(except_for)
            self._table = self._result = None
            return changed

    def digests(self) -> set[str]:
        snapshot = self._snapshot
        return set() if snapshot is None else set(snapshot.digests.values())

    def _fits(self, table: CodeTable) -> bool:
        """Return whether the snapshot has every file from which the table's modules were loaded."""
        before, snapshot = self._table, self._snapshot
        if before is None or before.search_path != table.search_path:
            return False
        if snapshot is None:
            return True
        for module in table.modules.values():
            name = snapshot.about.name_of(module.path)
            differs = name is not None and snapshot.digests.get(name) != module.digest
            # A file that was edited after its import is not a version to upload.
            if differs and digest_of(read_source(module.path) or b"") == module.digest:
                return False
        return True

    # Taking a snapshot ----------------------------------------------------------------------------

    def _take(self, table: CodeTable) -> Snapshot | None:
        began = time.monotonic()
        project = project_of(table.search_path)
        if project is None:
            self._tell(
                "no files are uploaded to the workers: the script has no project directory of its "
                "own; workers get the modules that this process has imported"
            )
            return None
        if not can_select():
            self._tell(
                "no files are uploaded to the workers, only modules that this process has "
                "imported: pathspec is missing; install scalable[kubernetes]"
            )
            return None
        file_limit, limit = (
            _limit(settings.CODE_FILE_LIMIT, FILE_LIMIT),
            _limit(settings.CODE_LIMIT, LIMIT),
        )
        chosen = select(project, file_limit)
        self._tell_left_out(chosen, file_limit)
        if chosen.too_many or chosen.size > limit:
            self._tell(_too_much(project, chosen, limit))
            return None
        entries = dict(_read(project, chosen))
        digest, size, data = pack(entries.values())
        snapshot = Snapshot(
            project,
            CarriedFiles(digest, size, project.named_roots()),
            data,
            {name: digest_of(entry.content) for name, entry in entries.items()},
            {name: _stamp_of(chosen.files[name]) for name in entries},
        )
        logger.debug(
            "archive %s of %s: %d files, %d bytes, %d compressed, in %.3f s",
            *(digest, project.base, len(entries), size, len(data), time.monotonic() - began),
        )
        return snapshot

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            logger.warning("%s", message)

    def _tell_left_out(self, chosen: Selection, file_limit: int) -> None:
        if chosen.too_large:
            self._tell(
                f"not uploaded to the workers: {_largest(chosen.too_large)}; files over "
                f"{format_bytes(file_limit)} are left out ({settings.CODE_FILE_LIMIT})"
            )
        if chosen.outside:
            self._tell(
                f"not uploaded to the workers: {', '.join(sorted(chosen.outside)[:_SHOWN])}: "
                "symbolic links that point outside the project"
            )

    # Edits ----------------------------------------------------------------------------------------

    def _edited(self, except_for: Iterable[str]) -> list[str]:
        """Return the names of the snapshot's files whose content has changed."""
        snapshot = self._snapshot
        if snapshot is None:
            return []
        base = snapshot.project.base
        known = {os.path.realpath(path) for path in except_for}
        changed = []
        for name, stamp in snapshot.stamps.items():
            if str(base / name) in known:
                continue
            try:
                now = _stamp_of((base / name).stat())
            except OSError:
                now = (0, 0)
            if now != stamp:
                content = read_source(str(base / name))
                if content is None or digest_of(content) != snapshot.digests[name]:
                    changed.append(name)
        return changed

    def _warn_of_edits(self) -> None:
        """Warn once about each file, except modules, that is older on the workers."""
        began = time.monotonic()
        assert self._table is not None
        edited = self._edited(module.path for module in self._table.modules.values())
        self._next_look = time.monotonic() + max(LOOK_S, (time.monotonic() - began) / LOOK_SHARE)
        new = [name for name in edited if name not in self._told]
        if new:
            self._told.update(new)
            logger.warning(
                "%s changed since the files were uploaded to the workers, which still use the "
                "earlier files; client.sync_code() uploads the files again",
                ", ".join(new[:_SHOWN]) + (f" and {len(new) - _SHOWN} more" * (len(new) > _SHOWN)),
            )


def _limit(name: str, default: str) -> int:
    """Return a limit in bytes from an environment variable. ClusterError for an invalid size."""
    text = os.environ.get(name) or default
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ClusterError(
            f"{name}={text!r} is not a size: {error}", hint=f"write it as {default}"
        ) from error


def _read(project: WorkflowFiles, chosen: Selection) -> Iterable[tuple[str, ArchiveEntry]]:
    for name, status in chosen.files.items():
        try:
            content = (project.base / name).read_bytes()
        except OSError as error:
            logger.warning("not uploaded to the workers: %s: %s", name, error)
            continue
        yield name, ArchiveEntry(name, content, bool(status.st_mode & 0o100))


def _stamp_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size


def _largest(sizes: Mapping[str, int]) -> str:
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{name} ({format_bytes(size)})" for name, size in ordered[:_SHOWN])
    return shown + (f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else "")


def _too_much(project: WorkflowFiles, chosen: Selection, limit: int) -> str:
    """Return the message that a project is too large, which names its largest parts."""
    if chosen.too_many:
        amount = f"has more than {MOST_FILES:,} files"
    else:
        amount = f"has {format_bytes(chosen.size)} of files, over the limit of "
        amount += f"{format_bytes(limit)} ({settings.CODE_LIMIT})"
    parts: dict[str, int] = {}
    for name, status in chosen.files.items():
        path = Path(name)
        part = f"{path.parent.as_posix()}/" if path.parent.name else name
        parts[part] = parts.get(part, 0) + status.st_size
    return (
        f"no files are uploaded to the workers, only modules that this process has imported: "
        f"{project.base} {amount}; the largest are {_largest(parts)}; "
        "exclude files with a .gitignore or .scalableignore file"
    )


#: The files of this process's workflow.
own_files = OwnFiles()


# Workflow files -----------------------------------------------------------------------------------

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
class WorkflowFiles:
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
        return sum(status.st_size for status in self.files.values())


def project_of(entries: Sequence[str]) -> WorkflowFiles | None:
    """Return the project that contains the workflow's ``sys.path`` entries, or None."""
    base = _base_of(_start())
    roots: dict[str, Path] = {}
    for entry in entries:
        path = os.path.abspath(entry)  # noqa: PTH100 - links stay: modules have such paths
        real = Path(path).resolve()
        if real.is_relative_to(base) and not _is_shared(real):
            roots[path] = real
        else:
            logger.debug("directory %s is not uploaded: it is not in project %s", path, base)
    return WorkflowFiles(base, tuple(roots.items())) if roots else None


def _start() -> Path:
    """Return the directory of the script, or without a script, the working directory."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if isinstance(script, str) and Path(script).is_file() and not is_installed(script):
        return Path(script).resolve().parent
    return working_directory().resolve()


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
    """Return whether a directory also holds unrelated files, like ``/tmp`` and home directories."""
    places = [Path(tempfile.gettempdir()).resolve(), Path("/tmp")]  # noqa: S108 - never written
    with suppress(RuntimeError):  # a user without a home directory
        places.append(Path.home().resolve())
    return any(place.is_relative_to(path) for place in places)


def select(project: WorkflowFiles, file_limit: int) -> Selection:
    """Select files of at most ``file_limit`` bytes. ModuleNotFoundError without pathspec."""
    chosen = Selection()
    roots = dict.fromkeys(real for _, real in project.roots)
    for root in roots:
        if any(other != root and root.is_relative_to(other) for other in roots):
            continue  # a part of the other
        _DirectoryWalk(project.base, root, file_limit, chosen).run()
    return chosen


class _DirectoryWalk:
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
    """Patterns of one ignore file. They apply below the file's directory."""

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
    """Return whether pathspec is installed. It is needed to select a project's files."""
    try:
        import pathspec  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True
