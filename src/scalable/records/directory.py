"""Directory of one cluster."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from scalable import settings
from scalable.errors import ClusterError, NameTakenError, UnknownClusterError
from scalable.files import private_directory, read_private, write_private
from scalable.liveness import is_alive, number_taken, rebooted
from scalable.model import ClusterRecord, names

logger = logging.getLogger("scalable.records")

RECORD = "record.json"
SCHEDULER = "scheduler.json"
STATUS = "status.json"
SPENDING = "spending.json"
MANIFEST = "manifest.yaml"
SPEC = "spec.json"
PLAN = "plan.json"
#: File with the programs that were started, each with its process or job.
SERVICES = "services.json"
#: File with the process of a manager, in the manager's directory.
MANAGER = "manager.json"
#: File with the process of the user, in the directory of an embedded cluster.
OWNER = "owner.json"
#: File that marks a copy from a remote site that no local user has referred to by name yet.
UNNAMED = "unnamed"
TOKEN = "token"  # noqa: S105 - a file's name
#: Secret values of a manager's workers, in its directory.
SECRETS = "secrets.json"
_PEM = ("ca.pem", "cert.pem", "key.pem")
_ROLES = ("client", "scheduler", "worker")
_NUMBER = (int, float)
_TEXT_OR_NONE = (str, type(None))
_Kinds = Mapping[str, type | tuple[type, ...]]
#: Types that the values of each file must have, if present.
_SCHEDULER_KINDS: _Kinds = {"address": str, "log_dir": _TEXT_OR_NONE, "dashboard": _TEXT_OR_NONE}
_STATUS_KINDS: _Kinds = {
    "written_at": _NUMBER,
    "state": str,
    "reason": _TEXT_OR_NONE,
    "ended": str,
    "pools": dict,
    "managers": list,
    "ends_at": (*_NUMBER, type(None)),
    "idle_ends_at": (*_NUMBER, type(None)),
    "cost": (dict, type(None)),
    "adaptive": dict,
}
_ROW_KINDS: _Kinds = {"id": str, "state": str, "silent_s": _NUMBER}
_PROGRAM_KINDS: _Kinds = {"service": str, "pid": int, "nonce": str}
#: Attempts to remove a directory, because an exiting process may still write a last file.
REMOVALS = 3


class EndedClusterError(UnknownClusterError, FileNotFoundError):
    """The files of a cluster have just been removed."""


class ClusterDirectory:
    """Private directory of one cluster, named after the cluster's id.
    Each file has one writer, and is replaced atomically. The record is written by the creator of
    the cluster, or the process that deletes it. The scheduler and the managers write the files
    about themselves.
    """

    #: Reason why this user can never reach the scheduler, or None if no reason is known.
    refused: str | None = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = path.name  # the id, until the record was read

    @property
    def id(self) -> str:
        return self.path.name

    @staticmethod
    def parent() -> Path:
        """Return the parent directory of all clusters' directories."""
        return settings.state_dir() / "clusters"

    # State ----------------------------------------------------------------------------------------

    def state(
        self, record: ClusterRecord, status: Mapping[str, Any] | None, now: float
    ) -> tuple[str, str | None]:
        """Return the cluster's state and the reason, given the scheduler's last ``status``."""
        sight = sight_of(record, self.scheduler(), self.services)
        return state_of(record, status, sight, now)

    def not_listening(self) -> str:
        """Return a phrase that explains why :meth:`scheduler` returns None."""
        return f"cannot be reached: {self.refused}" if self.refused else "does not listen yet"

    def is_over(self) -> bool:
        """Return whether the cluster has certainly stopped."""
        return not self.path.exists()

    # Creating, changing, removing -----------------------------------------------------------------

    @classmethod
    def create(
        cls,
        record: ClusterRecord,
        *,
        manifest_yaml: str = "",
        spec: str | None = None,
        plan: Mapping[str, Any] | None = None,
    ) -> Self:
        """Create the directory of a new cluster, before its processes start.
        Raise NameTakenError if another detached cluster has the name, and ClusterError if the lock
        is held for too long or the files cannot be written.
        """
        made = cls(cls.parent() / record.id)
        texts = {MANIFEST: manifest_yaml, PLAN: json.dumps(plan or {})}
        texts |= {TOKEN: secrets.token_urlsafe(24)} | ({} if spec is None else {SPEC: spec})
        try:
            parent = private_directory(cls.parent())
            with locked_directory(parent):
                if not record.embedded:
                    _refuse_taken(record.name, parent)
                made._fill(texts, record)
        except OSError as error:
            raise unwritable(made.path, error) from error
        return made

    def _fill(self, texts: Mapping[str, str], record: ClusterRecord) -> None:
        self.path.mkdir(mode=0o700)
        try:
            for name, text in texts.items():
                write_private(self.path / name, text)
            # Last: a directory belongs to a cluster once it contains this file.
            self._write(RECORD, record.to_dict())
        except OSError:
            self.remove()
            raise

    def set_stage(self, stage: str) -> None:
        """Set the stage (creating, made, deleting). Do nothing without a record."""
        with suppress(FileNotFoundError):
            self.write_record(replace(self.record(), stage=stage))

    def write_record(self, record: ClusterRecord) -> None:
        self._write(RECORD, record.to_dict())

    @contextmanager
    def locked(self) -> Iterator[None]:
        with locked_directory(self.path):
            yield

    def remove(self) -> None:
        """Remove the directory and its files, the record last. A missing directory is success."""
        for _ in range(REMOVALS):
            with suppress(FileNotFoundError):  # another process may remove it at the same time
                for entry in self.path.iterdir():
                    if entry.name == RECORD:
                        continue
                    if entry.is_dir() and not entry.is_symlink():
                        shutil.rmtree(entry, ignore_errors=True)
                    else:
                        entry.unlink(missing_ok=True)
            shutil.rmtree(self.path, ignore_errors=True)
            if not self.path.exists():
                return

    # Reading and writing --------------------------------------------------------------------------

    def record(self) -> ClusterRecord:
        """Return the record. Raises EndedClusterError if missing, ClusterError if unusable."""
        path = self.path / RECORD
        try:
            record = ClusterRecord.from_dict(json.loads(read_private(path)))
        except FileNotFoundError as error:
            raise EndedClusterError(f"cluster {self._name!r} has just ended") from error
        except (ValueError, RecursionError, OSError) as error:
            raise ClusterError(
                f"{path} is not the record of a cluster: {error}",
                hint=f"`scalable down {self.id}` deletes the remains of that cluster",
            ) from error
        self._name = record.name
        return record

    def may_be_named(self, name: str) -> bool:
        """Return whether an unreadable record may have this name. True for an unreadable file."""
        try:
            text = (self.path / RECORD).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return re.search(rf'"name":\s*{re.escape(json.dumps(name))}', text) is not None

    def scheduler(self) -> dict[str, Any] | None:
        """Return the scheduler's process, address and run, or None before it listens."""
        said = self._read(SCHEDULER)
        return said and self._checked(SCHEDULER, said, {**_SCHEDULER_KINDS, **_PROGRAM_KINDS})

    def write_scheduler(self, said: Mapping[str, Any]) -> None:
        self._write(SCHEDULER, said)

    def status(self) -> dict[str, Any] | None:
        status = self._read(STATUS)
        if status is not None:
            self._checked(STATUS, status, _STATUS_KINDS)
            for row in status.get("managers", ()):
                self._checked(STATUS, row, _ROW_KINDS, required=("id", "state"))
        return status

    def write_status(self, status: Mapping[str, Any]) -> None:
        self._write(STATUS, status)

    def spending(self) -> dict[str, Any] | None:
        """Return the costs that the last scheduler wrote, or None."""
        return self._read(SPENDING)

    def write_spending(self, state: Mapping[str, Any]) -> None:
        self._write(SPENDING, state)

    def services(self) -> dict[str, dict[str, Any]]:
        """Map started programs to their process or job. Raises ClusterError if unreadable."""
        notes = self._read(SERVICES) or {}
        return {
            service: self._checked(SERVICES, note, _PROGRAM_KINDS)
            for service, note in notes.items()
        }

    def write_services(self, notes: Mapping[str, Mapping[str, Any]]) -> None:
        self._write(SERVICES, notes)

    def plan(self) -> dict[str, Any]:
        """Return the plan that the cluster was created for, or an empty dictionary."""
        return self._read(PLAN) or {}

    def manager_directory(self, manager: str) -> Path:
        """Return a manager's directory. Raises an error if the id is not a valid file name."""
        return self.path / "managers" / names.FILE_NAME.require(manager)

    def write_request(
        self, manager: str, manifest_yaml: str, spec: str | None, values: str | None = None
    ) -> None:
        """Write a manager's resolved manifest (for people), and its spec and secrets if given."""
        parent = private_directory(self.manager_directory(manager))
        write_private(parent / MANIFEST, manifest_yaml)
        if spec is not None:
            write_private(parent / SPEC, spec)
        if values is not None:
            write_private(parent / SECRETS, values)

    def secret_values(self, manager: str) -> str:
        try:
            return read_private(self.manager_directory(manager) / SECRETS)
        except FileNotFoundError:
            return "{}"

    def manifest_path(self, manager: str | None = None) -> Path:
        return self._home(manager) / MANIFEST

    def spec_text(self, manager: str | None = None) -> str | None:
        path = self._home(manager) / SPEC
        try:
            return read_private(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ClusterError(f"{path} cannot be read: {error}") from error

    def _home(self, manager: str | None) -> Path:
        return self.path if manager is None else self.manager_directory(manager)

    def managers(self) -> dict[str, dict[str, Any]]:
        """Map the managers accepted by the scheduler to their processes."""
        found = {}
        for path in (self.path / "managers").glob(f"*/{MANAGER}"):
            try:
                name = str(path.relative_to(self.path))
                said = self._read(name)
                if said is not None:
                    found[path.parent.name] = self._checked(name, said, _PROGRAM_KINDS)
            except (ClusterError, OSError) as error:
                logger.warning("%s", error)
        return found

    @property
    def logs_dir(self) -> Path:
        """Directory of the scheduler's and managers' logs."""
        return self.path / "logs"

    def worker_logs(self) -> Path | None:
        """Return the directory of the workers' output, or None until the scheduler reports it."""
        said = self.record().log_dir or (self.scheduler() or {}).get("log_dir")
        return None if said is None else Path(said)

    def fetch_run(self) -> None:
        """Update the copy of the run's record. The record of a local cluster needs no update."""

    def fetch_logs(self) -> None:
        """Update the copies of the logs. The logs of a local cluster need no update."""

    def token(self) -> str:
        return read_private(self.path / TOKEN)

    def write_pem(self, authority: str, certificate: str, key: str) -> None:
        directory = private_directory(self.path / "tls")
        for name, text in zip(_PEM, (authority, certificate, key), strict=True):
            write_private(directory / name, text)

    def pem(self) -> dict[str, str]:
        """Map keywords of ``distributed.Security`` to PEM strings, or raise ClusterError."""
        try:
            texts = [read_private(self.path / "tls" / name) for name in _PEM]
        except FileNotFoundError as error:
            raise ClusterError(
                f"the credentials of cluster {self.id} are missing: no file {error.filename}",
                hint="its scheduler has not started, or it runs in another process",
            ) from error
        except (ValueError, OSError) as error:
            raise ClusterError(f"{self.path / 'tls'} cannot be read: {error}") from error
        for name, text in zip(_PEM, texts, strict=True):
            if "-----BEGIN" not in text:
                raise ClusterError(f"{self.path / 'tls' / name} contains no credentials")
        return pem_fields(*texts)

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        write_private(self.path / name, json.dumps(value, indent=1, default=str) + "\n")

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            value = json.loads(read_private(self.path / name))
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError, OSError) as error:
            raise ClusterError(f"{self.path / name} cannot be read: {error}") from error
        return self._checked(name, value, {})

    def _checked(
        self, name: str, value: Any, kinds: _Kinds, required: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Return ``value``, or raise ClusterError if a key is missing or has a wrong type."""
        fault = None
        found: dict[str, Any] = value
        if not isinstance(value, dict):
            fault = f"not a JSON object: {value!r:.80}"
        elif missing := [key for key in required if key not in value]:
            fault = f"no {missing[0]}"
        else:
            wrong = (
                k for k, kind in kinds.items() if k in value and not isinstance(value[k], kind)
            )
            if (key := next(wrong, None)) is not None:
                fault = f"{key} is {value[key]!r:.80}"
        if fault is not None:
            raise ClusterError(f"{self.path / name} cannot be read: {fault}")
        return found


def unwritable(path: Path, error: OSError) -> ClusterError:
    """Return the error for cluster files that cannot be written."""
    return ClusterError(
        f"the files of the cluster cannot be written to {path}: {error.strerror or error}",
        hint="free space there, or set XDG_STATE_HOME to a directory that you can write to",
    )


def pem_fields(authority: str, certificate: str, key: str) -> dict[str, str]:
    """Map keywords of ``distributed.Security`` to PEM strings. All roles share a certificate."""
    fields = {"tls_ca_file": authority}
    for role in _ROLES:
        fields |= {f"tls_{role}_cert": certificate, f"tls_{role}_key": key}
    return fields


def _refuse_taken(name: str, parent: Path) -> None:
    for path in parent.glob(f"*/{RECORD}"):
        try:
            other = ClusterDirectory(path.parent).record()
        except (FileNotFoundError, ClusterError):
            continue
        if other.name == name and not other.embedded:
            raise NameTakenError(
                f"a cluster {name!r} already exists",
                hint=f"choose another name, or delete it: scalable down {name}",
            )


# Locking ------------------------------------------------------------------------------------------

#: Longest wait in seconds for the lock. It is usually held for milliseconds.
LOCK_TIMEOUT_S = 30.0
_LOCK_POLL_S = 0.02


@contextmanager
def locked_directory(parent: Path) -> Iterator[None]:
    """Hold the lock of a directory. Raises ClusterError after 30 s, or without file locks."""
    path = parent / ".lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"another process has held {path} for {LOCK_TIMEOUT_S:.0f} s",
                    hint=f"`fuser {path}` shows that process, which is creating a cluster",
                ) from error
            time.sleep(_LOCK_POLL_S)
        except OSError as error:
            raise ClusterError(
                f"{path} cannot be locked: {error.strerror}",
                hint="set XDG_STATE_HOME to a directory on a file system that supports locks",
            ) from error
        else:
            return


# Sight --------------------------------------------------------------------------------------------


def sight_of(
    record: ClusterRecord,
    scheduler: Mapping[str, Any] | None,
    services: Callable[[], Mapping[str, Mapping[str, Any]]],
) -> Sight | None:
    """Observe the process that a cluster depends on, or return None if it is unknown.
    ``services`` returns the process or job of each program, and is called only if needed.
    """
    identity: Mapping[str, Any] | None = record.creator if record.embedded else scheduler
    if not identity:
        started = services().get(names.SCHEDULER, {})
        identity = started if "pid" in started else None
    if not identity:
        # No scheduler was started. Only a restart of the machine proves that none will be.
        return Sight(alive=None, another=True) if rebooted(record.creator) else None
    another = rebooted(identity) or number_taken(identity)
    return Sight(is_alive(identity), another)


# States -------------------------------------------------------------------------------------------

#: A scheduler writes its status every 2 s. After this time without one it is unreachable.
SILENT_S = 15.0


@dataclass(frozen=True)
class Sight:
    """Observation of the process that a cluster depends on."""

    #: Whether the process is alive. None if that is unknown.
    alive: bool | None
    #: Whether another process has its process id now, or its host was restarted.
    another: bool = False


def state_of(
    record: ClusterRecord, status: Mapping[str, Any] | None, sight: Sight | None, now: float
) -> tuple[str, str | None]:
    """Return a cluster's state and the reason, given the scheduler's last ``status``.
    ``sight`` is None while the process is unknown. ``now`` is epoch seconds.
    """
    if sight is not None and sight.another:
        return "stale", "its process id belongs to another process, or its machine was restarted"
    if record.stage == "deleting":
        return "deleting", None
    ended = None if status is None else status.get("ended")
    if ended or (sight is not None and sight.alive is False):
        what = "the process that it ran in" if record.embedded else "its scheduler"
        return "failed", ended or f"{what} no longer runs"
    if status is None:
        return ("creating", None) if record.stage == "creating" else ("starting", None)
    silent_s = now - float(status.get("written_at") or 0.0)
    if silent_s > SILENT_S:
        return "unreachable", f"its scheduler has written no status for {silent_s:.0f} s"
    return str(status.get("state")), status.get("reason")


# Places -------------------------------------------------------------------------------------------

#: Seconds for which a site is kept after its last use.
REMEMBERED_S = 30 * 86400.0


def _directory() -> Path:
    return settings.state_dir() / "places"


def remember(provider: str, place: Mapping[str, str]) -> None:
    """Store a site for :func:`remembered`. Errors of writing are ignored."""
    text = json.dumps({"provider": provider, "place": dict(place)}, sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    with suppress(OSError, ClusterError):
        write_private(private_directory(_directory()) / f"{name}.json", text)


def remembered(provider: str) -> list[dict[str, str]]:
    """Return the recently used sites of a provider, in a fixed order."""
    found = []
    for path in sorted(_directory().glob("*.json")):
        with suppress(OSError, ClusterError, ValueError, KeyError, TypeError, AttributeError):
            if time.time() - path.stat().st_mtime > REMEMBERED_S:
                path.unlink()
                continue
            row = json.loads(read_private(path))
            if row["provider"] == provider:
                found.append({str(key): str(text) for key, text in row["place"].items()})
    return found


def all_places(provider: str, present: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the ``present`` sites, followed by the other recorded ones."""
    return present + [place for place in remembered(provider) if place not in present]
