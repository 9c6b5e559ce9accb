"""Configuration of a worker process, read from standard input or a file."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import dask
from distributed import Security

from scalable.protocol.addresses import HOST_VARIABLE, LOOPBACK
from scalable.protocol.credentials import security_of
from scalable.protocol.private_directory import make_private
from scalable.worker.notices import NOTICE_FILE

logger = logging.getLogger("scalable.worker")

#: Set in local workers: the scratch directory that was made before their start.
SCRATCH = "SCALABLE_SCRATCH"
_SECURITY_FIELDS = ("tls_ca_file", "tls_worker_cert", "tls_worker_key")


@dataclass(frozen=True)
class WorkerConfig:
    """Settings of one worker process."""

    scheduler: str
    name: str
    #: Number of tasks that the worker runs at once.
    nthreads: int = 1
    #: Dask resources that the worker offers: number of slots by tag.
    resources: Mapping[str, float] = field(default_factory=dict)
    #: Memory limit in bytes, or 0 for no limit.
    memory_limit: int = 0
    #: Address to listen on.
    host: str = LOOPBACK
    #: Scratch directory of this worker alone, removed when the worker stops.
    local_directory: str = ""
    #: Scripts to run before the worker starts.
    preload: tuple[str, ...] = ()
    #: Entries to append to the module search path, so that the workflow's modules are found.
    sys_path: tuple[str, ...] = ()
    #: PEM strings of the cluster's authority and of the worker's own certificate and key.
    security: Mapping[str, str] = field(default_factory=dict)
    #: Network interface to listen on, instead of ``host``.
    interface: str = ""
    #: Port or range of ports (``"40000:41000"``) to listen on, or empty for any.
    ports: str = ""
    #: True if the worker moves its results to other workers when it is requested to stop.
    hand_over: bool = False
    #: Variables with secret values, which are only in this configuration.
    secrets: Mapping[str, str] = field(default_factory=dict)
    #: Id of the worker's manager, or empty.
    manager: str = ""
    #: Directory that the worker removes when its scheduler is gone, or empty. Only for clusters
    #: whose files nothing else removes.
    clear_away: str = ""
    #: True if other programs than the manager may start this one again. The worker then refuses.
    once: bool = False
    #: Dask's configuration in the parent, as ``dask.config.serialize`` writes it.
    dask_config: str = ""
    #: True if the worker shares the file system of the clients' machine.
    shares_files: bool = True
    #: File that will announce the preemption of the worker's machine, or empty if nothing does.
    notice_file: str = ""

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    def credentials(self) -> Security | None:
        """Return the credentials for connections of this worker, or None without encryption."""
        return security_of(self.security) if self.security else None


def security_fields(security: Security | None) -> dict[str, str]:
    """Return the PEM strings that a worker needs, or an empty dict without encryption."""
    if security is None or not security.require_encryption:
        return {}
    return {name: str(getattr(security, name)) for name in _SECURITY_FIELDS}


def serialized_config() -> str:
    """Return this process's Dask configuration as a string, or empty if it cannot be serialized."""
    try:
        return str(dask.config.serialize(dask.config.config))
    except TypeError as error:
        logger.warning("workers start with Dask's default configuration: %s", error)
        return ""


def apply_to_process(config: WorkerConfig) -> None:
    """Add the configured search path, secrets and Dask settings to this process's own."""
    os.environ.update(config.secrets)
    sys.path.extend(entry for entry in config.sys_path if entry not in sys.path)
    if config.dask_config:
        dask.config.update(dask.config.global_config, dask.config.deserialize(config.dask_config))


def read_file(path: Path, name: str, preload: Sequence[str] = ()) -> WorkerConfig:
    """Read the configuration that the workers of a pool share.
    Exits with code 0 if the file does not exist, and with an error if other users may read it.
    """
    try:
        facts, text = path.stat(), path.read_text()
    except FileNotFoundError:
        sys.stderr.write(f"the configuration {path} was removed with its cluster: exiting\n")
        sys.exit(0)
    mode = facts.st_mode
    # A Secret that is mounted for a program without root's rights belongs to root, and one group
    # of the program's may read it.
    refused = 0o077 if facts.st_uid == os.geteuid() else 0o037
    if mode & refused:
        sys.exit(
            f"the configuration {path} holds credentials and has mode {mode & 0o777:o}: "
            "it is refused because other users can read it; set its mode to 600"
        )
    # Removed from the environment: tasks and their children must not use the same directory.
    scratch = os.environ.pop(SCRATCH, "") or str(make_private("scalable"))
    own = {"name": name, "local_directory": scratch, "preload": tuple(preload)}
    values = json.loads(text) | own
    values["notice_file"] = os.environ.pop(NOTICE_FILE, "")
    values["host"] = os.environ.get(HOST_VARIABLE) or values.get("host", LOOPBACK)
    return WorkerConfig(**values)
