"""Start and state of a detached cluster's programs: its scheduler and its managers.
A program is a process that outlives this one, or a job of the provider. ``services.json`` lists the
programs that were started.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scalable import settings
from scalable.errors import ClusterError
from scalable.files import read_tail
from scalable.liveness import identify, is_alive
from scalable.model import DeploymentSpec, names
from scalable.protocol.code import interpreter_options
from scalable.providers.registry import get_provider
from scalable.records import ClusterDirectory

logger = logging.getLogger("scalable.clusters")

SCHEDULER = names.SCHEDULER
#: Kind of programs that are processes of the machine where they were started.
PROCESS = "process"
START_TIMEOUT_S = 30.0
#: Shell script that starts "$@" in the background and prints its process id.
_APART = 'log=$1; shift; "$@" </dev/null >>"$log" 2>&1 & echo $!'


def start_scheduler(directory: ClusterDirectory, spec: DeploymentSpec) -> None:
    """Start the scheduler of a cluster."""
    program = [*_python(directory), "scalable.clusters.programs.scheduler", str(directory.path)]
    _start(directory, SCHEDULER, program, spec)


def start_manager(directory: ClusterDirectory, manager: str, spec: DeploymentSpec) -> None:
    """Start one of a cluster's managers, the programs that start and stop workers."""
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
    """Return whether a program is a process of this machine, not a job of the provider."""
    record = directory.record()
    if record.remote and service != SCHEDULER:
        if spec.options.get("manager") == "here" and not record.creator:
            raise ClusterError(
                f"manager {service!r} of cluster {record.name!r} is a process of the machine where "
                "the cluster was made",
                hint=f"run `scalable resume {record.name}` there",
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
    """Return what ``read`` returns. If it fails, log a warning and return an empty dictionary."""
    try:
        return dict(read(directory) or {})
    except (ClusterError, OSError) as error:
        logger.warning("%s", error)
        return {}


def identities(directory: ClusterDirectory) -> dict[str, Mapping[str, Any]]:
    """Map the programs that were started as processes to these.
    An unusable file is skipped with a warning, so that the cluster can still be deleted.
    """
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
    """Return the processes that have exited, each with the last line of its output."""
    found = identities(directory).items()
    return [(s, last_line(directory, s)) for s, identity in found if is_alive(identity) is False]


def ended_jobs(directory: ClusterDirectory) -> list[str]:
    """Return the programs whose jobs have left the queue. Raise ProviderError without an answer."""
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
    """Return the last line that is not empty of a program's output."""
    lines = reversed(read_tail(log_path(directory, service)).splitlines())
    return next((line.strip() for line in lines if line.strip()), "")
