"""Files of a cluster as strings, for backends that store them in their own objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from scalable.errors import ClusterError
from scalable.files import private_directory, read_private, write_private
from scalable.model import ClusterRecord, names
from scalable.records.directory import (
    MANIFEST,
    PLAN,
    RECORD,
    SECRETS,
    SPEC,
    TOKEN,
    UNNAMED,
    ClusterDirectory,
)

#: File with what a provider needs to find the objects of a remote cluster.
PLACE = "place.json"
#: File that marks that the creator of a remote cluster has started to create objects.
BEGUN = "begun"
#: CA certificate, certificate and private key.
CREDENTIALS = ("tls/ca.pem", "tls/cert.pem", "tls/key.pem")
#: Files that a cluster's creator writes, except the managers' files.
_FILES = (RECORD, PLACE, MANIFEST, SPEC, PLAN, TOKEN, *CREDENTIALS)
#: Directory with the managers' files.
_MANAGERS = "managers"


#: Replaces the slashes of a path in a key, because some backends allow no slash.
_SLASH = ".."


def key_of(path: str) -> str:
    """Encode a relative path as a key of letters, digits, ``-``, ``_`` and dots."""
    return path.replace("/", _SLASH)


def path_of(key: str) -> str:
    """Decode a result of :func:`key_of`."""
    return key.replace(_SLASH, "/")


def packed(directory: ClusterDirectory, manager: str | None = None) -> dict[str, str]:
    """Map relative paths to file contents for the scheduler (``manager`` None) or a manager."""
    paths = [directory.path / name for name in _FILES]
    if manager is not None:
        paths += sorted(p for p in directory.manager_directory(manager).iterdir() if p.is_file())
    return {
        str(path.relative_to(directory.path)): read_private(path)
        for path in paths
        if path.is_file() and not path.name.startswith(".")
    }


def unpack(
    files: Mapping[str, str], record: ClusterRecord, *, copied: bool = False
) -> ClusterDirectory:
    """Write a cluster's files into the local state directory, the record last.
    ``record`` replaces the one in ``files``. ``copied`` marks a copy from a remote site that no
    local user has named yet. Raises ClusterError if a path is outside the directory.
    """
    private_directory(ClusterDirectory.parent())
    made = ClusterDirectory(ClusterDirectory.parent() / names.FILE_NAME.require(record.id))
    inner = {_inner(name): text for name, text in files.items() if name != RECORD}
    private_directory(made.path)
    if copied:
        write_private(made.path / UNNAMED, "")
    for name, text in inner.items():
        private_directory((made.path / name).parent)
        write_private(made.path / name, text)
    made.write_record(record)
    return made


def record_in(files: Mapping[str, str]) -> ClusterRecord:
    """Return the record in a cluster's files. Raises ClusterError if missing or unusable."""
    try:
        return ClusterRecord.from_dict(json.loads(files[RECORD]))
    except (KeyError, ValueError, RecursionError) as error:
        raise ClusterError(f"not the record of a cluster: {error}") from error


def _inner(name: str) -> Path:
    path = PurePosixPath(name)
    # Files from elsewhere must not name processes of this machine.
    of_manager = len(path.parts) == 3 and path.parts[0] == _MANAGERS
    known = name in _FILES or (of_manager and path.name in (MANIFEST, SECRETS, SPEC))
    if not known or any(not names.FILE_NAME.accepts(part) for part in path.parts):
        raise ClusterError(f"{name!r:.80} is not a file of a cluster")
    return Path(path)
