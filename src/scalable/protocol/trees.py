"""The archives that are unpacked in this process's private directory."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
from collections.abc import Collection
from pathlib import Path

from scalable.protocol.archive import CarriedFiles, unpack
from scalable.protocol.private_directory import PrivateDirectory, check_private

logger = logging.getLogger("scalable.protocol")

#: Number of archives that stay unpacked, apart from those of running tasks.
TREES_KEPT = 4
_NAME = "carried"


class Trees:
    """Unpacked archives by digest, in the given private directory or one made for the first."""

    def __init__(self, directory: str | Path | None = None) -> None:
        self._given = directory or None
        self._own: PrivateDirectory | None = None
        self._place: Path | None = None
        #: Directories by digest, the last used one last.
        self._trees: dict[str, Path] = {}
        self._on_path: list[str] = []
        self._lock = threading.Lock()

    def __contains__(self, files: CarriedFiles | None) -> bool:
        return files is not None and files.digest in self._trees

    def __len__(self) -> int:
        return len(self._trees)

    def add(self, files: CarriedFiles, data: bytes) -> None:
        """Unpack an archive, unless it is unpacked. Raises ArchiveError for a wrong archive."""
        with self._lock:
            if files.digest in self._trees:
                return
            place = self._directory() / files.digest
            unpack(data, files, place)
            self._trees[files.digest] = place
        logger.debug("archive %s is unpacked in %s", files.digest, place)

    def _directory(self) -> Path:
        if self._place is None:
            if self._given is None:
                self._own = PrivateDirectory()
                self._given = self._own.path
            place = Path(self._given) / _NAME
            place.mkdir(mode=0o700, exist_ok=True)
            check_private(place)
            self._place = place
        return self._place

    def path_of(self, files: CarriedFiles | None, path: str) -> str | None:
        """Return where a client's file is unpacked, or None if it is not in the archive."""
        tree = None if files is None else self._trees.get(files.digest)
        name = None if files is None else files.name_of(path)
        return None if tree is None or name is None else str(tree / name)

    def use(self, files: CarriedFiles | None) -> None:
        """Put the directories of an archive on ``sys.path``, and remove those of another."""
        roots = []
        if files is not None and (tree := self._trees.pop(files.digest, None)) is not None:
            self._trees[files.digest] = tree
            roots = [os.path.normpath(tree / name) for _, name in files.roots]
        if roots != self._on_path:
            sys.path[:] = [entry for entry in sys.path if entry not in self._on_path]
            sys.path.extend(roots)
            self._on_path = roots

    def is_outdated(self, path: str, files: CarriedFiles | None) -> bool:
        """Return whether a file belongs to another archive than this one."""
        if self._place is None or not path.startswith(f"{self._place}{os.sep}"):
            return False
        return files is None or not path.startswith(f"{self._place / files.digest}{os.sep}")

    def drop_old(self, in_use: Collection[str]) -> None:
        """Remove the least recently used archives, except those ``in_use`` by running tasks."""
        with self._lock:
            for digest in list(self._trees)[:-TREES_KEPT]:
                if digest not in in_use:
                    shutil.rmtree(self._trees.pop(digest), ignore_errors=True)
