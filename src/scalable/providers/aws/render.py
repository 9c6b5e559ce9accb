"""Requests for Fargate tasks, without I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalable.providers.aws.names import CONTAINER, LOG_GROUP, ecs_tags, machine_tags, token
from scalable.providers.remote.cloud import CLUSTER, MACHINE_OF, MachineRequest

#: Variable of a task with its program's files, until the program has read them.
FILES_VARIABLE = "SCALABLE_FILES"
#: Variable that is set in spot tasks.
SPOT_VARIABLE = "SCALABLE_SPOT"
#: Seconds between SIGTERM and SIGKILL, which are the notice of a spot task.
STOP_TIMEOUT_S = 120
#: Disk space in GiB that each task has by default.
DISK_GIB = 20
SPOT, ON_DEMAND = "FARGATE_SPOT", "FARGATE"


@dataclass(frozen=True)
class TaskFrame:
    """The common part of a cluster's tasks."""

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
class Place:
    """Capacity provider and subnets of one attempt to start a task."""

    #: ``FARGATE`` or ``FARGATE_SPOT``.
    provider: str
    #: Subnets of which AWS chooses one.
    subnets: tuple[str, ...]


def places(subnets: Sequence[str], *, spot: bool) -> list[Place]:
    """Return the attempts to place a task: in any subnet, then in each one."""
    zones = [tuple(subnets)]
    if len(subnets) > 1:
        zones += [(subnet,) for subnet in subnets]
    return [Place(SPOT if spot else ON_DEMAND, zone) for zone in zones]


def run_task(
    request: MachineRequest,
    place: Place,
    definition: str,
    cluster: str,
    groups: Sequence[str],
    *,
    public: bool,
) -> dict[str, Any]:
    """Return the parameters of the request that starts one task.

    Its token depends on the machine's name and the place, so that a repeated request does not start
    a second task. A request starts one task, because all its tasks would share the command with the
    names of units.
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
