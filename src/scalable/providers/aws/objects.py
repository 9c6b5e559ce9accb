"""Requests that make up a cluster on AWS, for ``plan --show-manifests``, without I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scalable.model import ComponentSpec, DeploymentSpec
from scalable.providers.aws import instances, render, roles
from scalable.providers.aws.api import Identity
from scalable.providers.aws.instances import InstanceFrame
from scalable.providers.aws.network import Ground, rules
from scalable.providers.aws.render import TaskFrame
from scalable.providers.aws.roles import EXECUTION, Scope
from scalable.providers.aws.settings import EC2, Settings, settings_at
from scalable.providers.aws.shapes import chosen, units_on
from scalable.providers.aws.sizes import fargate_size
from scalable.providers.quotes import share_counted
from scalable.providers.remote.cloud import MANAGING, SCHEDULER, WORKERS, MachineRequest
from scalable.providers.remote.machines import MachineFrame

#: Placeholders for values that AWS chooses.
ACCOUNT, CLUSTER_ID, OWNER, SECRET = "000000000000", "CLUSTER", "OWNER", "SECRET"
#: Placeholder for an image that the manifest does not name.
NO_IMAGE = "IMAGE"


def objects(
    spec: DeploymentSpec, counts: Mapping[str, int], name: str | None = None
) -> dict[str, bytes]:
    """Return each request of a cluster by file name, in the order in which they are sent.

    Values that AWS chooses are placeholders. ``counts`` are workers by tag. ``name`` is None for a
    session's cluster.
    """
    its = settings_at({}, spec)
    options = {**spec.options, "image": spec.options["image"] or NO_IMAGE}
    frame = MachineFrame(CLUSTER_ID, OWNER, options)
    requests = [frame.scheduler_request()]
    if name is not None and spec.options["manager"] != "here":
        requests.append(frame.manager_request(spec.target_name, "0"))
    made = _prepared(its, detached=name is not None)
    for tag, count in counts.items():
        if count:
            requests.append(_workers(its, frame, spec.components[tag], spec.target_name))
    for request in requests:
        made |= _machine(its, request)
    return {file: (json.dumps(body, indent=2) + "\n").encode() for file, body in made.items()}


def _workers(
    its: Settings, frame: MachineFrame, component: ComponentSpec, manager: str
) -> MachineRequest:
    share = 1
    if its.kinds == (EC2,):
        share = units_on(its.offers, its.instance_types, component, its.spot_share)
    units = [f"{component.name}-{i}" for i in range(share)]
    return frame.worker_request(manager, component, units, units[0], spot=its.spot_share > 0)


def _prepared(its: Settings, *, detached: bool) -> dict[str, Any]:
    """Return the resources that are created before the machines."""
    made: dict[str, Any] = {}
    if not its.network.security_groups:
        for purpose in ("inside", "clients"):
            made[f"security-group-{purpose}.json"] = rules(
                purpose, "sg-inside", its.network.clients_from
            )
    scope = Scope(Identity(ACCOUNT, f"arn:aws:iam::{ACCOUNT}:user/{OWNER}"), its.region or "REGION",
                  CLUSTER_ID)  # fmt: skip
    texts: dict[str, str] = {}
    if its.kinds == (EC2,):
        for role in (SCHEDULER, WORKERS):
            texts[f"role-ec2-{role}.json"] = roles.instance_policy(scope, role)
    elif not its.execution_role:
        texts[f"role-{EXECUTION}.json"] = roles.execution_policy(scope)
    if detached and not its.manager_role:
        texts["role-manager.json"] = roles.manager_policy(scope, its.passed_roles)
    return made | {file: json.loads(text) for file, text in texts.items()}


def _machine(its: Settings, request: MachineRequest) -> dict[str, Any]:
    name = request.marks.get("scalable-tag") or request.program[0]
    ground = Ground(
        dict.fromkeys(its.network.subnets or ("subnet-0",), "ZONE"),
        its.network.security_groups or ("sg-inside",),
        its.network.security_groups or ("sg-inside", "sg-clients"),
        its.network.public,
    )
    region = its.region or "REGION"
    if its.kinds == (EC2,):
        types = chosen(
            its.offers, its.instance_types, request.cpus, request.memory_bytes, request.gpus,
            max(1, len(request.units)), share_counted(its.spot_share, request),
        )  # fmt: skip
        frame = InstanceFrame(region, its.ami or "ami-0", "INSTANCE-PROFILE", SECRET)
        return {
            f"launch-template-{name}.json": instances.launch_template(request, frame, ground),
            f"fleet-{name}.json": instances.fleet(
                request, name, types, ground, its.spot_allocation
            ),
        }
    size = fargate_size(request.cpus, request.memory_bytes)
    managing = request.program[0] == MANAGING
    role = (its.manager_role or "MANAGER-ROLE") if managing else its.task_role
    task = TaskFrame(region, its.execution_role or "EXECUTION-ROLE", role, SECRET, its.disk_gib)
    place = render.places(tuple(ground.subnets), spot=request.spot)[0]
    order = render.run_task(
        request, place, name, its.ecs_cluster, ground.groups,
        public=ground.public,
    )  # fmt: skip
    return {
        f"task-definition-{name}.json": render.task_definition(
            request, task, (size.cpu_units, size.memory_mib)
        ),
        f"run-task-{name}.json": order,
    }
