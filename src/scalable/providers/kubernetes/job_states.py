"""States of a cluster's programs, from its Jobs and their pods, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scalable.manager.launcher import UnitState
from scalable.providers.kubernetes.dask_operator import KEEPER, as_started_once
from scalable.providers.kubernetes.names import CLUSTER, ROLE, SCHEDULER, label
from scalable.providers.kubernetes.reasons import observation
from scalable.spec import ProgramState

Thing = Mapping[str, Any]


def made_at(thing: Thing) -> str:
    """Return an object's creation time, in a form that sorts by time."""
    return str(thing["metadata"].get("creationTimestamp"))


def is_going(thing: Thing) -> bool:
    """Return whether an object is being deleted."""
    return "deletionTimestamp" in thing["metadata"]


def owners(thing: Thing) -> list[str]:
    """Return the uids of the owners of an object."""
    return [str(owner.get("uid")) for owner in thing["metadata"].get("ownerReferences") or ()]


def has_completed(job: Thing) -> bool:
    """Return whether a Job's program has exited with code 0."""
    return _condition(job, "Complete") is not None


def has_ended(job: Thing) -> bool:
    """Return whether a Job has completed or failed, or is being deleted."""
    return has_completed(job) or _condition(job, "Failed") is not None or is_going(job)


def is_kept(job: Thing) -> bool:
    """Return whether a root object's pod is a keeper, with the scheduler in another pod."""
    return label(job["spec"]["template"], ROLE) == KEEPER


def state_of(job: Thing, pods: Iterable[Thing]) -> ProgramState:
    """Return the state of a Job's program, from the Job and pods that include the program's."""
    if is_kept(job):
        own = (CLUSTER, label(job, CLUSTER)), (ROLE, SCHEDULER)
        found = [pod for pod in pods if all(label(pod, key) == text for key, text in own)]
        return _kept_state(job, found)
    return _own_state(job, [pod for pod in pods if job["metadata"]["uid"] in owners(pod)])


def _kept_state(job: Thing, pods: list[Thing]) -> ProgramState:
    """Return the state of a scheduler that Kubernetes may restart: only its first run counts."""
    failed = _condition(job, "Failed")
    if failed is not None:
        return ProgramState("failed", f"{failed.get('reason')}: {failed.get('message')}")
    pod = min(pods, key=made_at, default=None)
    if pod is None:
        if has_completed(job):
            return ProgramState("failed", "the scheduler's pod is gone")
        return ProgramState("pending", "the Dask operator has not made its pod yet")
    first = as_started_once(pod)
    seen = observation(first)
    if seen.state is UnitState.ENDED:
        succeeded = first.get("status", {}).get("phase") == "Succeeded"
        return ProgramState("completed" if succeeded else "failed", seen.reason)
    if has_completed(job):
        return ProgramState("failed", "the scheduler's pod was lost, and its calls with it")
    return ProgramState("running" if seen.state is UnitState.RUNNING else "pending", seen.reason)


def _own_state(job: Thing, pods: list[Thing]) -> ProgramState:
    if has_completed(job):
        return ProgramState("completed")
    latest = max(pods, key=made_at, default=None)
    seen = None if latest is None else observation(latest)
    failed = _condition(job, "Failed")
    if failed is not None:
        why = seen.reason if seen is not None and seen.state is UnitState.ENDED else None
        return ProgramState("failed", why or f"{failed.get('reason')}: {failed.get('message')}")
    if seen is None or seen.state is UnitState.PENDING:
        return ProgramState("pending", None if seen is None else seen.reason)
    if seen.state is UnitState.ENDED:
        succeeded = (latest or {}).get("status", {}).get("phase") == "Succeeded"
        last = label(job, ROLE) == SCHEDULER  # a manager is restarted
        state = "completed" if succeeded else "failed" if last else "pending"
        return ProgramState(state, seen.reason)
    return ProgramState("running")


def _condition(job: Thing, kind: str) -> Thing | None:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if (c["type"], c["status"]) == (kind, "True")), None)
