"""AWS as a cloud of machines: Fargate tasks and EC2 instances."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from scalable.errors import ProviderError
from scalable.model import ComponentSpec, DeploymentSpec, Diagnostic, ValidationReport
from scalable.providers.aws import instances, render, roles
from scalable.providers.aws.api import AWSApi, AWSError, Identity
from scalable.providers.aws.fargate import FargateTasks, cluster_is_gone
from scalable.providers.aws.instances import InstanceFrame, Instances, Logs, like
from scalable.providers.aws.names import owner_of
from scalable.providers.aws.network import AWSNetwork, NetworkIds, rules
from scalable.providers.aws.render import TaskFrame
from scalable.providers.aws.roles import EXECUTION, Roles, Scope
from scalable.providers.aws.secrets import AWSSecrets
from scalable.providers.aws.settings import EC2, FARGATE, Settings, settings_at
from scalable.providers.aws.shapes import chosen, fargate_size, units_on
from scalable.providers.quotes import share_counted
from scalable.providers.remote.cloud import (
    CLUSTER,
    MANAGING,
    OWNER,
    ROLE,
    SCHEDULER,
    WORKERS,
    Cloud,
    Machine,
    MachineRequest,
    Refusal,
    StoredFiles,
)
from scalable.providers.remote.cloud_place import ask
from scalable.providers.remote.machines import MachineFrame

logger = logging.getLogger("scalable.providers.aws")

#: Age in seconds at which the resources of a cluster without files count as left behind.
LEFT_AFTER_S = 3600.0
#: Number of machines that are requested at the same time.
BATCH = 10


class AWSCloud:
    """One AWS account and region, as one user can access it (a :class:`.Cloud`)."""

    def __init__(
        self, settings: Settings, *, owner: str | None = None, api: AWSApi | None = None
    ) -> None:
        self._settings = settings
        #: User's name. A manager in the cloud gets it as a value. None until it is requested.
        self._owner = owner
        self.api = api or AWSApi(settings.region)
        self._secrets = AWSSecrets(self.api)
        self._roles = Roles(self.api, settings.passed_roles)
        self._network = AWSNetwork(self.api, settings.network)
        self._logs = Logs(self.api, settings.logs_kept_days)
        self._tasks = FargateTasks(self.api, settings)
        self._instances = Instances(self.api, settings, self._logs)
        self._network_ids_of: dict[str, asyncio.Task[NetworkIds]] = {}

    @property
    def spot_share(self) -> float:
        return self._settings.spot_share

    def units_on(self, component: ComponentSpec) -> int:
        its = self._settings
        if EC2 not in its.kinds:
            return 1
        return units_on(its.offers, its.instance_types, component, its.spot_share)

    async def owner(self) -> str:
        if self._owner is None:
            self._owner = owner_of((await self.api.identity()).arn)
        return self._owner

    # Prerequisites of machines --------------------------------------------------------------------

    async def prepare(self, cluster_id: str, marks: Mapping[str, str]) -> None:
        """Find or create the network, its rules, the roles, the log group and the ECS cluster."""
        await self._network_ids(cluster_id, marks)

    async def missing(self, cluster_id: str) -> list[str]:
        """Return descriptions of the resources that :meth:`prepare` would create."""
        created = await self._network.missing(cluster_id)
        if FARGATE in self._settings.kinds:
            if not self._settings.execution_role:
                created.append("a role that starts tasks and reads this cluster's secrets")
            if not await self._tasks.exists():
                created.append(f"ECS cluster {self._settings.ecs_cluster}")
        elif not self._settings.task_role:
            created.append("roles and instance profiles that read this cluster's secrets")
        if not await self._logs.exists():
            created.append(f"log group /scalable, for {self._settings.logs_kept_days} days of logs")
        return created

    async def absent_types(self) -> dict[str, str]:
        """Map the target's instance types that are missing in the region to hints."""
        wanted = self._settings.instance_types
        there = await self._instances.offered() if wanted else []
        return {name: like(name, there) for name in wanted if name not in there}

    async def _network_ids(self, cluster_id: str, marks: Mapping[str, str]) -> NetworkIds:
        """Return a cluster's network. Concurrent callers share one preparation."""
        task = self._network_ids_of.get(cluster_id)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            marks = {key: marks[key] for key in (CLUSTER, OWNER) if key in marks}
            task = asyncio.ensure_future(self._make_network_ids(cluster_id, marks))
            self._network_ids_of[cluster_id] = task
        return await asyncio.shield(task)

    async def _make_network_ids(self, cluster_id: str, marks: Mapping[str, str]) -> NetworkIds:
        marks = {CLUSTER: cluster_id, OWNER: await self.owner(), **marks}
        beside = [self._logs.prepare()]
        if FARGATE in self._settings.kinds:
            beside.append(self._prepare_tasks(cluster_id, marks))
        elif not self._settings.task_role:
            # A manager in the cloud passes these to its workers, and may not create them itself.
            beside += [self._prepare_role(cluster_id, role, marks) for role in (SCHEDULER, WORKERS)]
        network_ids, _ = await asyncio.gather(
            self._network.network_ids(cluster_id, marks), asyncio.gather(*beside)
        )
        return network_ids

    async def _prepare_tasks(self, cluster_id: str, marks: Mapping[str, str]) -> None:
        await self._tasks.prepare()
        await self._execution_role(cluster_id, marks)

    async def _prepare_role(self, cluster_id: str, role: str, marks: Mapping[str, str]) -> None:
        await self._roles.instance(cluster_id, role, marks)

    async def _execution_role(self, cluster_id: str, marks: Mapping[str, str]) -> str:
        if self._settings.execution_role:
            return self._settings.execution_role
        return await self._roles.execution(cluster_id, marks)

    # Machines -------------------------------------------------------------------------------------

    async def run(self, requests: Sequence[MachineRequest]) -> Mapping[str, Machine | Refusal]:
        """Start machines, ten requests at a time."""
        # The tasks of one RunTask share command and tags, in which workers differ.
        results: dict[str, Machine | Refusal] = {}
        for i in range(0, len(requests), BATCH):
            batch = requests[i : i + BATCH]
            made = await asyncio.gather(*map(self._run, batch), return_exceptions=True)
            for request, result in zip(batch, made, strict=True):
                if isinstance(result, BaseException):
                    raise result
                results[request.name] = result
        return results

    async def _run(self, request: MachineRequest) -> Machine | Refusal:
        if FARGATE not in self._settings.kinds:
            return await self._start_instance(request)
        try:
            return await self._start_task(request)
        except AWSError as error:
            if not cluster_is_gone(error):
                raise
        # Another user's last cluster has deleted the ECS cluster.
        self._network_ids_of.pop(request.marks[CLUSTER], None)
        return await self._start_task(request)

    async def _start_task(self, request: MachineRequest) -> Machine | Refusal:
        cluster_id = request.marks[CLUSTER]
        network_ids = await self._network_ids(cluster_id, request.marks)
        marks = {key: request.marks[key] for key in (CLUSTER, OWNER) if key in request.marks}
        frame = TaskFrame(
            region=self.api.region,
            execution_role=await self._execution_role(cluster_id, marks),
            task_role=await self._task_role(request, marks),
            secret=await self._secrets.arn(cluster_id, request.files),
            disk_gib=self._settings.disk_gib,
        )
        return await self._tasks.start(request, frame, network_ids)

    async def _task_role(self, request: MachineRequest, marks: Mapping[str, str]) -> str | None:
        if request.marks[ROLE] != MANAGING:
            return self._settings.task_role
        if self._settings.manager_role:
            return self._settings.manager_role
        return await self._roles.manager_task(request.marks[CLUSTER], marks)

    async def _start_instance(self, request: MachineRequest) -> Machine | Refusal:
        cluster_id = request.marks[CLUSTER]
        types = self._instances.types(request)
        network_ids = await self._network_ids(cluster_id, request.marks)
        ami = await self._instances.image(types, request.gpus)
        frame = InstanceFrame(
            region=self.api.region,
            ami=ami,
            profile=await self._profile(request),
            secret=await self._secrets.arn(cluster_id, request.files),
            disk=await self._instances.root_disk(ami),
        )
        return await self._instances.start(request, types, frame, network_ids)

    async def _profile(self, request: MachineRequest) -> str:
        role = request.marks[ROLE]
        its = self._settings
        given = its.manager_role if role == MANAGING else its.task_role
        if given:
            return given.replace(":role/", ":instance-profile/")
        marks = {key: request.marks[key] for key in (CLUSTER, OWNER) if key in request.marks}
        return await self._roles.instance(request.marks[CLUSTER], role, marks)

    async def machines(self, marks: Mapping[str, str]) -> list[Machine]:
        kinds = self._settings.kinds
        if len(kinds) == 1:
            return await self._fleet(kinds[0]).machines(marks)
        found: list[Machine] = []
        for answer in await asyncio.gather(*(self._seen(kind, marks) for kind in kinds)):
            found += answer
        return found

    async def _seen(self, kind: str, marks: Mapping[str, str]) -> list[Machine]:
        """Return the machines of a kind, or none if the user may not list that kind."""
        try:
            return await self._fleet(kind).machines(marks)
        except AWSError as error:
            if not error.forbidden:
                raise
            logger.debug("machines of kind %s are not listed: %s", kind, error)
            return []

    def _fleet(self, kind: str) -> FargateTasks | Instances:
        return self._tasks if kind == FARGATE else self._instances

    async def stop(self, machines: Sequence[Machine]) -> None:
        await self._tasks.stop([machine for machine in machines if _is_task(machine)])
        await self._instances.stop([machine for machine in machines if not _is_task(machine)])

    async def stop_units(self, machine: Machine, units: Sequence[str]) -> None:
        """Stop some units of an instance, or a whole task, which has only one unit."""
        if not _is_task(machine):
            await self._instances.stop_units(machine, units)
        elif set(units) & set(machine.units):
            await self.stop([machine])

    async def output(self, machine: Machine, since: str) -> tuple[str, str]:
        fleet = self._fleet(FARGATE if _is_task(machine) else EC2)
        return await self._logs.read(fleet.stream(machine), since)

    # Files ----------------------------------------------------------------------------------------

    async def put_files(
        self, name: str, marks: Mapping[str, str], files: Mapping[str, str]
    ) -> None:
        await self._secrets.put(name, marks, files)

    async def files(self, marks: Mapping[str, str]) -> list[StoredFiles]:
        return await self._secrets.read(marks)

    async def delete_files(self, marks: Mapping[str, str]) -> list[str]:
        return await self._secrets.delete(marks)

    # Removal --------------------------------------------------------------------------------------

    async def clean(self, marks: Mapping[str, str]) -> list[str]:
        """Delete a cluster's resources, unused shared resources, and the user's leftovers."""
        removed: list[str] = []
        if CLUSTER in marks:
            removed += await self._clean_cluster(marks[CLUSTER])
        owner = {OWNER: marks.get(OWNER) or await self.owner()}
        alive = await self._alive() - {marks.get(CLUSTER)}
        for cluster_id in sorted(await self._left_behind(owner, alive)):
            try:
                removed += await self._clean_cluster(cluster_id)
            except ProviderError as error:
                logger.debug("could not clean up cluster %s: %s", cluster_id, error)
        if not alive:
            if FARGATE in self._settings.kinds:
                removed += await self._tasks.clean_shared()
            removed += await self._network.clean_shared()
        return removed

    async def _clean_cluster(self, cluster_id: str) -> list[str]:
        self._network_ids_of.pop(cluster_id, None)
        removed: list[str] = []
        for kind in self._settings.kinds:
            removed += await self._fleet(kind).clean(cluster_id)
        removed += await self._roles.clean(cluster_id)
        removed += await self._network.clean(cluster_id)
        return removed

    async def leftovers(self, marks: Mapping[str, str]) -> dict[str, str]:
        """Describe, by cluster id, roles and security groups of clusters whose files are gone."""
        what = "roles or security groups of a cluster that has ended"
        return dict.fromkeys(await self._left_behind(marks, await self._alive()), what)

    async def _alive(self) -> set[str]:
        """Return the ids of all users' clusters that have files in this region."""
        return {own[CLUSTER] for own in (await self._secrets.find({})).values()}

    async def _left_behind(self, owner: Mapping[str, str], alive: Collection[str]) -> set[str]:
        """Return the user's other clusters with resources that are at least an hour old."""
        found: set[str] = set()
        try:
            found |= await self._network.clusters(owner, LEFT_AFTER_S)
            roles = await self._roles.clusters(LEFT_AFTER_S, without=alive)
        except AWSError as error:
            if not error.forbidden:
                raise
            roles = {}
        own = {each for each, marks in roles.items() if owner.items() <= marks.items()}
        return (found | own).difference(alive)

    async def close(self) -> None:
        await self.api.close()


def _is_task(machine: Machine) -> bool:
    return machine.id.startswith("arn:")


# Check --------------------------------------------------------------------------------------------

TIMEOUT_S = 60.0
#: Id of a cluster that does not exist.
_NONE = "CLUSTER"


def check(spec: DeploymentSpec) -> ValidationReport:
    """Compare the request with the account, without creating anything."""
    clouds: list[AWSCloud] = []

    def connect() -> AWSCloud:
        clouds.append(AWSCloud(settings_at({}, spec)))
        return clouds[-1]

    async def found(_: Cloud) -> list[Diagnostic]:
        return await _findings(spec, clouds[-1])

    report = ValidationReport()
    report.extend(ask(connect, found, TIMEOUT_S))
    return report


async def _findings(spec: DeploymentSpec, cloud: AWSCloud) -> list[Diagnostic]:
    target = ("targets", spec.target_name)
    await cloud.owner()
    found = []
    try:
        created = await cloud.missing(_NONE)
    except ProviderError as error:
        if error.transient:
            raise
        return [Diagnostic("E_BAD_OPTION", target, error.message, hint=error.hint)]
    if created:
        text = "; ".join(created)
        message = f"`up` creates these resources, and `down` removes them: {text}"
        found.append(Diagnostic("W_NOT_APPLIED", target, message, hint=_WAYS, severity="warning"))
    if spec.options["cluster_type"] == EC2:
        absent = await cloud.absent_types()
        for name in absent:
            message = f"region {cloud.api.region} does not have {name}"
            path = (*target, "instance_type")
            found.append(Diagnostic("E_BAD_OPTION", path, message, hint=absent[name]))
    return found


_WAYS = "to use your own, set subnets, security_groups and the options that end with role_arn"


# Objects of a plan --------------------------------------------------------------------------------


#: Placeholders for values that AWS chooses.
ACCOUNT, CLUSTER_ID, USER, SECRET = "000000000000", "CLUSTER", "OWNER", "SECRET"
#: Placeholder for an image that the manifest does not name.
NO_IMAGE = "IMAGE"


def objects(
    spec: DeploymentSpec, counts: Mapping[str, int], name: str | None = None
) -> dict[str, bytes]:
    """Map file names to a cluster's requests, in order. Without ``name``, a session's."""
    its = settings_at({}, spec)
    options = {**spec.options, "image": spec.options["image"] or NO_IMAGE}
    frame = MachineFrame(CLUSTER_ID, USER, options)
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
    scope = Scope(Identity(ACCOUNT, f"arn:aws:iam::{ACCOUNT}:user/{USER}"), its.region or "REGION",
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
    network_ids = NetworkIds(
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
        disk = None if its.disk_gib is None else ("ROOT-DEVICE", its.disk_gib)
        frame = InstanceFrame(region, its.ami or "ami-0", "INSTANCE-PROFILE", SECRET, disk=disk)
        return {
            f"launch-template-{name}.json": instances.launch_template(request, frame, network_ids),
            f"fleet-{name}.json": instances.fleet(
                request, name, types, network_ids, its.spot_allocation
            ),
        }
    size = fargate_size(request.cpus, request.memory_bytes)
    managing = request.program[0] == MANAGING
    role = (its.manager_role or "MANAGER-ROLE") if managing else its.task_role
    task = TaskFrame(region, its.execution_role or "EXECUTION-ROLE", role, SECRET, its.disk_gib)
    place = render.places(tuple(network_ids.subnets), spot=request.spot)[0]
    order = render.run_task(
        request, place, name, its.ecs_cluster, network_ids.groups,
        public=network_ids.public,
    )  # fmt: skip
    return {
        f"task-definition-{name}.json": render.task_definition(
            request, task, (size.cpu_units, size.memory_mib)
        ),
        f"run-task-{name}.json": order,
    }
