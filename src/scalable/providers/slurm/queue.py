"""Slurm's queue: output, states and reasons, names and comments of jobs. This module does no I/O.
A job is named ``<name>.scalable-<cluster>.<rest>``, so Slurm can filter and cancel jobs by name.
The JSON comment contains the workers' names and the directory of the submitting manager.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from scalable.errors import ProviderError
from scalable.providers.slurm.worker import file_name
from scalable.units import parse_walltime

#: Fields of ``squeue --format`` (man page of squeue): array job, index, name, state, reason, time
#: left, uid, comment. Stable between versions, unlike the schema of ``--json``.
SQUEUE_FORMAT = "%F|%K|%j|%T|%r|%L|%U|%k"
_FIELDS = 8

_WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD"}
    | {"SPECIAL_EXIT"}
)
_THERE = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
)

#: Final state of a job that used more memory than it had.
OUT_OF_MEMORY = "OUT_OF_MEMORY"
_STATES = {
    "COMPLETED": "it exited on its own",
    "CANCELLED": "it was cancelled",
    "TIMEOUT": "it reached its walltime",
    "PREEMPTED": "another job took its place",
    "NODE_FAIL": "its node failed",
    OUT_OF_MEMORY: "it used more memory than it had requested",
    "DEADLINE": "its deadline passed",
    "BOOT_FAIL": "its node did not boot",
    "FAILED": "it failed",
    "REVOKED": "another cluster started it",
}
#: Final states of a job that the tasks in the job did not cause.
FROM_OUTSIDE = frozenset(
    {"CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "DEADLINE", "BOOT_FAIL"}
)
#: States of a job that occupies its node, but does not run.
SUSPENDED = frozenset({"SUSPENDED", "STOPPED"})
#: Final states of a job that reached its time limit.
WALLTIME_OVER = frozenset({"TIMEOUT", "DEADLINE"})

_REASONS = {
    "Priority": "jobs of higher priority come first",
    "Resources": "it waits for nodes to become free",
    "Dependency": "it waits for another job",
    "BeginTime": "it waits for its begin time",
    "JobArrayTaskLimit": "the array already runs its maximum number of elements at once",
    "JobHeldUser": "it is held by its owner; release it with scontrol release",
    "JobHeldAdmin": "it is held by an administrator",
    "Licenses": "it waits for a licence",
    "NodeDown": "a node that it needs is down",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "PartitionNodeLimit": "it requests more nodes than the partition allows",
    "PartitionTimeLimit": "it requests more time than the partition allows; shorten the walltime",
    "ReqNodeNotAvail": "a node that it needs is down, drained or reserved",
    "Reservation": "it waits for its reservation",
    "AssocGrpCpuLimit": "your account uses all the cores that it is allowed",
    "AssocGrpCPUMinutesLimit": "your account has used up its core minutes",
    "AssocGrpMemLimit": "your account uses all the memory that it is allowed",
    "AssocGrpJobsLimit": "your account runs its maximum number of jobs at once",
    "AssocMaxJobsLimit": "your account does not allow you more jobs at once",
    "AssociationJobLimit": "your account does not allow more jobs at once",
    "InvalidAccount": "the account is not valid; change account",
    "InvalidQOS": "the QOS is not valid; change qos",
    "QOSGrpCpuLimit": "your QOS uses all the cores that it is allowed",
    "QOSGrpMemLimit": "your QOS uses all the memory that it is allowed",
    "QOSJobLimit": "your QOS allows no more jobs at once",
    "QOSMaxJobsPerUserLimit": "your QOS allows no more jobs at once",
    "QOSMaxCpuPerUserLimit": "your QOS does not allow you more cores at once",
    "QOSMaxMemoryPerUser": "your QOS does not allow you more memory at once",
    "QOSMaxWallDurationPerJobLimit": "your QOS allows no job that long; shorten the walltime",
    "QOSResourceLimit": "your QOS has reached a limit",
    "QOSUsageThreshold": "your QOS has used up its limit",
}

#: Parts of messages of sbatch and squeue after which the same request may succeed later.
_TRANSIENT = (
    "unable to contact slurm controller",
    "socket timed out",
    "connection refused",
    "connection timed out",
    "connection reset",
    "temporarily unable",
    "slurm_persist_conn",
    "zero bytes were transmitted",
    "transport endpoint",
    "try again",
    "not responding",
    "required partition not available",
    "required node not available",
    "standby mode",
    "munge encode failed",
)
#: Parts of messages of sbatch that report too many jobs, such as
#: AssocMaxSubmitJobLimit, AssocGrpSubmitJobsLimit and QOSMaxSubmitJobPerUserLimit.
_JOB_LIMITS = ("submitjob", "maximum number of jobs", "queue is full", "reached the job limit")


class JobState(Enum):
    """Stages of a job: queued, on a node, or finished."""

    WAITING = "waiting"
    THERE = "there"
    ENDED = "ended"


@dataclass(frozen=True)
class Element:
    """One element of a job array, or one job."""

    #: Id of the array or single job. The last element to start has the array's id as its own.
    job: int
    index: int | None
    name: str
    state: JobState
    #: Sentence: the reason why it is queued, or how it ended. Empty on a node.
    reason: str
    #: Seconds until the walltime is over. None if unknown or unlimited.
    left_s: float | None
    #: State in Slurm's notation.
    raw_state: str
    comment: str = ""
    #: Numeric id of the user, or None if unknown.
    uid: int | None = None


def parse_queue(text: str) -> list[Element]:
    """Return the jobs in ``squeue`` output with :data:`SQUEUE_FORMAT`. Other lines are ignored."""
    elements = []
    for line in text.splitlines():
        parts = line.strip().split("|", _FIELDS - 1)
        if len(parts) < _FIELDS or not parts[0].isdigit():
            continue
        job, index, name, state, reason, left, uid, comment = parts
        kind = _kind(state)
        elements.append(
            Element(
                job=int(job),
                index=int(index) if index.isdigit() else None,
                name=name,
                state=kind,
                reason=_sentence(kind, state, reason),
                left_s=parse_left(left) if kind is JobState.THERE else None,
                raw_state=state,
                comment="" if comment == "(null)" else comment,
                uid=int(uid) if uid.isdigit() else None,
            )
        )
    return elements


def _kind(state: str) -> JobState:
    if state in _WAITING:
        return JobState.WAITING
    return JobState.THERE if state in _THERE else JobState.ENDED


def _sentence(kind: JobState, state: str, reason: str) -> str:
    if kind is JobState.WAITING:
        return f"waiting: {explain_reason(reason)}"
    return explain_end(state, reason) if kind is JobState.ENDED else ""


def explain_reason(reason: str) -> str:
    """Return Slurm's reason why a job is queued, with an explanation if known."""
    code = reason.strip("()").split(",")[0].split(":")[0].strip()
    sentence = _REASONS.get(code)
    if code in ("", "None"):
        return "Slurm has not considered it yet"
    return f"{reason}: {sentence}" if sentence else reason


def explain_end(state: str, reason: str = "") -> str:
    """Return a sentence about how a job finished, from Slurm's state and reason."""
    shown = _STATES.get(state.split(maxsplit=1)[0] if state else "", "it no longer exists")
    # The field may still contain the reason why the job was queued, which explains nothing.
    silent = reason in ("", "None", "(null)", "NonZeroExitCode") or reason in _REASONS
    detail = "" if silent and reason != "NodeDown" else f", {reason}"
    return f"{shown} ({state}{detail})"


def parse_left(text: str) -> float | None:
    """Return the seconds in ``squeue``'s time left, or None for UNLIMITED, NOT_SET and INVALID."""
    try:
        return parse_walltime(text) if ":" in text else None
    except ValueError:
        return None


def is_transient(words: str) -> bool:
    """Return whether the same request may succeed later, judging by Slurm's message."""
    lowered = words.lower()
    return is_job_limit(words) or any(sign in lowered for sign in _TRANSIENT)


def is_job_limit(words: str) -> bool:
    """Return whether a Slurm message reports that the job limit is reached."""
    lowered = words.lower()
    return any(sign in lowered for sign in _JOB_LIMITS)


def user_is_unknown(words: str) -> bool:
    """Return whether a squeue message reports that the uid does not exist."""
    return "invalid user" in words.lower()


def parse_config(text: str, key: str) -> str | None:
    """Return the value of a key in the output of ``scontrol show config``, or None."""
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if separator and name.strip().lower() == key.lower():
            return value.strip()
    return None


def parse_record(line: str) -> dict[str, str]:
    """Return the ``Key=Value`` pairs of one line of ``scontrol show ... --oneliner``."""
    pairs = (part.partition("=") for part in line.split())
    return {key: value for key, separator, value in pairs if separator}


# Names and comments of jobs -----------------------------------------------------------------------


SCHEDULER = "scheduler"
#: Maximum number of characters in a comment. slurmctld refuses longer ones.
LONGEST_COMMENT = 1024
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NAME = re.compile(rf"(?:.+\.)?scalable-({_UUID})\.(.+)")
#: Maximum number of characters of the cluster's name in names of jobs, which have at most 255.
_TITLE = 30
_MANAGER = "@manager-"


def pool_name(cluster_id: str, manager: str, tag: str, cluster: str) -> str:
    """Return the unique name of a pool's jobs. It starts with the cluster's name."""
    return _job_name(cluster, cluster_id, f"{file_name(manager)}@{file_name(tag)}")


def service_name(cluster_id: str, service: str, cluster: str) -> str:
    """Return the name of the job for a cluster's scheduler or one of its managers."""
    rest = f"@{SCHEDULER}" if service == SCHEDULER else f"{_MANAGER}{file_name(service)}"
    return _job_name(cluster, cluster_id, rest)


def _job_name(cluster: str, cluster_id: str, rest: str) -> str:
    title = f"{file_name(cluster)[:_TITLE]}." if cluster else ""
    return f"{title}scalable-{cluster_id}.{rest}"


def cluster_of(name: str) -> str | None:
    """Return the UUID of a job's cluster, or None for other jobs."""
    match = _NAME.fullmatch(name)
    return None if match is None else match[1]


def kind_of(name: str) -> str | None:
    """Return a job's program: ``scheduler``, a manager's id, or None for workers."""
    match = _NAME.fullmatch(name)
    if match is None or not match[2].startswith("@"):
        return None
    return SCHEDULER if match[2] == f"@{SCHEDULER}" else match[2].removeprefix(_MANAGER)


def comment(name: str, directory: Path, **more: Any) -> str:
    """Return a job's comment as JSON, or raise ProviderError if it is too long for Slurm."""
    said = {"scalable": name, "directory": str(directory), **more}
    text = json.dumps(said, separators=(",", ":"))
    if len(text) > LONGEST_COMMENT:
        raise ProviderError(
            f"the comment of job {name} has {len(text)} characters, but Slurm allows "
            f"{LONGEST_COMMENT}",
            hint="shorten the name of the component or of the target, or set XDG_STATE_HOME "
            "to a shorter path",
        )
    return text


def said_by(element: Element) -> dict[str, Any]:
    """Return the fields of a job's comment, or nothing if the site has replaced the comment."""
    try:
        said = json.loads(element.comment)
    except ValueError:
        return {}
    return said if isinstance(said, dict) and "scalable" in said else {}


def number_of(element: Element) -> int:
    """Return the number of a job's worker: ``first`` in the comment plus the array index."""
    first = said_by(element).get("first", 0)
    return (first if isinstance(first, int) else 0) + (element.index or 0)


def worker_of(element: Element) -> str | None:
    """Return the name of a job's worker, or None if the site has replaced the comment."""
    prefix = said_by(element).get("prefix")
    return f"{prefix}{number_of(element)}" if isinstance(prefix, str) else None
