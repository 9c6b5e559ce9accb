"""Requests for tasks and machines, startup scripts, and states. This module does no I/O."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scalable.errors import ProviderError
from scalable.providers.aws.names import (
    CONTAINER,
    LOG_GROUP,
    UNITS,
    ecs_tags,
    machine_tags,
    marks_in,
    pairs,
    token,
    units_in,
)
from scalable.providers.remote.cloud import (
    CLUSTER,
    MACHINE_OF,
    NAME,
    Machine,
    MachineRequest,
    MachineState,
)

#: Set in Fargate tasks: the files of their program, until the program has read them.
FILES_VARIABLE = "SCALABLE_FILES"
#: Set in Fargate tasks on spot capacity.
SPOT_VARIABLE = "SCALABLE_SPOT"
#: Seconds from SIGTERM to SIGKILL. A preempted spot task has the same time.
STOP_TIMEOUT_S = 120
#: Disk space in GiB that each task has by default.
DISK_GIB = 20
SPOT, ON_DEMAND = "FARGATE_SPOT", "FARGATE"


@dataclass(frozen=True)
class TaskFrame:
    """Properties that all Fargate tasks of a cluster share."""

    #: Region of the logs.
    region: str
    execution_role: str
    #: ARN of the programs' role. None for no role.
    task_role: str | None
    #: ARN of the secret with the files.
    secret: str
    #: Disk space of a task. None for the usual 20 GiB.
    disk_gib: int | None = None
    #: ``X86_64`` or ``ARM64``.
    architecture: str = "X86_64"


def program(request: MachineRequest) -> list[str]:
    """Return the command of a container."""
    first = (
        "python3",
        "-m",
        "scalable.clusters.programs.first_process",
        "scalable.clusters.programs.machine",
    )
    return [*first, "aws", *request.program]


def task_definition(request: MachineRequest, frame: TaskFrame, size: tuple[int, int]) -> Any:
    """Return a task definition without its name, for a size in CPU units (1/1024 vCPU) and MiB."""
    environment = {**request.environment, MACHINE_OF: "aws"}
    container = {
        "name": CONTAINER,
        "image": request.image.removeprefix("docker://"),
        "essential": True,
        "memory": size[1],
        "environment": [{"name": k, "value": v} for k, v in sorted(environment.items())],
        "secrets": [{"name": FILES_VARIABLE, "valueFrom": frame.secret}],
        "stopTimeout": STOP_TIMEOUT_S,
        "logConfiguration": {
            "logDriver": "awslogs",
            "options": {
                "awslogs-group": LOG_GROUP,
                "awslogs-region": frame.region,
                "awslogs-stream-prefix": request.marks[CLUSTER],
            },
        },
    }
    definition: dict[str, Any] = {
        "networkMode": "awsvpc",
        "requiresCompatibilities": ["FARGATE"],
        "cpu": str(size[0]),
        "memory": str(size[1]),
        "executionRoleArn": frame.execution_role,
        "runtimePlatform": {
            "cpuArchitecture": frame.architecture,
            "operatingSystemFamily": "LINUX",
        },
        "containerDefinitions": [container],
    }
    if frame.task_role:
        definition["taskRoleArn"] = frame.task_role
    if frame.disk_gib is not None and frame.disk_gib > DISK_GIB:
        definition["ephemeralStorage"] = {"sizeInGiB": frame.disk_gib}
    return definition


@dataclass(frozen=True)
class SubnetPlace:
    """Capacity provider and subnets of one attempt to start a task."""

    #: ``FARGATE`` or ``FARGATE_SPOT``.
    provider: str
    #: Subnets from which AWS chooses one.
    subnets: tuple[str, ...]


def places(subnets: Sequence[str], *, spot: bool) -> list[SubnetPlace]:
    """Return the attempts to place a task: in any subnet, then in each one."""
    zones = [tuple(subnets)]
    if len(subnets) > 1:
        zones += [(subnet,) for subnet in subnets]
    return [SubnetPlace(SPOT if spot else ON_DEMAND, zone) for zone in zones]


def run_task(
    request: MachineRequest,
    place: SubnetPlace,
    definition: str,
    cluster: str,
    groups: Sequence[str],
    *,
    public: bool,
) -> dict[str, Any]:
    """Return the parameters of the request that starts one task.
    Its token depends on machine name and place, so a repeated request starts only one task.
    """
    override: dict[str, Any] = {"name": CONTAINER, "command": program(request)}
    if place.provider == SPOT:
        override["environment"] = [{"name": SPOT_VARIABLE, "value": "1"}]
    return {
        "cluster": cluster,
        "taskDefinition": definition,
        "count": 1,
        "clientToken": token(request.marks[CLUSTER], request.name, place.provider, *place.subnets),
        "startedBy": request.marks[CLUSTER],
        "capacityProviderStrategy": [{"capacityProvider": place.provider, "weight": 1}],
        "networkConfiguration": {
            "awsvpcConfiguration": {
                "subnets": list(place.subnets),
                "securityGroups": list(groups),
                "assignPublicIp": "ENABLED" if public else "DISABLED",
            }
        },
        "overrides": {"containerOverrides": [override]},
        "tags": ecs_tags(machine_tags(request)),
        "enableECSManagedTags": False,
    }


def detail(attachments: Sequence[Mapping[str, Any]], name: str) -> str | None:
    """Return a detail of a task's attachments, such as its address, or None."""
    for attachment in attachments:
        for each in attachment.get("details", ()):
            if each.get("name") == name:
                return str(each.get("value"))
    return None


# Start of machines --------------------------------------------------------------------------------


#: Set on EC2 machines: the ARN of the secret with the files. It does not reveal them.
FILES_AT_VARIABLE = "SCALABLE_FILES_AT"
#: Maximum number of bytes of user data.
LIMIT = 16_384
#: Seconds that a program has after SIGTERM.
GRACE_S = 30
#: Name suffix of the log stream with the program's exit code.
END_STREAM = "-end"
#: Prefix of the script's own lines on the instance's console.
NOTE = "scalable: "

_SCRIPT = """\
#!/bin/bash
# Starts the container of this instance, tells its end, and ends the instance.
exec </dev/null
metadata=http://169.254.169.254/latest
note() {{ echo "{note}$1"; }}
finish() {{
  note "the program ended with exit code $1"
  # The image is here already; its output is the only thing that is kept of this instance.
  docker run --rm --network host {log_options} --log-opt awslogs-stream="$stream{end}" \\
    --entrypoint echo "$image" "$1 $2" >/dev/null 2>&1
  shutdown -h now
  exit
}}
token=$(curl -sS -m 10 --retry 10 --retry-connrefused -X PUT \\
  -H 'X-aws-ec2-metadata-token-ttl-seconds: 21600' "$metadata/api/token")
header="X-aws-ec2-metadata-token: $token"
ask() {{ curl -sS -f -m 10 --retry 5 -H "$header" "$metadata/meta-data/$1"; }}
name=$(ask tags/instance/{name})
stream={cluster_id}/{container}/$name
units=
for key in $(ask tags/instance/ | grep '^{units}' | sort -V); do
  units="$units $(ask "tags/instance/$key")"
done
image={image}
# The agent of ECS has nothing to do here.
systemctl disable --now ecs >/dev/null 2>&1
systemctl start docker >/dev/null 2>&1
{login}for pause in 2 5 10 20 40 0; do
  fault=$(docker pull -q "$image" 2>&1) && break
  note "image $image: $fault"
  if [ "$pause" = 0 ]; then shutdown -h now; exit; fi
  sleep "$pause"
done
docker run --name {container} --network host --stop-timeout {grace} {options}\\
  {log_options} --log-opt awslogs-stream="$stream" \\
  {environment} \\
  "$image" {command} $units >/dev/null 2>&1
code=$?
finish "$code" "$(docker inspect -f '{{{{.State.OOMKilled}}}}' {container} 2>/dev/null)"
"""

_LOGIN = """\
command -v aws >/dev/null || dnf install -y awscli >/dev/null 2>&1
aws ecr get-login-password --region {region} |
  docker login --username AWS --password-stdin {registry} >/dev/null 2>&1
"""


@dataclass(frozen=True)
class Container:
    """Container of an instance."""

    #: Cluster and region, which determine the log stream of its output.
    cluster_id: str
    region: str
    image: str
    #: Command, to which the names of the units are appended.
    command: Sequence[str]
    #: Environment variables, none of them secret.
    environment: Mapping[str, str]
    gpus: bool = False


def script(container: Container) -> str:
    """Return the script for a container, before it is encoded as user data."""
    registry = container.image.partition("/")[0]
    private = ".dkr.ecr." in registry
    login = _LOGIN.format(region=_registry_region(registry), registry=registry) if private else ""
    log = f"--log-driver awslogs --log-opt awslogs-region={container.region}"
    return _SCRIPT.format(
        note=NOTE,
        end=END_STREAM,
        log_options=f"{log} --log-opt awslogs-group={LOG_GROUP}",
        name=NAME,
        cluster_id=shlex.quote(container.cluster_id),
        container=CONTAINER,
        units=UNITS,
        image=shlex.quote(container.image),
        login=login,
        grace=GRACE_S,
        options="--gpus all " if container.gpus else "",
        environment=" ".join(
            f"-e {shlex.quote(f'{key}={value}')}"
            for key, value in sorted(container.environment.items())
        ),
        command=shlex.join(container.command),
    )


def user_data(container: Container) -> str:
    """Return the script encoded for a launch template, or raise ProviderError if it is too long."""
    text = script(container).encode()
    if len(text) > LIMIT:
        raise ProviderError(
            f"the environment of a container needs {len(text)} bytes of user data, but EC2 accepts "
            f"{LIMIT}",
            hint="make env: shorter; long values can be part of the image",
        )
    return base64.b64encode(text).decode()


def end_in(output: str) -> tuple[int | None, bool]:
    """Return a program's exit code and whether it ran out of memory, from the script's output."""
    words = output.split()
    if not words or not words[0].isdigit():
        return None, False
    return int(words[0]), words[1:2] == ["true"]


def _registry_region(registry: str) -> str:
    return registry.split(".")[3] if registry.count(".") >= 4 else "us-east-1"


# States -------------------------------------------------------------------------------------------


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
    "SpotInterruption": "AWS reclaimed its spot capacity",
    "TerminationNotice": "AWS stopped its machine",
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
    """Return whether a reason means that AWS has no machine now, but may have one later."""
    return bool(_CAPACITY.search(reason))


def in_words(reason: str) -> str:
    """Return the reason for a refusal in plain words."""
    if reason in _RESOURCES:
        return f"{_RESOURCES[reason]} ({reason})"
    if re.search("limit on the number|vcpu.{0,30}limit", reason, re.IGNORECASE):
        return f"the account's limit of vCPUs is reached: {reason}"
    return " ".join(reason.split()).rstrip(".")


def task_machine(task: Mapping[str, Any], public: Mapping[str, str]) -> Machine:
    """Convert a task in a ``DescribeTasks`` answer, with its tags, to a machine."""
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
    """Return a task's stop reason, whether it was external, and whether memory ran out."""
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
        text = f"its program exited (exit code {container['exitCode']})"
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
#: Code of an instance whose own program has shut it down.
_BY_ITSELF = "Client.InstanceInitiatedShutdown"
_INSTANCE_ENDS = {
    "Server.SpotInstanceTermination": "AWS reclaimed its spot capacity",
    "Server.SpotInstanceShutdown": "AWS reclaimed its spot capacity",
    "Server.InsufficientInstanceCapacity": "AWS had no capacity",
    "Client.UserInitiatedShutdown": "it was terminated",
    _BY_ITSELF: "its program exited",
}


def instance_machine(instance: Mapping[str, Any], tagged: Mapping[str, str]) -> Machine:
    """Convert an instance in a ``DescribeInstances`` answer, with its tags, to a machine."""
    name = str(instance["State"]["Name"])
    state = _INSTANCE_STATES.get(name, MachineState.PENDING)
    reason, from_outside = None, False
    if state is MachineState.PENDING:
        reason = "its instance boots"
    elif state is not MachineState.RUNNING:
        code = str((instance.get("StateReason") or {}).get("Code") or "")
        said = str((instance.get("StateReason") or {}).get("Message") or "")
        reason = _INSTANCE_ENDS.get(code) or said or "its instance has stopped"
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
    """Return whether a start failed for a temporary reason."""
    return any(word in said for word in ("Timeout waiting for network", "ResourceInitialization"))
