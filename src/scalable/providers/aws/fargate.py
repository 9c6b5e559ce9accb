"""Machines that are Fargate tasks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from scalable.errors import ProviderError
from scalable.providers.aws import render
from scalable.providers.aws.api import AWSApi, AWSError
from scalable.providers.aws.names import (
    SHARED,
    content_name,
    ecs_tags,
    family,
    has,
    log_stream,
    pairs,
)
from scalable.providers.aws.network import NetworkIds
from scalable.providers.aws.render import (
    ENDED_BY_US,
    ON_DEMAND,
    SPOT,
    SubnetPlace,
    TaskFrame,
    detail,
    in_words,
    lacks_capacity,
    task_machine,
)
from scalable.providers.aws.settings import Settings
from scalable.providers.aws.shapes import fargate_size
from scalable.providers.remote.cloud import (
    CLUSTER,
    NAME,
    ROLE,
    SCHEDULER,
    TAG,
    Machine,
    MachineRequest,
    MachineState,
    Refusal,
)

logger = logging.getLogger("scalable.providers.aws")

#: Seconds for which a new role may be unknown to ECS.
ROLE_TIMEOUT_S = 30.0
ROLE_POLL_S = 2.0
#: Seconds for which a size without capacity is not requested in the same subnets.
EXHAUSTED_S = 20.0
#: Seconds for which ECS reports a task that has stopped.
REMEMBERED_S = 3600.0
_DESCRIBED_AT_ONCE = 100
_DELETED_AT_ONCE = 10


class FargateTasks:
    """The Fargate tasks in one ECS cluster."""

    def __init__(self, api: AWSApi, settings: Settings) -> None:
        self._api = api
        self._settings = settings
        self._cluster = settings.ecs_cluster
        #: Registrations of task definitions, by name.
        self._defined: dict[str, asyncio.Task[None]] = {}
        #: Start times of tasks that lists may not contain yet.
        self._started: dict[str, float] = {}
        self._ended: dict[str, Machine] = {}
        self._listed_ended = False
        self._public: dict[str, str] = {}
        #: Times until which a size without capacity is not requested.
        self._exhausted: dict[tuple[str, SubnetPlace], float] = {}

    # The ECS cluster ------------------------------------------------------------------------------

    async def exists(self) -> bool:
        answer = await self._api.call("ecs", "describe_clusters", clusters=[self._cluster])
        return any(each.get("status") == "ACTIVE" for each in answer.get("clusters", ()))

    async def prepare(self) -> None:
        """Create the ECS cluster if it does not exist."""
        if not await self.exists():
            logger.debug("ECS cluster %s is created", self._cluster)
            await self._api.call(
                "ecs",
                "create_cluster",
                clusterName=self._cluster,
                capacityProviders=[ON_DEMAND, SPOT],
                tags=ecs_tags({SHARED: "cluster"}),
            )

    # Starting -------------------------------------------------------------------------------------

    async def start(
        self, request: MachineRequest, frame: TaskFrame, network_ids: NetworkIds
    ) -> Machine | Refusal:
        """Start a task, and return its machine, or the refusal for lack of capacity."""
        try:
            size = fargate_size(request.cpus, request.memory_bytes)
        except ValueError as error:
            raise ProviderError(f"machine {request.name}: {error}") from error
        if request.gpus:
            raise ProviderError(
                f"machine {request.name}: Fargate has no GPUs", hint="write cluster_type: ec2"
            )
        content = render.task_definition(request, frame, (size.cpu_units, size.memory_mib))
        purpose = request.marks.get(TAG) or request.marks[ROLE]
        definition = content_name(request.marks[CLUSTER], purpose, content)
        await self._define(definition, content, request.marks)
        said = ""
        for place in render.places(tuple(network_ids.subnets), spot=request.spot):
            if self._exhausted.get((str(size), place), 0.0) > time.monotonic():
                continue
            said = await self._try(request, definition, place, network_ids)
            if said.startswith("arn:"):
                self._started[said] = time.monotonic()
                return _new(request, said, str(size), place)
            logger.debug("%s: %s: %s", request.name, place, said)
            self._exhausted[str(size), place] = time.monotonic() + EXHAUSTED_S
        zones = ", ".join(sorted(set(network_ids.subnets.values())))
        kinds = "spot" if request.spot else "on demand"
        reason = in_words(said) if said else "there was no capacity a moment ago"
        return Refusal(f"{reason} (tried {size}, {kinds}, in {zones})")

    async def _try(
        self, request: MachineRequest, definition: str, place: SubnetPlace, network_ids: NetworkIds
    ) -> str:
        """Return the ARN of the started task, or the reason for the lack of capacity."""
        groups = network_ids.groups
        if request.marks[ROLE] == SCHEDULER:
            groups = network_ids.scheduler_groups
        order = render.run_task(
            request, place, definition, self._cluster, groups, public=network_ids.public
        )
        until = time.monotonic() + ROLE_TIMEOUT_S
        while True:
            try:
                answer = await self._api.call("ecs", "run_task", **order)
                break
            except AWSError as error:
                if lacks_capacity(error.message):
                    return error.message
                if "assume the role" not in error.message or time.monotonic() > until:
                    raise _with_hint(error, self._cluster) from error
            await asyncio.sleep(ROLE_POLL_S)  # a new role takes seconds to be known everywhere
        if answer.get("tasks"):
            return str(answer["tasks"][0]["taskArn"])
        failure: Mapping[str, Any] = next(iter(answer.get("failures") or ()), {})
        reason = str(failure.get("reason") or "no reason was given")
        if not lacks_capacity(reason):
            raise ProviderError(
                f"ECS does not start machine {request.name}: "
                f"{' '.join((reason, str(failure.get('detail') or ''))).strip()}"
            )
        return reason

    async def _define(self, name: str, content: Any, marks: Mapping[str, str]) -> None:
        """Register a task definition once, even with concurrent callers."""
        task = self._defined.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.ensure_future(self._register(name, content, marks))
            self._defined[name] = task
        await asyncio.shield(task)

    async def _register(self, name: str, content: Any, marks: Mapping[str, str]) -> None:
        try:
            said = await self._api.call("ecs", "describe_task_definition", taskDefinition=name)
            if said["taskDefinition"].get("status") == "ACTIVE":
                return
        except AWSError as error:
            if error.error_code != "ClientException":
                raise
        logger.debug("task definition %s is registered", name)
        kept = {key: value for key, value in marks.items() if key != NAME}
        try:
            await self._api.call(
                "ecs", "register_task_definition", family=name, tags=ecs_tags(kept), **content
            )
        except AWSError as error:
            raise _with_hint(error, self._cluster) from error

    # Observing ------------------------------------------------------------------------------------

    async def machines(self, marks: Mapping[str, str]) -> list[Machine]:
        arns = await self._list_task_arns(marks)
        if arns is None:
            return []
        now = time.monotonic()
        self._started = {a: t for a, t in self._started.items() if now - t < REMEMBERED_S}
        asked = sorted({*arns, *self._started} - self._ended.keys())
        batches = [
            asked[i : i + _DESCRIBED_AT_ONCE] for i in range(0, len(asked), _DESCRIBED_AT_ONCE)
        ]
        answers = await asyncio.gather(*map(self._described, batches))
        tasks = [task for answer in answers for task in answer]
        await self._learn_addresses(tasks)
        found = [task_machine(task, self._public) for task in tasks]
        for machine in found:
            # The list of running tasks does not contain it any more when it stops.
            self._started.setdefault(machine.id, now)
            if machine.state is MachineState.ENDED:
                self._ended[machine.id] = machine
                self._started.pop(machine.id, None)
        self._ended = {
            its_id: machine
            for its_id, machine in self._ended.items()
            if machine.made_at > time.time() - 24 * REMEMBERED_S
        }
        seen = {machine.id: machine for machine in [*self._ended.values(), *found]}
        return [machine for machine in seen.values() if has(machine.marks, marks)]

    async def _list_task_arns(self, marks: Mapping[str, str]) -> list[str] | None:
        """Return the ARNs of tasks that ECS lists, or None if the ECS cluster does not exist."""
        limited = {"startedBy": marks[CLUSTER]} if CLUSTER in marks else {}
        try:
            arns = await self._list(**limited)
            if not self._listed_ended:
                arns += await self._list(desiredStatus="STOPPED")
                self._listed_ended = True
        except AWSError as error:
            if not cluster_is_gone(error):
                raise
            return None
        return arns

    async def _list(self, **limited: str) -> list[str]:
        return await self._api.pages(
            "ecs", "list_tasks", "taskArns", cluster=self._cluster, maxResults=100, **limited
        )

    async def _described(self, arns: list[str]) -> list[dict[str, Any]]:
        answer = await self._api.call(
            "ecs", "describe_tasks", cluster=self._cluster, tasks=arns, include=["TAGS"]
        )
        for failure in answer.get("failures") or ():
            self._started.pop(str(failure.get("arn")), None)
        return list(answer.get("tasks") or ())

    async def _learn_addresses(self, tasks: Sequence[Mapping[str, Any]]) -> None:
        """Request the public address of each running scheduler, once."""
        interfaces = []
        for task in tasks:
            interface = detail(task.get("attachments") or (), "networkInterfaceId")
            running = task.get("lastStatus") == "RUNNING"
            is_scheduler = pairs(task.get("tags")).get(ROLE) == SCHEDULER
            if running and is_scheduler and interface and interface not in self._public:
                interfaces.append(interface)
        if not (interfaces and self._settings.network.public):
            return
        filters = [{"Name": "network-interface-id", "Values": interfaces}]
        for each in await self._api.pages(
            "ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=filters
        ):
            public = (each.get("Association") or {}).get("PublicIp")
            if public:
                self._public[each["NetworkInterfaceId"]] = str(public)

    # Stopping -------------------------------------------------------------------------------------

    async def stop(self, machines: Sequence[Machine]) -> None:
        await asyncio.gather(*(self._stop(machine.id) for machine in machines))

    async def _stop(self, arn: str) -> None:
        try:
            await self._api.call(
                "ecs", "stop_task", cluster=self._cluster, task=arn, reason=ENDED_BY_US
            )
        except AWSError as error:
            gone = error.error_code == "InvalidParameterException" and "not found" in error.message
            if not gone and not cluster_is_gone(error):
                raise

    async def clean(self, cluster_id: str) -> list[str]:
        """Delete the task definitions of a cluster, and return a description of each."""
        removed = []
        families = await self._api.pages(
            "ecs", "list_task_definition_families", "families",
            familyPrefix=family(cluster_id), status="ACTIVE",
        )  # fmt: skip
        for name in families:
            arns = await self._api.pages(
                "ecs", "list_task_definitions", "taskDefinitionArns", familyPrefix=name
            )
            for arn in arns:
                await self._api.call("ecs", "deregister_task_definition", taskDefinition=arn)
            self._defined.pop(name, None)
            for i in range(0, len(arns), _DELETED_AT_ONCE):
                await self._api.call(
                    "ecs", "delete_task_definitions", taskDefinitions=arns[i : i + _DELETED_AT_ONCE]
                )
            if arns:
                removed.append(f"task definition {name}")
        return removed

    async def clean_shared(self) -> list[str]:
        """Delete the ECS cluster if this package created it and it is empty."""
        answer = await self._api.call(
            "ecs", "describe_clusters", clusters=[self._cluster], include=["TAGS"]
        )
        for cluster in answer.get("clusters", ()):
            tasks = cluster.get("runningTasksCount", 0) + cluster.get("pendingTasksCount", 0)
            ours = pairs(cluster.get("tags")).get(SHARED) == "cluster"
            if cluster.get("status") != "ACTIVE" or tasks or not ours:
                continue
            try:
                await self._api.call("ecs", "delete_cluster", cluster=self._cluster)
            except AWSError as error:
                logger.debug("could not delete ECS cluster %s: %s", self._cluster, error)
            else:
                return [f"ECS cluster {self._cluster}"]
        return []

    def stream(self, machine: Machine) -> str:
        return log_stream(machine.marks[CLUSTER], machine.id.rpartition("/")[2])


def cluster_is_gone(error: AWSError) -> bool:
    """Return whether an error means that the ECS cluster does not exist (any more)."""
    return error.error_code == "ClusterNotFoundException" or "cluster was inactive" in error.message


def _new(request: MachineRequest, arn: str, shape: str, place: SubnetPlace) -> Machine:
    return Machine(
        id=arn,
        marks={**request.marks, NAME: request.name},
        units=request.units,
        state=MachineState.PENDING,
        reason="it was requested",
        shape=shape,
        spot=place.provider == SPOT,
        made_at=time.time(),
    )


def _with_hint(error: AWSError, cluster: str) -> AWSError:
    """Return the error with a hint about missing capacity providers."""
    hint = None
    if "capacity provider" in error.message.lower():
        hint = (
            f"ECS cluster {cluster!r} needs FARGATE and FARGATE_SPOT: aws ecs "
            f"put-cluster-capacity-providers --cluster {cluster} --capacity-providers FARGATE "
            "FARGATE_SPOT --default-capacity-provider-strategy capacityProvider=FARGATE"
        )
    if hint is None:
        return error
    return AWSError(error.message, error_code=error.error_code, request=error.request, hint=hint)
