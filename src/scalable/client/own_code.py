"""Workflow modules in the versions that this process has loaded."""

from __future__ import annotations

import logging
import os
import stat
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import psutil

from scalable import settings
from scalable.errors import ClusterError
from scalable.files import working_directory
from scalable.protocol.code import (
    ENGINE,
    ArchiveEntry,
    CarriedFiles,
    CodeTable,
    ModuleCode,
    digest_in,
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
#: Largest number of names that a message lists.
_SHOWN = 5

#: Time and size of a file.
Stamp = tuple[int, int]
#: Directory of an ignore file, and the file's patterns, which apply below the directory.
Rule = tuple[Path, Any]


@dataclass
class _Loaded:
    """Module as it was when it was first found."""

    spec: Any
    stamp: Stamp | None
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
            before, self._loaded = self._loaded, {}
            # Modules that only tasks import may have changed too, and need another code id.
            self._readings += 1
            self._scan(anew=True)
            now = self._loaded.items()
            return [n for n, known in now if n in before and before[n].code != known.code]

    def _scan(self, *, anew: bool = False) -> None:
        """Read new and reloaded modules. ``anew`` omits the warnings about edited files."""
        self._modules, self._path = len(sys.modules), list(sys.path)
        found = {}
        doubtful: dict[str, list[str]] = {_EDITED: [], _NOT_RELOADED: []}
        for name, module in list(sys.modules.items()):
            spec, known = _spec_of(module), self._loaded.get(name)
            if known is not None and known.spec is spec:
                found[name] = known
                continue
            if (loaded := _loaded(name, spec)) is None:
                continue
            found[name] = loaded
            if known is None:
                if not anew and was_edited(module, spec.origin, loaded.source):
                    doubtful[_EDITED].append(name)
            elif known.code != loaded.code and not runs(module, spec.origin, loaded.source):
                found[name] = replace(known, spec=spec, told=True)
                doubtful[_NOT_RELOADED].append(name)
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
            path, digest = known.code.path, known.code.digest
            if known.told or not Path(path).exists() or not is_edited(path, known.stamp, digest):
                continue
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
    return f"module {names[0]}" if len(names) == 1 else f"modules {_first(names)}"


def _first(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _spec_of(module: ModuleType) -> Any:
    try:
        return vars(module).get("__spec__")
    except TypeError:  # sys.modules may contain any object
        return None


def _loaded(name: str, spec: Any) -> _Loaded | None:
    path = getattr(spec, "origin", None)
    if not isinstance(path, str) or not is_own(name, path):
        return None
    path = str(Path(path).absolute())
    stamp, source = _stamp(path), read_source(path)
    if source is None:
        return None
    is_package = getattr(spec, "submodule_search_locations", None) is not None
    return _Loaded(spec, stamp, ModuleCode(path, digest_of(source), is_package), source)


def _stamp(path: str) -> Stamp | None:
    """Return a file's stamp, or None if there is no file."""
    try:
        return _as_stamp(Path(path).stat())
    except OSError:
        return None


def _as_stamp(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_size


def is_edited(path: str, stamp: Stamp | None, digest: str) -> bool:
    """Return whether a file has another content than with the given stamp, or is gone."""
    return _stamp(path) != stamp and digest_in(path) != digest


#: The modules of this process.
own_code = OwnCode()


def note_code() -> None:
    """Record the loaded versions of modules before they are edited."""
    if here() is None:  # else a task submits tasks, with the modules of its client
        own_code.table()


# Imported -----------------------------------------------------------------------------------------

#: Seconds by which the start time of a process may be wrong.
_CLOCK_S = 2.0
#: Header of a compiled file after its magic number: the kind, and the source's time and size.
_HEADER = struct.Struct("<4xLLL")


@cache
def _process_started_at() -> float:
    return float(psutil.Process().create_time()) + _CLOCK_S


def was_edited(module: ModuleType, path: str, source: bytes) -> bool:
    """Return whether a module's file was edited after its import, as far as that is known."""
    try:
        status = Path(path).stat()
    except OSError:
        return False
    if status.st_mtime < _process_started_at():
        return False
    return _is_compiled_from_another(module, status) or not runs(module, path, source)


def _is_compiled_from_another(module: ModuleType, status: os.stat_result) -> bool:
    """Return whether this process compiled the module from another version of its source."""
    cached = getattr(module.__spec__, "cached", None)
    try:
        # An older compiled file proves nothing: a process that cannot write it leaves it as it is.
        if not cached or Path(cached).stat().st_mtime < _process_started_at():
            return False
        kind, modified, size = _HEADER.unpack_from(Path(cached).read_bytes())
    except (OSError, struct.error):
        return False
    stamp = int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF
    return kind == 0 and (modified, size) != stamp  # other kinds have no time and size


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
#: Largest share of time that checks of the files may take.
LOOK_SHARE = 0.01


@dataclass(frozen=True)
class Snapshot:
    """Files of a workflow as they were at one time."""

    #: Directory of the project.
    base: Path
    #: Description of the archive.
    about: CarriedFiles
    #: Compressed content of the archive.
    data: bytes = field(repr=False)
    #: Stamp and digest of each file, by name.
    files: Mapping[str, tuple[Stamp | None, str]] = field(repr=False)
    #: Names of the edited files of which a warning was logged.
    told: set[str] = field(default_factory=set)

    def digests(self) -> set[str]:
        return {digest for _, digest in self.files.values()}

    def edited(self, except_for: Iterable[str] = ()) -> list[str]:
        """Return the names of changed files, except for the given paths."""
        others = {os.path.realpath(path) for path in except_for}
        paths = {name: str(self.base / name) for name in self.files}
        return [n for n, p in paths.items() if p not in others and is_edited(p, *self.files[n])]


class OwnFiles:
    """Snapshot of this process's workflow, renewed when its modules or directories change."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._table: CodeTable | None = None
        self._result: CodeTable | None = None
        self._next_look = 0.0
        self._lock = threading.RLock()

    def carried_with(self, table: CodeTable) -> tuple[CodeTable, Snapshot | None]:
        """Return the table with the archive of the workflow's files, and the snapshot.
        The snapshot is None, and the table has no archive, if nothing can be uploaded.
        """
        with self._lock:
            if self._table is not table:
                if not self._fits(table):
                    self._snapshot = take_snapshot(table)
                about = None if self._snapshot is None else self._snapshot.about
                self._table, self._result = table, replace(table, files=about)
            elif self._snapshot is not None and time.monotonic() > self._next_look:
                self._warn_of_edits(table, self._snapshot)
            assert self._result is not None
            return self._result, self._snapshot

    def read_again(self, except_for: Iterable[str] = ()) -> list[str]:
        """Drop the snapshot, and return the names of changed files, except ``except_for``."""
        with self._lock:
            changed = [] if self._snapshot is None else self._snapshot.edited(except_for)
            self._table = None
            return changed

    def _fits(self, table: CodeTable) -> bool:
        """Return whether the snapshot has every file from which the table's modules were loaded."""
        before, snapshot = self._table, self._snapshot
        if before is None or before.search_path != table.search_path:
            return False
        if snapshot is None:
            return True
        for module in table.modules.values():
            name = snapshot.about.name_of(module.path)
            differs = name is not None and snapshot.files.get(name, (None, ""))[1] != module.digest
            # A file that was edited after its import is not a version to upload.
            if differs and digest_in(module.path) == module.digest:
                return False
        return True

    def _warn_of_edits(self, table: CodeTable, snapshot: Snapshot) -> None:
        """Warn once about each file, except modules, that is older on the workers."""
        began = time.monotonic()
        edited = snapshot.edited(module.path for module in table.modules.values())
        now = time.monotonic()
        self._next_look = now + max(LOOK_S, (now - began) / LOOK_SHARE)
        if new := [name for name in edited if name not in snapshot.told]:
            snapshot.told.update(new)
            logger.warning(
                "%s changed since the files were uploaded to the workers, which still use the "
                "earlier files; client.sync_code() uploads the files again",
                _first(new),
            )


#: The files of this process's workflow.
own_files = OwnFiles()


def take_snapshot(table: CodeTable) -> Snapshot | None:
    """Pack the workflow's files, or warn and return None if they cannot be uploaded."""
    began = time.monotonic()
    project = project_of(table.search_path)
    if project is None:
        warn_once(
            "no files are uploaded to the workers: the script has no project directory of its "
            "own; workers get the modules that this process has imported"
        )
        return None
    file_limit = _limit(settings.CODE_FILE_LIMIT, FILE_LIMIT)
    limit = _limit(settings.CODE_LIMIT, LIMIT)
    try:
        chosen = Selection(project, file_limit)
    except ModuleNotFoundError:
        warn_once(
            "no files are uploaded to the workers, only modules that this process has "
            "imported: pathspec is missing; install scalable[kubernetes]"
        )
        return None
    if chosen.too_large:
        warn_once(
            f"not uploaded to the workers: {_largest(chosen.too_large)}; files over "
            f"{format_bytes(file_limit)} are left out ({settings.CODE_FILE_LIMIT})"
        )
    if chosen.outside:
        warn_once(
            f"not uploaded to the workers: {', '.join(sorted(chosen.outside)[:_SHOWN])}: "
            "symbolic links that point outside the project"
        )
    if chosen.too_many or chosen.size > limit:
        warn_once(_too_much(project, chosen, limit))
        return None
    entries = list(_read(project, chosen))
    digest, size, data = pack(entries)
    about = CarriedFiles(digest, size, project.named_roots())
    files = {e.name: (_as_stamp(chosen.files[e.name]), digest_of(e.content)) for e in entries}
    logger.debug(
        "archive %s of %s: %d files, %d bytes, %d compressed, in %.3f s",
        *(digest, project.base, len(entries), size, len(data), time.monotonic() - began),
    )
    return Snapshot(project.base, about, data, files)


@cache
def warn_once(message: str) -> None:
    """Log a warning, unless this process has logged the same one before."""
    logger.warning("%s", message)


def _limit(name: str, default: str) -> int:
    """Return a limit in bytes from an environment variable. ClusterError for an invalid size."""
    text = os.environ.get(name) or default
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ClusterError(
            f"{name}={text!r} is not a size: {error}", hint=f"write it as {default}"
        ) from error


def _read(project: WorkflowFiles, chosen: Selection) -> Iterator[ArchiveEntry]:
    for name, status in chosen.files.items():
        try:
            content = (project.base / name).read_bytes()
        except OSError as error:
            logger.warning("not uploaded to the workers: %s: %s", name, error)
            continue
        yield ArchiveEntry(name, content, bool(status.st_mode & 0o100))


def _largest(sizes: Mapping[str, int]) -> str:
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    return _first([f"{name} ({format_bytes(size)})" for name, size in ordered])


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
    repositories = (place for place in places if (place / ".git").exists())
    projects = (p for p in places if any((p / name).is_file() for name in _PROJECT_FILES))
    return next(chain(repositories, projects), start)


def _is_shared(path: Path) -> bool:
    """Return whether a directory also holds unrelated files, like ``/tmp`` and home directories."""
    places = [Path(tempfile.gettempdir()).resolve(), Path("/tmp")]  # noqa: S108 - never written
    with suppress(RuntimeError):  # a user without a home directory
        places.append(Path.home().resolve())
    return any(place.is_relative_to(path) for place in places)


class Selection:
    """Files of a project of at most ``file_limit`` bytes, and files that are not uploaded.
    Raises ModuleNotFoundError without pathspec.
    """

    def __init__(self, project: WorkflowFiles, file_limit: int) -> None:
        # Not git itself: the same files are selected on a machine without git, in a directory that
        # is not a repository, and in repositories within repositories.
        from pathspec import GitIgnoreSpec

        self._parsed, self._base, self._file_limit = GitIgnoreSpec, project.base, file_limit
        #: Status of each file, by name relative to the base.
        self.files: dict[str, os.stat_result] = {}
        #: Size of each file over the limit, by name.
        self.too_large: dict[str, int] = {}
        #: Names of symbolic links that lead out of the project.
        self.outside: list[str] = []
        roots = dict.fromkeys(real for _, real in project.roots)
        for root in roots:
            if any(other in roots for other in root.parents):
                continue  # a part of the other
            above = (place for place in reversed(root.parents) if place.is_relative_to(self._base))
            self._walk(root, [rule for place in above for rule in self._rules_in(place)], (root,))

    @property
    def size(self) -> int:
        return sum(status.st_size for status in self.files.values())

    @property
    def too_many(self) -> bool:
        """True if the search stopped after :data:`MOST_FILES` files."""
        return len(self.files) > MOST_FILES

    def _walk(self, directory: Path, rules: list[Rule], way: tuple[Path, ...]) -> None:
        """Search a directory, given the directories on the way to it from its root."""
        found = {entry.name: entry for entry in _entries(directory)}
        is_root = len(way) == 1
        if not is_root and not _MARKERS.isdisjoint(found):
            return
        rules = [*rules, *self._rules_in(directory)]
        for name, entry in sorted(found.items()):
            if self.too_many:
                return
            path = directory / name
            if _is_left_out(path, rules, is_directory=entry.is_dir()):
                continue
            if is_root and name.removesuffix(".py") in ENGINE:
                continue  # another copy must not come before that of the image
            real = path.resolve() if entry.is_symlink() else path
            if not real.is_relative_to(self._base):
                self.outside.append(self._name(path))
            elif not entry.is_dir():
                self._take(path)
            elif not any(place.is_relative_to(real) for place in way):
                self._walk(path, rules, (*way, real))

    def _rules_in(self, directory: Path) -> Iterator[Rule]:
        for name in IGNORE_FILES:
            with suppress(OSError):
                text = (directory / name).read_text(errors="surrogateescape")
                yield directory, self._parsed.from_lines(text.splitlines())

    def _take(self, path: Path) -> None:
        try:
            status = path.stat()
        except OSError:
            return  # it is gone, or a link that leads nowhere
        if stat.S_ISREG(status.st_mode):
            if status.st_size > self._file_limit:
                self.too_large[self._name(path)] = status.st_size
            else:
                self.files[self._name(path)] = status

    def _name(self, path: Path) -> str:
        return path.relative_to(self._base).as_posix()


def _is_left_out(path: Path, rules: list[Rule], *, is_directory: bool) -> bool:
    name = path.name
    if name.startswith(".") or name in _LEFT_OUT or name.endswith((".pyc", "~")):
        return True
    for directory, patterns in reversed(rules):
        below = path.relative_to(directory).as_posix()
        excluded: bool | None = patterns.check_file(f"{below}/" if is_directory else below).include
        if excluded is not None:
            return excluded
    return False


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            return list(found)
    except OSError:
        return []
