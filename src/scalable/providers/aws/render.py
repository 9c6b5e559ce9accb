"""Requests for Fargate tasks, and the start of instances, without I/O."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalable.errors import ProviderError
from scalable.providers.aws.names import CONTAINER, LOG_GROUP, UNITS, ecs_tags, machine_tags, token
from scalable.providers.remote.cloud import CLUSTER, MACHINE_OF, NAME, MachineRequest

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
class SubnetPlace:
    """Capacity provider and subnets of one attempt to start a task."""

    #: ``FARGATE`` or ``FARGATE_SPOT``.
    provider: str
    #: Subnets of which AWS chooses one.
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
    Its token depends on the machine's name and the place, so that a repeated request does not start
    a second task.
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


#: Variable with the ARN of the secret with the files, which does not reveal them.
FILES_AT_VARIABLE = "SCALABLE_FILES_AT"
#: Maximum number of bytes of user data.
LIMIT = 16_384
#: Seconds that a program has after SIGTERM.
GRACE_S = 30
#: Suffix of the name of the log stream with the program's exit code.
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
    """The container of an instance."""

    #: Cluster and region, for its output.
    cluster_id: str
    region: str
    image: str
    #: Command, to which the names of the units are appended.
    command: Sequence[str]
    #: Environment variables, none of them secret.
    environment: Mapping[str, str]
    gpus: bool = False


def script(container: Container) -> str:
    """Return the script for a container, before its encoding as user data."""
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
    """Return the script, encoded for a launch template. Raises ProviderError if it is too long."""
    text = script(container).encode()
    if len(text) > LIMIT:
        raise ProviderError(
            f"the environment of a container makes {len(text)} bytes of user data, and EC2 accepts "
            f"{LIMIT}",
            hint="make env: shorter; long values can be part of the image",
        )
    return base64.b64encode(text).decode()


def end_in(output: str) -> tuple[int | None, bool]:
    """Return a program's exit code, and whether it ran out of memory, from the script's output."""
    words = output.split()
    if not words or not words[0].isdigit():
        return None, False
    return int(words[0]), words[1:2] == ["true"]


def _registry_region(registry: str) -> str:
    return registry.split(".")[3] if registry.count(".") >= 4 else "us-east-1"
