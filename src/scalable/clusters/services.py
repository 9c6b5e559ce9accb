"""Start and state of a detached cluster's scheduler and managers. Does not import Dask.
A program is a process that outlives this one, or a job of the provider. ``services.json`` lists the
started programs.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scalable import settings
from scalable.errors import ClusterError, ProviderError
from scalable.files import read_tail
from scalable.liveness import identify, is_alive
from scalable.model import ClusterStatus, DeploymentSpec, names
from scalable.protocol.code import interpreter_options
from scalable.providers.registry import get_provider, provider_traits
from scalable.records import ClusterDirectory, status_of

logger = logging.getLogger("scalable.clusters")

SCHEDULER = names.SCHEDULER
#: Kind of programs that are processes of the machine where they were started.
PROCESS = "process"
START_TIMEOUT_S = 30.0
#: Seconds that commands wait for a cluster, whose jobs may be queued.
READY_TIMEOUT_S = 3600.0
#: Shell script that starts "$@" in the background and prints its process id.
_APART = 'log=$1; shift; "$@" </dev/null >>"$log" 2>&1 & echo $!'


def start_scheduler(directory: ClusterDirectory, spec: DeploymentSpec) -> None:
    """Start the scheduler of a cluster."""
    program = [*_python(directory), "scalable.clusters.programs.scheduler", str(directory.path)]
    _start(directory, SCHEDULER, program, spec)


def start_manager(directory: ClusterDirectory, manager: str, spec: DeploymentSpec) -> None:
    """Start one of a cluster's managers."""
    program = [*_python(directory), "scalable.clusters.programs.manager"]
    _start(directory, manager, [*program, str(directory.path), manager], spec)


def _python(directory: ClusterDirectory) -> list[str]:
    return [sys.executable, *interpreter_options(_working_directory(directory)), "-m"]


def _working_directory(directory: ClusterDirectory) -> Path:
    return Path(directory.record().working_dir or Path.cwd())


def service_name(manager: str) -> str:
    """Return the name of the scheduler or a manager in messages and logs."""
    return SCHEDULER if manager == SCHEDULER else f"manager-{manager}"


def log_path(directory: ClusterDirectory, service: str) -> Path:
    """Return the path of a program's log."""
    return directory.logs_dir / f"{service_name(service)}.log"


def _start(
    directory: ClusterDirectory, service: str, program: Sequence[str], spec: DeploymentSpec
) -> None:
    log = log_path(directory, service)
    log.parent.mkdir(mode=0o700, exist_ok=True)
    note: dict[str, Any]
    if _is_process(directory, service, spec):
        note = _start_apart(program, log, _working_directory(directory))
    else:
        jobs = get_provider(spec.provider_name).services(spec)
        jobs.start(directory.path, service, list(program), log)
        note = {"service": directory.record().services}
    logger.debug("service %s of cluster %s is started: %s", service, directory.id, note)
    with directory.locked():
        directory.write_services(directory.services() | {service: note})


def _is_process(directory: ClusterDirectory, service: str, spec: DeploymentSpec) -> bool:
    """Return whether a program is a process of this machine, rather than a job."""
    record = directory.record()
    if record.remote and service != SCHEDULER:
        if spec.options.get("manager") == "here" and not record.creator:
            raise ClusterError(
                f"manager {service!r} of cluster {record.name!r} is a process of the machine where "
                "the cluster was created",
                hint=f"run `scalable manager restart {record.name}` there",
            )
        return spec.provider_name != record.services or spec.options.get("manager") == "here"
    return record.services == PROCESS


def _start_apart(program: Sequence[str], log: Path, cwd: Path) -> dict[str, Any]:
    log.touch(mode=0o600)
    # The program must not inherit variables of an enclosing `scalable run` or cluster.
    outer = (
        settings.RUN_TARGET,
        settings.RUN_PLAN,
        settings.RUN_LIST,
        settings.RESUMED,
        settings.RESUMED_DESPITE_CODE,
        settings.CLUSTER,
    )
    environment = {key: value for key, value in os.environ.items() if key not in outer}
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", _APART, "apart", str(log), *program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            cwd=cwd,
            env=environment,
            start_new_session=True,
            timeout=START_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ClusterError(f"{program[-1]} cannot be started: {error}") from error
    return identify(int(done.stdout))


def _readable(
    read: Callable[[ClusterDirectory], Mapping[str, Any] | None], directory: ClusterDirectory
) -> dict[str, Any]:
    """Return the result of ``read``, or log its error and return an empty dictionary."""
    try:
        return dict(read(directory) or {})
    except (ClusterError, OSError) as error:
        logger.warning("%s", error)
        return {}


def identities(directory: ClusterDirectory) -> dict[str, Mapping[str, Any]]:
    """Map programs that were started as processes to the identities of the processes."""
    notes = _readable(lambda cluster: cluster.services(), directory)
    found: dict[str, Mapping[str, Any]] = {s: note for s, note in notes.items() if "pid" in note}
    for manager, its in _readable(lambda cluster: cluster.managers(), directory).items():
        # A manager that was just started has not written its file yet.
        just_started = manager in found and is_alive(found[manager]) is not False
        if "pid" in its and not just_started:
            found[manager] = its
    # Read only the file: a remote cluster's method opens a tunnel, and returns no process.
    scheduler = _readable(ClusterDirectory.scheduler, directory)
    return found | ({SCHEDULER: scheduler} if "pid" in scheduler else {})


def presence(directory: ClusterDirectory, service: str) -> bool | None:
    """Return whether a program runs, or None if it is a process of another machine.
    A queued job counts as running. Raise ProviderError if the job's backend does not answer.
    """
    known = identities(directory).get(service)
    note = _readable(lambda cluster: cluster.services(), directory).get(service, {})
    place = note.get("service")
    if place is None:
        return False if known is None else is_alive(known)
    # The process of a job is on another machine, and its job outlives it for a moment.
    here = None if known is None else is_alive(known)
    return here or service in get_provider(place).services(None).state(directory.id)


def is_running(directory: ClusterDirectory, service: str) -> bool:
    """Return whether a program runs, or may run on another machine. See :func:`presence`."""
    return presence(directory, service) is not False


def ended_early(directory: ClusterDirectory) -> list[tuple[str, str]]:
    """Return the exited programs, each with the last line of its output."""
    found = identities(directory).items()
    return [(s, last_line(directory, s)) for s, identity in found if is_alive(identity) is False]


def ended_jobs(directory: ClusterDirectory) -> list[str]:
    """Return the programs whose jobs have left the queue. May raise ProviderError."""
    places: dict[str, Mapping[str, str]] = {}
    ended = []
    for service, note in directory.services().items():
        place = note.get("service")
        if place is not None and place not in places:
            places[place] = get_provider(place).services(None).state(directory.id)
        if place is not None and service not in places[place]:
            ended.append(service)
    return ended


def last_line(directory: ClusterDirectory, service: str) -> str:
    """Return the last non-empty line of a program's output."""
    lines = reversed(read_tail(log_path(directory, service)).splitlines())
    return next((line.strip() for line in lines if line.strip()), "")


# Waiting ------------------------------------------------------------------------------------------


READY_POLL_S = 0.05
#: Seconds between two queries of the jobs of scheduler and managers.
JOBS_INTERVAL_S = 5.0
#: Longest wait for a manager in seconds. Its job may be queued.
MANAGER_TIMEOUT_S = 3600.0


def wait_until_ready(
    directory: ClusterDirectory,
    on_status: Callable[[ClusterStatus], None] = lambda _: None,
    timeout_s: float = 600.0,
    *,
    workers: bool = True,
) -> ClusterStatus:
    """Wait until each pool's first worker runs. Without ``workers``, wait for the scheduler.
    Raise ClusterError if a program exited, a pool cannot start, or ``timeout_s`` is over. The
    cluster keeps running.
    """
    deadline = time.monotonic() + timeout_s
    ends = _Ends(directory, managers=workers)
    while True:
        status = status_of(directory, time.time())
        on_status(status)
        ends.refuse(status)
        listening = directory.scheduler() is not None and directory.status() is not None
        if listening and (not workers or _has_first_workers(status)):
            return status
        if time.monotonic() > deadline:
            money = ", and costs money" if _costs(directory) else ""
            raise ClusterError(
                f"cluster {status.name!r} was not ready after {timeout_s:g} s: {status.reason}",
                hint=f"it keeps running{money}; see `scalable status {status.name}` and "
                f"`scalable logs {status.name}`, or delete it: `scalable down {status.name}`",
            )
        time.sleep(READY_POLL_S)


def _costs(directory: ClusterDirectory) -> bool:
    record = directory.record()
    return record.remote and provider_traits(record.provider).asks_first


def _has_first_workers(status: ClusterStatus) -> bool:
    if status.state not in ("running", "degraded"):
        return False
    return all(pool.running for pool in status.pools.values() if pool.wanted)


class _Ends:
    """Check for programs that exit during a wait. ``managers``: managers are checked too."""

    def __init__(self, directory: ClusterDirectory, *, managers: bool) -> None:
        self._directory = directory
        self._managers = managers
        self._asked_at = time.monotonic()

    def refuse(self, status: ClusterStatus) -> None:
        """Raise ClusterError if a needed program has exited, or a pool was given up."""
        name = status.name
        for service, line in (*ended_early(self._directory), *self._ended_jobs()):
            if self._managers or service == SCHEDULER:
                shown = service_name(service)
                raise ClusterError(
                    f"{shown} of cluster {name!r} exited: {line or 'no output'}",
                    hint=f"`scalable logs {name} --worker {shown}` shows its output; `scalable up` "
                    f"restarts it, `scalable down {name}` removes the cluster",
                )
        if status.state in ("failed", "stale", "deleting", "unreachable"):
            raise ClusterError(
                f"cluster {name!r} is {status.state}: {status.reason or 'no reason is known'}"
            )
        for tag, pool in status.pools.items():
            if pool.reason and not pool.running:
                raise ClusterError(
                    f"pool {tag!r} of cluster {name!r} has no worker: {pool.reason}",
                    hint=f"`scalable scale {name} {tag}=N` starts workers again",
                )

    def _ended_jobs(self) -> list[tuple[str, str]]:
        """Return the programs with finished jobs, each with the last line of its output."""
        if time.monotonic() - self._asked_at < JOBS_INTERVAL_S:
            return []
        try:
            ended = ended_jobs(self._directory)
        except ProviderError as error:
            logger.debug("could not list the jobs of cluster %s: %s", self._directory.id, error)
            ended = []
        self._asked_at = time.monotonic()
        return [(service, last_line(self._directory, service)) for service in ended]


def wait_for_managers(directory: ClusterDirectory, names: Sequence[str]) -> None:
    """Wait until managers have attached. ClusterError if one exits or does not attach in time."""
    deadline = time.monotonic() + MANAGER_TIMEOUT_S
    ends = _Ends(directory, managers=True)
    while True:
        status = status_of(directory, time.time())
        ends.refuse(status)
        attached = {m["id"] for m in status.managers if m["state"] == "attached"}
        missing = [name for name in names if name not in attached]
        if not missing:
            return
        if time.monotonic() > deadline:
            raise ClusterError(
                f"manager {missing[0]!r} of cluster {status.name!r} has not attached after "
                f"{MANAGER_TIMEOUT_S:g} s",
                hint=f"see `scalable logs {status.name} --worker manager-{missing[0]}`",
            )
        time.sleep(READY_POLL_S)
