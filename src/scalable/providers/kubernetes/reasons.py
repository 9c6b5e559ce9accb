"""State of a pod in plain words. This module does no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from scalable.containers import image_fault
from scalable.manager.launcher import Observation, UnitState
from scalable.protocol.operations import OUT_OF_MEMORY
from scalable.providers.kubernetes.render import CONTAINER
from scalable.units import as_written

Pod = Mapping[str, Any]

#: Waiting reasons of a container that only a changed image can resolve.
_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff")
_BAD_IMAGE = ("InvalidImageName", "ErrImageNeverPull")
_NOT_CONFIGURED = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
#: Words in a registry's answer which mean that a retry would fail too.
_LASTING = ("not found", "unknown", "denied", "unauthorized", "does not exist", "invalid")
_NODE_LOST = "its node was lost"
#: Reasons of a pod's failure that its own work did not cause.
_FROM_OUTSIDE = {
    "Evicted": "evicted",
    "Preempting": "preempted",
    "Preempted": "preempted",
    "NodeLost": _NODE_LOST,
    "NodeShutdown": "its node was shut down",
    "Terminated": "its node was shut down",
    "Shutdown": "its node was shut down",
    "NodeAffinity": "its node no longer fits it",
    "UnexpectedAdmissionError": "its node did not admit it",
    "OutOfcpu": "its node had no cpus left",
    "OutOfmemory": "its node had no memory left",
    "OutOfpods": "its node accepts no more pods",
}
_DISRUPTIONS = {
    "PreemptionByScheduler": "preempted by a pod of higher priority",
    "DeletionByTaintManager": _NODE_LOST,
    "DeletionByPodGC": _NODE_LOST,
    "EvictionByEvictionAPI": "evicted",
    "TerminationByKubelet": "stopped by its node",
}
DELETED = "its pod was deleted"
#: Exit codes of programs that got SIGTERM, and SIGKILL after the grace period.
_TOLD_TO_END = (0, 128 + 15, 128 + 9)
_RESOURCES = {
    "cpu": "too few cpus",
    "memory": "too little memory",
    "nvidia.com/gpu": "too few gpus",
}


def observation(pod: Pod, *, gone: bool = False) -> Observation:
    """Return a worker pod's state and the reason. ``gone`` is true if others deleted the pod."""
    status = pod.get("status", {})
    phase = phase_of(pod)
    outside = _outside(status) or _deleted(pod)
    if phase in ("Succeeded", "Failed"):
        words = outside or _ended(pod)
        return Observation(
            UnitState.ENDED,
            words,
            from_outside=outside is not None,
            out_of_memory=outside is None and _is_killed_for_memory(status),
        )
    if gone:
        return Observation(UnitState.ENDED, outside or DELETED, from_outside=True)
    going = phase == "Unknown" or "deletionTimestamp" in pod.get("metadata", {})
    if going and lost_node(pod) is not None:  # nobody reports the end of its program
        return Observation(UnitState.ENDED, _NODE_LOST, from_outside=True)
    waiting = _waiting(pod)
    if waiting is not None:
        words, lasts = waiting
        return Observation(UnitState.ENDED if lasts else UnitState.PENDING, words)
    if phase == "Running":
        return Observation(UnitState.RUNNING)
    return Observation(UnitState.PENDING, _unscheduled(status) or "its container is being created")


def phase_of(pod: Pod) -> str:
    """Return the phase that a pod would have with our container alone.
    Kubernetes reports Running until the last container, such as a service mesh's, has ended.
    """
    status = pod.get("status", {})
    phase = str(status.get("phase", "Pending"))
    for own in status.get("containerStatuses") or ():
        ended = own.get("state", {}).get("terminated")
        if phase == "Running" and own.get("name") == CONTAINER and ended:
            return "Failed" if ended.get("exitCode", 1) else "Succeeded"
    return phase


def _outside(status: Mapping[str, Any]) -> str | None:
    words = _FROM_OUTSIDE.get(status.get("reason", ""))
    if words is not None:
        return _with_message(words, status.get("message"))
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            cause = _DISRUPTIONS.get(condition.get("reason", ""), "stopped from outside")
            return _with_message(cause, condition.get("message"))
    return None


def lost_node(pod: Pod) -> str | None:
    """Return the name of a pod's node if the node does not answer, or None."""
    status = pod.get("status", {})
    lost = status.get("phase") == "Unknown" or (_outside(status) or "").startswith(_NODE_LOST)
    return str(pod["spec"].get("nodeName")) if lost or _is_marked(status) else None


def _is_marked(status: Mapping[str, Any]) -> bool:
    """Return whether Kubernetes has marked a pod since its node is silent for a minute."""
    conditions = status.get("conditions") or ()
    ready: Mapping[str, Any] = next((its for its in conditions if its.get("type") == "Ready"), {})
    own = status.get("containerStatuses") or ()
    silent = ready.get("status") == "False" and not ready.get("reason")
    return silent and bool(own) and all(its.get("ready") for its in own)


def _deleted(pod: Pod) -> str | None:
    """Return a reason if a program ended because its pod was deleted, otherwise None."""
    ends = [own.get("state", {}).get("terminated") or {} for own in _containers(pod["status"])]
    if "deletionTimestamp" not in pod.get("metadata", {}) or not ends:
        return None
    told = all(end.get("exitCode", 0) in _TOLD_TO_END for end in ends)
    return DELETED if told and not _is_killed_for_memory(pod["status"]) else None


def _is_killed_for_memory(status: Mapping[str, Any]) -> bool:
    ends = (own.get("state", {}).get("terminated") or {} for own in _containers(status))
    return any(
        end.get("reason") == "OOMKilled" or end.get("exitCode") == OUT_OF_MEMORY for end in ends
    )


def _ended(pod: Pod) -> str:
    status = pod.get("status", {})
    for own in _containers(status):
        ended = own.get("state", {}).get("terminated")
        if not ended:
            continue
        if ended.get("reason") == "OOMKilled":
            return f"out of memory: it used more than {_memory_limit(pod) or 'its limit'}"
        code = ended.get("exitCode")
        if code == OUT_OF_MEMORY:
            return f"out of memory: it used nearly {_memory_limit(pod) or 'its limit'}"
        if code:
            words = f"exit code {code}"
            reason = ended.get("reason")
            words += f" ({reason})" if reason and reason != "Error" else ""
            return _of_image(pod, _with_message(words, ended.get("message")))
    return _with_message(status.get("reason") or "it ended", status.get("message"))


def _waiting(pod: Pod) -> tuple[str, bool] | None:
    """Return why a container is waiting, and whether that is permanent, or None."""
    for own in _containers(pod.get("status", {})):
        waiting = own.get("state", {}).get("waiting")
        if not waiting:
            continue
        reason, message = waiting.get("reason", ""), str(waiting.get("message") or "")
        if reason in (*_NO_IMAGE, *_BAD_IMAGE):
            lasts = reason in _BAD_IMAGE or any(word in message.lower() for word in _LASTING)
            words = f"image {own.get('image') or _image(pod)!r} cannot be pulled ({reason})"
            return _with_message(words, message), lasts and reason != "ErrImagePull"
        if reason in _NOT_CONFIGURED:
            words = _with_message(f"its container cannot be started ({reason})", message)
            return _of_image(pod, words), False
        if reason == "CrashLoopBackOff":
            return _with_message("its container crashes", message), False
    return None


def _unscheduled(status: Mapping[str, Any]) -> str | None:
    for condition in status.get("conditions") or ():
        if condition.get("type") != "PodScheduled" or condition.get("status") != "False":
            continue
        message = str(condition.get("message") or "")
        if condition.get("reason") == "SchedulingGated":
            return _with_message("it is held back by a scheduling gate", message)
        lacking = _lacking(message)
        words = f"no node has room: {' and '.join(lacking)}" if lacking else "no node accepts it"
        return _with_message(words, message)
    return None


def _lacking(message: str) -> list[str]:
    """Return the missing resources in the Kubernetes scheduler's message, in plain words."""
    resources = re.findall(r"Insufficient ([\w./-]+\w)", message)
    found = [_RESOURCES.get(resource, f"too few {resource}") for resource in resources]
    taints = re.findall(r"untolerated taint(?:\(s\))? \{([^}]*)\}", message)
    found += [f"taint {taint.strip(': ')!r} is not tolerated" for taint in taints]
    if "node affinity" in message or "node selector" in message:
        found.append("no node has the labels of node_selector")
    if "persistentvolumeclaim" in message.lower():
        found.append("a volume claim does not exist")
    return list(dict.fromkeys(found))


#: Words in a pod's refusal which mean that waiting does not help, each with a hint.
_LASTING_REFUSALS = {
    "violates PodSecurity": "use a pod_template that lets pods run as a user other "
    "than root; docs/images.md shows one",
    "failed quota": "set resources: {requests: {...}, limits: {...}} of the target for what the "
    "quota names",
    "denied the request": "ask the administrators of the Kubernetes cluster about this rule",
    " is invalid: ": "check the pod_template and the options that it names",
}


def lasting_refusal(message: str) -> str | None:
    """Return a hint if the message means that Kubernetes will always refuse an object, or None."""
    return next((hint for word, hint in _LASTING_REFUSALS.items() if word in message), None)


def _containers(status: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _of_image(pod: Pod, words: str) -> str:
    """Return why a container did not start, and name its image if the image is the cause."""
    fault = image_fault(_image(pod), words)
    return words if fault is None else f"{fault}: {words}"


def fault_in_output(pod: Pod, output: str) -> str | None:
    """Return the error in a pod's output about an image without this package, or None."""
    return image_fault(_image(pod), output)


def _image(pod: Pod) -> str:
    return str(pod.get("spec", {}).get("containers", [{}])[0].get("image", ""))


def _memory_limit(pod: Pod) -> str | None:
    for container in pod.get("spec", {}).get("containers", ()):
        limit = container.get("resources", {}).get("limits", {}).get("memory")
        if limit is not None:
            return as_written(int(limit)) if str(limit).isdigit() else str(limit)
    return None


def _with_message(words: str, message: str | None) -> str:
    return f"{words}: {message.strip()}" if message and message.strip() else words
