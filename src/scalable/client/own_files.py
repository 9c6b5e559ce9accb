"""Files of the workflow as they were last read, for clusters to which they are uploaded."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from scalable import settings
from scalable.client.workflow_files import (
    MOST_FILES,
    Project,
    Selection,
    can_select,
    project_of,
    select,
)
from scalable.errors import ClusterError
from scalable.protocol.archive import CarriedFiles, Entry, pack
from scalable.protocol.code import CodeTable, digest_of, read_source
from scalable.units import format_bytes, parse_bytes

logger = logging.getLogger("scalable.client")

FILE_LIMIT, LIMIT = "10MiB", "64MiB"
#: Seconds between two checks of the files, and the largest share of time that checks may take.
LOOK_S, LOOK_SHARE = 2.0, 0.01
_SHOWN = 5


@dataclass(frozen=True)
class Snapshot:
    """Files of a workflow at one time."""

    #: Their directories.
    project: Project
    #: Description of the archive.
    about: CarriedFiles
    #: Compressed content of the archive.
    data: bytes = field(repr=False)
    #: Digest of each file, by name.
    digests: Mapping[str, str] = field(repr=False)
    #: Time and size of each file, by name.
    stamps: Mapping[str, tuple[int, int]] = field(repr=False)


class OwnFiles:
    """Snapshot of this process's workflow.

    It is taken when a cluster first needs it, and again when ``sys.path`` has other directories,
    when a module is imported or reloaded from a file that the snapshot does not have, and by
    :meth:`read_again`.
    """

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
        """Drop the snapshot, and return the names of files that have changed since it was taken.

        ``except_for`` contains paths of files that are not checked.
        """
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
                "no files are carried to the workers: the script is not in a directory of its own; "
                "workers get the modules that this process has imported"
            )
            return None
        if not can_select():
            self._tell(
                "no files are carried to the workers, only modules that this process has imported: "
                "pathspec is missing; install scalable[kubernetes]"
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
            {name: _stamp(chosen.files[name]) for name in entries},
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
                f"not carried to the workers: {_largest(chosen.too_large)}; files over "
                f"{format_bytes(file_limit)} are left out ({settings.CODE_FILE_LIMIT})"
            )
        if chosen.outside:
            self._tell(
                f"not carried to the workers: {', '.join(sorted(chosen.outside)[:_SHOWN])}: "
                "symbolic links that lead out of the project"
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
                now = _stamp((base / name).stat())
            except OSError:
                now = (0, 0)
            if now != stamp:
                content = read_source(str(base / name))
                if content is None or digest_of(content) != snapshot.digests[name]:
                    changed.append(name)
        return changed

    def _warn_of_edits(self) -> None:
        """Warn once of each file, except imported modules, that workers have an older version."""
        began = time.monotonic()
        assert self._table is not None
        edited = self._edited(module.path for module in self._table.modules.values())
        self._next_look = time.monotonic() + max(LOOK_S, (time.monotonic() - began) / LOOK_SHARE)
        new = [name for name in edited if name not in self._told]
        if new:
            self._told.update(new)
            logger.warning(
                "%s changed since the files were carried to the workers, which keep what they "
                "have; client.sync_code() carries the files anew",
                ", ".join(new[:_SHOWN]) + (f" and {len(new) - _SHOWN} more" * (len(new) > _SHOWN)),
            )


def _limit(name: str, default: str) -> int:
    """Return a limit in bytes from its environment variable. ClusterError if it is not a size."""
    text = os.environ.get(name) or default
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ClusterError(
            f"{name}={text!r} is no size: {error}", hint=f"write it as {default}"
        ) from error


def _read(project: Project, chosen: Selection) -> Iterable[tuple[str, Entry]]:
    for name, status in chosen.files.items():
        try:
            content = (project.base / name).read_bytes()
        except OSError as error:
            logger.warning("not carried to the workers: %s: %s", name, error)
            continue
        yield name, Entry(name, content, bool(status.st_mode & 0o100))


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size


def _largest(sizes: Mapping[str, int]) -> str:
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{name} ({format_bytes(size)})" for name, size in ordered[:_SHOWN])
    return shown + (f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else "")


def _too_much(project: Project, chosen: Selection, limit: int) -> str:
    """Return the message about a project that is too large, which names its largest parts."""
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
        f"no files are carried to the workers, only modules that this process has imported: "
        f"{project.base} {amount}; the largest are {_largest(parts)}; "
        "a .gitignore or .scalableignore file leaves files out"
    )


#: The files of this process's workflow.
own_files = OwnFiles()
