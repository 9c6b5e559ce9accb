"""States of machines, and reasons in plain words, without I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from scalable.providers.aws.names import marks_in, pairs, units_in
from scalable.providers.aws.render import SPOT, detail
from scalable.providers.remote.cloud import Machine, MachineState

_TASK_STATES = {
    "PROVISIONING": MachineState.PENDING,
    "PENDING": MachineState.PENDING,
    "ACTIVATING": MachineState.PENDING,
    "RUNNING": MachineState.RUNNING,
    "DEACTIVATING": MachineState.ENDING,
    "STOPPING": MachineState.ENDING,
    "DEPROVISIONING": MachineState.ENDING,
    "STOPPED": MachineState.ENDED,
    "DELETED": MachineState.ENDED,
}
_WAITING = {
    "PROVISIONING": "AWS prepares its network",
    "PENDING": "its image is being pulled",
    "ACTIVATING": "it is about to run",
}
#: Stop codes that the program did not cause.
_FROM_OUTSIDE = {
    "SpotInterruption": "AWS took its spot capacity back",
    "TerminationNotice": "AWS ended its machine",
    "InfrastructureHealth": "AWS found its machine unhealthy",
    "UserInitiated": "it was stopped",
    "ServiceSchedulerInitiated": "it was stopped",
}
#: Reason that this package gives when it stops a task.
ENDED_BY_US = "ended by scalable"

_CAPACITY = re.compile(
    r"capacity is (currently )?unavailable|insufficient.{0,20}capacity|resource:|^agent$|"
    r"^attribute$|limit on the number of|vcpu.{0,30}limit|no container instances",
    re.IGNORECASE,
)
_RESOURCES = {
    "RESOURCE:MEMORY": "there is no memory left",
    "RESOURCE:CPU": "there are no CPUs left",
    "RESOURCE:GPU": "there are no GPUs left",
    "RESOURCE:ENI": "there is no network interface left",
}


def lacks_capacity(reason: str) -> bool:
    """Return whether a reason means that AWS has no machine now, and may have one later."""
    return bool(_CAPACITY.search(reason))


def in_words(reason: str) -> str:
    """Return the reason of a refusal in plain words."""
    if reason in _RESOURCES:
        return f"{_RESOURCES[reason]} ({reason})"
    if re.search("limit on the number|vcpu.{0,30}limit", reason, re.IGNORECASE):
        return f"the account's limit of vCPUs is reached: {reason}"
    return " ".join(reason.split()).rstrip(".")


def task_machine(task: Mapping[str, Any], public: Mapping[str, str]) -> Machine:
    """Return the machine of a task from ``DescribeTasks``, with its tags.
    ``public`` contains the public addresses of network interfaces.
    """
    tagged = pairs(task.get("tags"))
    status = str(task.get("lastStatus", "PENDING"))
    state = _TASK_STATES.get(status, MachineState.PENDING)
    if state is not MachineState.ENDED and task.get("desiredStatus") == "STOPPED":
        state = MachineState.ENDING
    container: Mapping[str, Any] = next(iter(task.get("containers") or ()), {})
    attachments = task.get("attachments") or ()
    interface = detail(attachments, "networkInterfaceId")
    reason = _WAITING.get(status)
    from_outside = out_of_memory = False
    if state in (MachineState.ENDED, MachineState.ENDING):
        reason, from_outside, out_of_memory = _end(task, container)
    made: datetime | None = task.get("createdAt")
    return Machine(
        id=str(task["taskArn"]),
        marks=marks_in(tagged),
        units=units_in(tagged),
        state=state,
        reason=reason,
        address=detail(attachments, "privateIPv4Address"),
        public_address=public.get(interface or ""),
        exit_code=container.get("exitCode"),
        from_outside=from_outside,
        out_of_memory=out_of_memory,
        shape=f"{task.get('cpu', '?')}/{task.get('memory', '?')}",
        zone=str(task.get("availabilityZone") or ""),
        spot=task.get("capacityProviderName") == SPOT,
        made_at=made.timestamp() if made else 0.0,
    )


def _end(task: Mapping[str, Any], container: Mapping[str, Any]) -> tuple[str | None, bool, bool]:
    """Return how a task ended: reason, from outside or not, out of memory or not."""
    code, said = str(task.get("stopCode") or ""), str(task.get("stoppedReason") or "")
    inner = str(container.get("reason") or "")
    if "OutOfMemory" in inner:
        return f"it used more than its {task.get('memory', '?')} MiB of memory", False, True
    if "Capacity" in said and lacks_capacity(said):
        return f"AWS had no capacity: {in_words(said)}", True, False
    if code in _FROM_OUTSIDE:
        words = _FROM_OUTSIDE[code]
        return (f"{words}: {said}" if said else words), True, False
    if code == "TaskFailedToStart":
        return f"it could not start: {inner or said}", _is_passing(said), False
    if container.get("exitCode") is not None:
        text = f"its program ended with exit code {container['exitCode']}"
        return (f"{text}: {inner}" if inner else text), False, False
    return inner or said or None, False, False


_INSTANCE_STATES = {
    "pending": MachineState.PENDING,
    "running": MachineState.RUNNING,
    "shutting-down": MachineState.ENDING,
    "stopping": MachineState.ENDING,
    "terminated": MachineState.ENDED,
    "stopped": MachineState.ENDED,
}
#: Code for an instance that its own program has shut down.
_BY_ITSELF = "Client.InstanceInitiatedShutdown"
_INSTANCE_ENDS = {
    "Server.SpotInstanceTermination": "AWS took its spot capacity back",
    "Server.SpotInstanceShutdown": "AWS took its spot capacity back",
    "Server.InsufficientInstanceCapacity": "AWS had no capacity",
    "Client.UserInitiatedShutdown": "it was terminated",
    _BY_ITSELF: "its program ended",
}


def instance_machine(instance: Mapping[str, Any], tagged: Mapping[str, str]) -> Machine:
    """Return the machine of an instance from ``DescribeInstances``, with its tags."""
    name = str(instance["State"]["Name"])
    state = _INSTANCE_STATES.get(name, MachineState.PENDING)
    reason, from_outside = None, False
    if state is MachineState.PENDING:
        reason = "its instance boots"
    elif state is not MachineState.RUNNING:
        code = str((instance.get("StateReason") or {}).get("Code") or "")
        said = str((instance.get("StateReason") or {}).get("Message") or "")
        reason = _INSTANCE_ENDS.get(code) or said or "its instance has ended"
        from_outside = code != _BY_ITSELF
    made: datetime | None = instance.get("LaunchTime")
    return Machine(
        id=str(instance["InstanceId"]),
        marks=marks_in(tagged),
        units=units_in(tagged),
        state=state,
        reason=reason,
        address=instance.get("PrivateIpAddress") or None,
        public_address=instance.get("PublicIpAddress") or None,
        from_outside=from_outside,
        shape=str(instance.get("InstanceType") or ""),
        zone=str((instance.get("Placement") or {}).get("AvailabilityZone") or ""),
        spot=instance.get("InstanceLifecycle") == "spot",
        made_at=made.timestamp() if made else 0.0,
    )


def _is_passing(said: str) -> bool:
    """Return whether a start failed for a reason that may pass."""
    return any(word in said for word in ("Timeout waiting for network", "ResourceInitialization"))
