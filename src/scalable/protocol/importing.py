"""Import of a workflow's modules in the versions that a client has loaded.

Runs in worker and scheduler processes. The user's own process has no :class:`Importer`, and keeps
the modules that it has loaded.
"""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import cache_from_source, spec_from_file_location
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from scalable.protocol.code import (
    STANDS_FOR_SCRIPT,
    CarriedFiles,
    CodeTable,
    digest_in,
    digest_of,
    is_own,
    locate,
    read_source,
    unpack,
)
from scalable.protocol.private_directory import PrivateDirectory, check_private

logger = logging.getLogger("scalable.protocol")

#: Number of versions of the workflow's modules that stay loaded.
VERSIONS_KEPT = 4
#: Maximum number of tables. Each process that uses the cluster sends one.
TABLES_KEPT = 1000
#: Seconds by which a compiled file must be younger than its source to be trusted, because its
#: header has the source's time in whole seconds. Other compiled files are neither read nor written,
#: since the user's process would read them at its next reload.
_SURE_S = 2.0

#: Path of each loaded module, and digest of the source that was loaded.
Origins = dict[str, tuple[str, str | None]]

_here: list[Importer] = []


def here() -> Importer | None:
    """Return this process's importer, or None in the user's own process."""
    return _here[0] if _here else None


class _Loader(SourceFileLoader):
    """Loads one version of a module, from ``source`` if given, and records its digest."""

    def __init__(self, name: str, path: str, importer: Importer, source: bytes | None) -> None:
        super().__init__(name, path)
        self._importer, self._source = importer, source

    def get_data(self, path: str) -> bytes:
        if path == self.path and self._source is not None:
            return self._source
        return super().get_data(path)

    def path_stats(self, path: str) -> Mapping[str, Any]:
        stats = super().path_stats(path)
        if self._source is not None or not _is_surely_compiled_from(path, stats["mtime"]):
            raise OSError("the source must be compiled")
        return stats

    def exec_module(self, module: ModuleType) -> None:
        digest = digest_in(self.path) if self._source is None else digest_of(self._source)
        self._importer.loaded[self.name] = self.path, digest
        super().exec_module(module)


def _is_surely_compiled_from(source: str, modified: float) -> bool:
    try:
        compiled = Path(cache_from_source(source)).stat().st_mtime
    except (OSError, NotImplementedError):
        compiled = time.time()  # a compiled file would be written now
    return compiled - modified > _SURE_S


class CodeVersions:
    """Module tables by code id, and sources by digest, of the clients that were active last."""

    def __init__(self) -> None:
        #: Code id that imports of this process follow now, or empty before the first task.
        self.current = ""
        self.tables: OrderedDict[str, CodeTable] = OrderedDict()
        self.sources: dict[str, bytes] = {}
        self.lock = threading.RLock()

    def add(self, table: CodeTable, sources: Mapping[str, bytes], code: str = "") -> None:
        """Store a table under ``code`` (by default its own id), and sources by digest."""
        with self.lock:
            self.tables[code or table.id] = table
            self.tables.move_to_end(code or table.id)
            self.sources.update(sources)
            if len(self.tables) > TABLES_KEPT:
                del self.tables[next(code for code in self.tables if code != self.current)]
                named = {m.digest for kept in self.tables.values() for m in kept.modules.values()}
                self.sources = {d: source for d, source in self.sources.items() if d in named}

    def find(self, code: str) -> CodeTable | None:
        """Return the table of a code id, which is in use: others are dropped before it."""
        with self.lock:
            if code in self.tables:
                self.tables.move_to_end(code)
            return self.tables.get(code)


class Importer(MetaPathFinder):
    """Finds the workflow's modules in the version that the running task needs.
    ``name`` is used in messages. ``directory`` is a private one for unpacked archives.
    """

    def __init__(
        self, name: str, *, shares_files: bool = True, directory: str | Path | None = None
    ) -> None:
        self.name, self.shares_files = name, shares_files
        self.trees = UnpackedArchives(directory)
        self.versions = CodeVersions()
        self.loaded: Origins = {}
        self._kept: dict[str, tuple[dict[str, ModuleType], Origins]] = {}

    def install(self) -> None:
        """Use this importer in this process from now on."""
        _here[:] = [self]
        # After the finder of built-in modules: a file named like one does not hide it.
        finders = sys.meta_path
        place = finders.index(PathFinder) if PathFinder in finders else len(finders)
        finders.insert(place, self)

    # Code of tasks --------------------------------------------------------------------------------

    def knows(self, code: str) -> bool:
        """Return whether tasks with the given code id can run here. The empty id always can."""
        if code == self.versions.current or not code:
            return True
        table = self.versions.tables.get(code)
        return table is not None and self.missing_files(table) is None

    def missing_files(self, table: CodeTable) -> CarriedFiles | None:
        """Return the archive that is needed before tasks with the given table can run, or None."""
        return None if self.shares_files or table.files in self.trees else table.files

    def missing_sources(self, table: CodeTable) -> list[str]:
        """Return the digests of missing sources. Store available sources before files change."""
        stored = self.versions.sources
        wanted = {m.digest: self._path(table, m.path) for m in table.modules.values()}
        read = {d: read_source(path) or b"" for d, path in wanted.items() if d not in stored}
        found = {digest: source for digest, source in read.items() if digest_of(source) == digest}
        with self.versions.lock:
            self.versions.sources.update(found)
        return [digest for digest in read if digest not in found]

    def drop_old_files(self, running: Iterable[str] = ()) -> None:
        """Remove the oldest archives, except those of the ``running`` and the current code ids."""
        tables = (self.versions.tables.get(code) for code in (*running, self.versions.current))
        self.trees.drop_old({t.files.digest for t in tables if t is not None and t.files})

    def _path(self, table: CodeTable, path: str) -> str:
        """Return this process's path of a client's file."""
        if self.shares_files and Path(path).is_file():
            return path
        return self.trees.path_of(table.files, path) or path

    # Imports --------------------------------------------------------------------------------------

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a module's spec. Raises ImportError if only another version is found."""
        table = self.versions.tables.get(self.versions.current)
        known = None if table is None else table.modules.get(fullname)
        if table is not None and known is not None:
            place = self._path(table, known.path)
            on_disk = digest_in(place) == known.digest
            source = None if on_disk else self.versions.sources.get(known.digest)
            if on_disk or source is not None:
                places = [str(Path(place).parent)] if known.is_package else None
                return spec_from_file_location(
                    fullname,
                    place,
                    loader=_Loader(fullname, place, self, source),
                    submodule_search_locations=places,
                )
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            origin = spec.origin or ""
            if known is not None and digest_in(origin) != known.digest:
                raise ImportError(
                    f"Module {fullname!r} on {self.name}: {origin} differs from the version that "
                    "the caller has imported, whose source was not uploaded. Make the files equal, "
                    "or call client.sync_code() to run the files as they are now.",
                    name=fullname,
                    path=origin,
                )
            if is_own(fullname, origin):
                spec.loader = _Loader(fullname, origin, self, None)
        return spec

    def use(self, code: str) -> None:
        """Use the module versions of a known code id from now on. Running tasks keep theirs."""
        if code == self.versions.current or not code:
            return
        with self.versions.lock:
            table = self.versions.find(code)
            if code == self.versions.current or table is None:
                return
            names = sorted({*table.modules, *self.loaded})
            differing = [n for n in names if n in sys.modules and self._differs(n, table)]
            if differing:
                logger.info("modules are loaded again: %s", ", ".join(differing))
                self._unload(table, code)
            self.versions.current = code
            self.trees.use(table.files)
            sys.path.extend(entry for entry in table.search_path if entry not in sys.path)
            importlib.invalidate_caches()

    def _differs(self, name: str, table: CodeTable) -> bool:
        """Return whether a loaded module is not the one that an import would load now."""
        if name not in self.loaded:  # another finder has loaded it
            path = getattr(sys.modules[name], "__file__", None) or ""
            self.loaded[name] = path, digest_in(path)
        path, digest = self.loaded[name]
        known = table.modules.get(name)
        if known is not None:
            place = self._path(table, known.path)
            return digest != known.digest or os.path.realpath(path) != os.path.realpath(place)
        # Only tasks import it: the files are the only version there is.
        return digest != digest_in(path) or self.trees.is_outdated(path, table.files)

    def _unload(self, table: CodeTable, code: str) -> None:
        """Remove the workflow's modules, and restore modules loaded earlier for the code."""
        names = {*table.modules, *self.loaded}
        modules = {name: sys.modules.pop(name) for name in names if name in sys.modules}
        self._kept[self.versions.current] = modules, self.loaded
        while len(self._kept) > VERSIONS_KEPT:
            del self._kept[next(iter(self._kept))]
        modules, self.loaded = self._kept.pop(code, ({}, {}))
        sys.modules.update(modules)


def locate_here(error: BaseException, call: str) -> None:
    """Add this process to the message of a ModuleNotFoundError, unless it is the user's own."""
    if (importer := here()) is not None:
        locate(error, importer.name, call)


# Unpacked archives --------------------------------------------------------------------------------

#: Number of archives that stay unpacked, apart from those of running tasks.
TREES_KEPT = 4
_NAME = "carried"


class UnpackedArchives:
    """Unpacked archives by digest, in a given private directory or one created on demand."""

    def __init__(self, directory: str | Path | None = None) -> None:
        self._given = directory
        #: Directories by digest, the last used one last.
        self._trees: dict[str, Path] = {}
        self._on_path: list[str] = []
        self._lock = threading.Lock()

    def __contains__(self, files: CarriedFiles | None) -> bool:
        return files is not None and files.digest in self._trees

    def add(self, files: CarriedFiles, data: bytes) -> None:
        """Unpack an archive if necessary. Raises ArchiveError for a wrong archive."""
        with self._lock:
            if files.digest in self._trees:
                return
            place = self._directory / files.digest
            unpack(data, files, place)
            self._trees[files.digest] = place
        logger.debug("archive %s is unpacked in %s", files.digest, place)

    @cached_property
    def _own(self) -> PrivateDirectory:
        return PrivateDirectory()

    @cached_property
    def _directory(self) -> Path:
        place = Path(self._given or self._own.path) / _NAME
        place.mkdir(mode=0o700, exist_ok=True)
        check_private(place)
        return place

    def path_of(self, files: CarriedFiles | None, path: str) -> str | None:
        """Return where a client's file is unpacked, or None if it is not in the archive."""
        tree = None if files is None else self._trees.get(files.digest)
        name = None if files is None else files.name_of(path)
        return None if tree is None or name is None else str(tree / name)

    def use(self, files: CarriedFiles | None) -> None:
        """Put an archive's directories on ``sys.path`` in place of another archive's."""
        roots = []
        if files is not None and (tree := self._trees.pop(files.digest, None)) is not None:
            self._trees[files.digest] = tree
            roots = [os.path.normpath(tree / name) for _, name in files.roots]
        if roots != self._on_path:
            sys.path[:] = [entry for entry in sys.path if entry not in self._on_path]
            sys.path.extend(roots)
            self._on_path = roots

    def is_outdated(self, path: str, files: CarriedFiles | None) -> bool:
        """Return whether a file belongs to an archive other than the given one."""
        current = None if files is None else files.digest
        trees = list(self._trees.items())
        return any(d != current and path.startswith(f"{tree}{os.sep}") for d, tree in trees)

    def drop_old(self, in_use: Collection[str]) -> None:
        """Remove the least recently used archives that no running task needs (``in_use``)."""
        with self._lock:
            for digest in list(self._trees)[:-TREES_KEPT]:
                if digest not in in_use:
                    shutil.rmtree(self._trees.pop(digest), ignore_errors=True)


# The user's script --------------------------------------------------------------------------------

_SCRIPT = "__main__"
#: Module that stands for the user's script in this worker process.
_script: list[ModuleType] = []


def stand_for_script() -> None:
    """Make this worker process's ``__main__`` represent the user's script from now on."""
    _script[:] = [ModuleType(_SCRIPT)]
    setattr(_script[0], STANDS_FOR_SCRIPT, True)
    # The program's own module stays: its functions use their globals.
    sys.modules["__scalable_worker__"] = sys.modules[_SCRIPT]
    # The second name is that in processes which multiprocessing starts.
    sys.modules[_SCRIPT] = sys.modules["__mp_main__"] = _script[0]


def show_script(function: Any) -> None:
    """Add the names that a function of the user's script uses to a worker's ``__main__``.
    ``multiprocessing`` in tasks pickles functions by their name. Does nothing outside workers.
    """
    if not _script:
        return
    while isinstance(function, partial):
        function = function.func
    function = getattr(function, "__wrapped__", function)
    names = getattr(function, "__globals__", None)
    if names is None or names.get("__name__") != _SCRIPT:
        return
    main = _script[0]
    # A new process loads the script from its file.
    main.__dict__.pop("__file__", None)
    if (path := names.get("__file__")) and Path(path).is_file():
        main.__file__ = path
    for name, value in [(getattr(function, "__name__", ""), function), *names.items()]:
        if isinstance(value, FunctionType | type) and value.__module__ == _SCRIPT:
            setattr(main, name, value)
