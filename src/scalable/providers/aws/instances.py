"""Machines that are EC2 instances."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalable.errors import ProviderError
from scalable.providers.aws.api import AWSApi, AWSError
from scalable.providers.aws.names import (
    LOG_GROUP,
    SHARED,
    STOPPED,
    content_name,
    log_stream,
    machine_tags,
    pairs,
    tags,
    token,
)
from scalable.providers.aws.network import NetworkIds
from scalable.providers.aws.render import (
    END_STREAM,
    FILES_AT_VARIABLE,
    Container,
    end_in,
    instance_machine,
    program,
    user_data,
)
from scalable.providers.aws.settings import Settings
from scalable.providers.aws.shapes import chosen, is_arm
from scalable.providers.quotes import share_counted
from scalable.providers.remote.cloud import (
    CLUSTER,
    MACHINE_OF,
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

#: Seconds for which a new instance profile may be unknown to EC2.
PROFILE_TIMEOUT_S = 40.0
PROFILE_POLL_S = 3.0
#: Number of attempts to read a program's exit code after its instance has stopped.
END_ATTEMPTS = 3


class Instances:
    """The EC2 instances of one region."""

    def __init__(self, api: AWSApi, settings: Settings, logs: Logs) -> None:
        self._api = api
        self._settings = settings
        self._logs = logs
        self._templates: dict[str, asyncio.Task[None]] = {}
        self._images: dict[str, str] = {}
        #: Stopped machines with a known exit code, and counts of attempts to read other codes.
        self._ended: dict[str, Machine] = {}
        self._looked: dict[str, int] = {}

    # Starting -------------------------------------------------------------------------------------

    def types(self, request: MachineRequest) -> list[str]:
        """Return the instance types to try for a machine, in order."""
        types = chosen(
            self._settings.offers,
            self._settings.instance_types,
            request.cpus,
            request.memory_bytes,
            request.gpus,
            max(1, len(request.units)),
            share_counted(self._settings.spot_share, request),
        )
        return [name for name in types if is_arm(name) == is_arm(types[0])]

    async def image(self, types: Sequence[str], gpus: int) -> str:
        if self._settings.ami:
            return self._settings.ami
        parameter = image_parameter(arm=is_arm(types[0]), gpus=gpus > 0)
        if parameter not in self._images:
            said = await self._api.call("ssm", "get_parameter", Name=parameter)
            self._images[parameter] = str(said["Parameter"]["Value"])
        return self._images[parameter]

    async def root_disk(self, ami: str) -> tuple[str, int] | None:
        """Return device name and GiB of the root disk, or None for the image's own size."""
        if self._settings.disk_gib is None:
            return None
        said = await self._api.call("ec2", "describe_images", ImageIds=[ami])
        device = next((str(i["RootDeviceName"]) for i in said["Images"]), "/dev/xvda")
        return device, self._settings.disk_gib

    async def start(
        self,
        request: MachineRequest,
        types: list[str],
        frame: InstanceFrame,
        network_ids: NetworkIds,
    ) -> Machine | Refusal:
        """Start an instance, and return its machine, or the refusal for lack of capacity."""
        data = launch_template(request, frame, network_ids)
        purpose = request.marks.get(TAG) or request.marks[ROLE]
        template = content_name(request.marks[CLUSTER], purpose, data)
        await self._define(template, data, request.marks)
        order = fleet(request, template, types, network_ids, self._settings.spot_allocation)
        until = time.monotonic() + PROFILE_TIMEOUT_S
        attempt = 0
        while True:
            try:
                answer = await self._api.call("ec2", "create_fleet", **order)
                errors = list(answer.get("Errors") or ())
            except AWSError as error:
                # Some refusals are errors of the whole request.
                code = error.error_code
                answer, errors = {}, [{"ErrorCode": code, "ErrorMessage": error.message}]
                known = lacks_capacity(code) or lacks_type(errors)
                if not (known or _is_unknown_profile(errors)):
                    raise
            made = [each for each in answer.get("Instances") or () if each.get("InstanceIds")]
            if made:
                return _new(request, made[0])
            if not _is_unknown_profile(errors) or time.monotonic() > until:
                break
            attempt += 1  # a token repeats its first answer, which is a refusal
            order["ClientToken"] = token(order["ClientToken"], str(attempt))
            await asyncio.sleep(PROFILE_POLL_S)
        return await self._refused(request, errors, types, network_ids)

    async def _refused(
        self,
        request: MachineRequest,
        errors: list[dict[str, Any]],
        types: list[str],
        network_ids: NetworkIds,
    ) -> Refusal:
        if any(lacks_capacity(str(error.get("ErrorCode"))) for error in errors):
            return Refusal(refusal_of(errors, types, network_ids, spot=request.spot))
        if lacks_type(errors):
            raise ProviderError(
                f"region {self._api.region} does not have {', '.join(types)} in "
                f"{', '.join(sorted(set(network_ids.subnets.values())))}",
                hint=await self._types_there(types[0]),
            )
        said = "; ".join(
            dict.fromkeys(f"{e.get('ErrorCode')}: {e.get('ErrorMessage')}" for e in errors)
        )
        raise ProviderError(
            f"EC2 does not start machine {request.name}: {said or 'no reason was given'}"
        )

    async def _types_there(self, name: str) -> str:
        try:
            return like(name, await self.offered())
        except ProviderError:
            return like(name, [])

    async def offered(self) -> list[str]:
        """Return the instance types available in the region."""
        found = await self._api.pages(
            "ec2", "describe_instance_type_offerings", "InstanceTypeOfferings",
            LocationType="region",
        )  # fmt: skip
        return [str(each["InstanceType"]) for each in found]

    async def _define(self, name: str, data: Any, marks: Mapping[str, str]) -> None:
        """Create a launch template once, even with concurrent callers."""
        task = self._templates.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.ensure_future(self._create(name, data, marks))
            self._templates[name] = task
        await asyncio.shield(task)

    async def _create(self, name: str, data: Any, marks: Mapping[str, str]) -> None:
        kept = {key: value for key, value in marks.items() if key != NAME}
        logger.debug("launch template %s is created", name)
        try:
            await self._api.call(
                "ec2",
                "create_launch_template",
                LaunchTemplateName=name,
                LaunchTemplateData=data,
                TagSpecifications=[{"ResourceType": "launch-template", "Tags": tags(kept)}],
            )
        except AWSError as error:
            if "AlreadyExists" not in error.error_code:
                raise

    # Observing ------------------------------------------------------------------------------------

    async def machines(self, marks: Mapping[str, str]) -> list[Machine]:
        filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in marks.items()]
        reservations = await self._api.pages(
            "ec2", "describe_instances", "Reservations",
            Filters=[*filters, {"Name": "tag-key", "Values": [CLUSTER]}], MaxResults=1000,
        )  # fmt: skip
        found = [
            instance_machine(instance, pairs(instance.get("Tags")))
            for reservation in reservations
            for instance in reservation["Instances"]
        ]
        return list(await asyncio.gather(*map(self._with_end, found)))

    async def _with_end(self, machine: Machine) -> Machine:
        """Return a machine. If it has stopped, add its program's exit code from the log."""
        if machine.state is not MachineState.ENDED or machine.from_outside:
            return machine
        if machine.id in self._ended:
            return self._ended[machine.id]
        looked = self._looked[machine.id] = self._looked.get(machine.id, 0) + 1
        code = out_of_memory = None
        try:
            text, _ = await self._logs.read(f"{self.stream(machine)}{END_STREAM}", "")
            code, out_of_memory = end_in(text)
        except AWSError as error:
            if not error.forbidden:
                raise
            looked = END_ATTEMPTS
        if code is not None:
            reason = f"its program exited (exit code {code})"
            machine = replace(
                machine,
                exit_code=code,
                out_of_memory=bool(out_of_memory),
                reason="it used more than the memory of its instance" if out_of_memory else reason,
            )
        if code is not None or looked >= END_ATTEMPTS:
            self._ended[machine.id] = machine
            self._looked.pop(machine.id, None)
        return machine

    # Stopping -------------------------------------------------------------------------------------

    async def stop(self, machines: Sequence[Machine]) -> None:
        ids = [machine.id for machine in machines]
        if not ids:
            return
        try:
            await self._api.call("ec2", "terminate_instances", InstanceIds=ids)
        except AWSError as error:
            if "NotFound" not in error.error_code:
                raise
            if len(ids) > 1:
                await asyncio.gather(*(self.stop([machine]) for machine in machines))

    async def stop_units(self, machine: Machine, units: Sequence[str]) -> None:
        """Tag an instance so that its program stops some units."""
        numbers = [i for i, unit in enumerate(machine.units) if unit in units]
        if not numbers:
            return
        told = tags({f"{STOPPED}{i}": "1" for i in numbers})
        try:
            await self._api.call("ec2", "create_tags", Resources=[machine.id], Tags=told)
        except AWSError as error:
            if "NotFound" not in error.error_code:
                raise

    async def clean(self, cluster_id: str) -> list[str]:
        """Delete the launch templates of a cluster, and return a description of each."""
        filters = [{"Name": f"tag:{CLUSTER}", "Values": [cluster_id]}]
        found = await self._api.pages(
            "ec2", "describe_launch_templates", "LaunchTemplates", Filters=filters
        )
        removed = []
        for template in found:
            name = str(template["LaunchTemplateName"])
            self._templates.pop(name, None)
            try:
                await self._api.call(
                    "ec2", "delete_launch_template", LaunchTemplateId=template["LaunchTemplateId"]
                )
            except AWSError as error:
                if "NotFound" not in error.error_code:
                    raise
            removed.append(f"launch template {name}")
        return removed

    def stream(self, machine: Machine) -> str:
        return log_stream(machine.marks[CLUSTER], machine.marks[NAME])


def like(name: str, there: Sequence[str]) -> str:
    """Return a hint with instance types similar to a non-existent one."""
    family, _, size = name.partition(".")
    names = [one for one in there if one.startswith(f"{family}.")]
    names = names or [o for o in there if o[0] == name[0] and o.endswith(f".{size}")]
    if not names:
        return "choose another instance_type or region"
    return f"choose one of: {', '.join(sorted(names)[:12])}"


def _new(request: MachineRequest, made: Mapping[str, Any]) -> Machine:
    return Machine(
        id=str(made["InstanceIds"][0]),
        marks={**request.marks, NAME: request.name},
        units=request.units,
        state=MachineState.PENDING,
        reason="it was requested",
        shape=str(made.get("InstanceType") or ""),
        spot=made.get("Lifecycle") == "spot",
        made_at=time.time(),
    )


def _is_unknown_profile(errors: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the errors mean that a new profile is not available yet."""
    return any("instanceprofile" in _one_line(error.get("ErrorMessage")) for error in errors)


def _one_line(text: object) -> str:
    return str(text).lower().replace(" ", "").replace("iam", "")


# Fleet --------------------------------------------------------------------------------------------

SPOT, ON_DEMAND = "spot", "on-demand"
#: Maximum number of overrides in one fleet request.
MOST_OVERRIDES = 300
#: Paths of public parameters that name the latest machine image with Docker.
_IMAGES = "/aws/service/ecs/optimized-ami/amazon-linux-2023"

#: Error codes of a fleet request that report a temporary lack of machines.
_CAPACITY = {
    "InsufficientAddressCapacity",
    "InsufficientCapacity",
    "InsufficientFreeAddressesInSubnet",
    "InsufficientHostCapacity",
    "InsufficientInstanceCapacity",
    "InstanceLimitExceeded",
    "MaxSpotInstanceCountExceeded",
    "SpotMaxPriceTooLow",
    "UnfulfillableCapacity",
    "VcpuLimitExceeded",
}
_IN_WORDS = {
    "InstanceLimitExceeded": "the account's limit of instances is reached",
    "MaxSpotInstanceCountExceeded": "the account's limit of spot instances is reached",
    "VcpuLimitExceeded": "the account's limit of vCPUs for such instances is reached",
    "InsufficientFreeAddressesInSubnet": "a subnet has no free addresses",
}
#: Errors for an instance type that a zone or the region does not have.
_UNKNOWN_TYPE = {
    "InvalidFleetConfiguration",
    "InvalidInstanceType",
    "InvalidParameterValue",
    "Unsupported",
}


def image_parameter(*, arm: bool, gpus: bool) -> str:
    """Return the name of the public parameter with the machine image's id."""
    kind = "/gpu" if gpus else "/arm64" if arm else ""
    return f"{_IMAGES}{kind}/recommended/image_id"


@dataclass(frozen=True)
class InstanceFrame:
    """Properties that all instances of a component in one cluster share."""

    region: str
    ami: str
    #: ARN of the instance profile.
    profile: str
    #: ARN of the secret with the files.
    secret: str
    #: Device name and GiB of the root disk. None for the image's own.
    disk: tuple[str, int] | None = None


def container_of(request: MachineRequest, frame: InstanceFrame) -> Container:
    """Return the container of a machine, without the names of its units."""
    units = len(request.units)
    command = program(request)
    return Container(
        cluster_id=request.marks[CLUSTER],
        region=frame.region,
        image=request.image.removeprefix("docker://"),
        command=command[:-units] if units else command,
        environment={
            **request.environment,
            MACHINE_OF: "aws",
            FILES_AT_VARIABLE: frame.secret,
            "AWS_DEFAULT_REGION": frame.region,
        },
        gpus=request.gpus > 0,
    )


def launch_template(
    request: MachineRequest, frame: InstanceFrame, network_ids: NetworkIds
) -> dict[str, Any]:
    """Return the data of a launch template. Equal machines share one template."""
    scheduler = request.marks[ROLE] == SCHEDULER
    data: dict[str, Any] = {
        "ImageId": frame.ami,
        "IamInstanceProfile": {"Arn": frame.profile},
        "UserData": user_data(container_of(request, frame)),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            # Containers are on the instance's network, so that one hop is enough.
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "enabled",
        },
        "NetworkInterfaces": [
            {
                "DeviceIndex": 0,
                "AssociatePublicIpAddress": network_ids.public,
                "DeleteOnTermination": True,
                "Groups": list(network_ids.scheduler_groups if scheduler else network_ids.groups),
            }
        ],
    }
    if frame.disk is not None:
        device, size = frame.disk
        ebs = {"VolumeSize": size, "VolumeType": "gp3", "DeleteOnTermination": True}
        data["BlockDeviceMappings"] = [{"DeviceName": device, "Ebs": ebs}]
    return data


def fleet(
    request: MachineRequest,
    template: str,
    types: Sequence[str],
    network_ids: NetworkIds,
    allocation: str,
) -> dict[str, Any]:
    """Return the request that starts one instance, with ``types`` in order of preference."""
    zones = {zone: subnet for subnet, zone in reversed(list(network_ids.subnets.items()))}
    overrides = [
        {"InstanceType": name, "SubnetId": subnet, "Priority": float(rank)}
        for rank, name in enumerate(types)
        for subnet in zones.values()
    ]
    kind = SPOT if request.spot else ON_DEMAND
    return {
        "Type": "instant",
        "ClientToken": token(request.marks[CLUSTER], request.name, kind),
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {
                    "LaunchTemplateName": template,
                    "Version": "$Latest",
                },
                "Overrides": overrides[:MOST_OVERRIDES],
            }
        ],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": 1,
            "DefaultTargetCapacityType": kind,
        },
        "SpotOptions": {"AllocationStrategy": allocation},
        "OnDemandOptions": {"AllocationStrategy": "prioritized"},
        "TagSpecifications": [
            {"ResourceType": "instance", "Tags": tags(machine_tags(request))},
        ],
    }


def lacks_capacity(code: str) -> bool:
    """Return whether a fleet's error code means a temporary lack of machines."""
    return code in _CAPACITY


def lacks_type(errors: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether all errors of a fleet mean that an instance type does not exist."""
    return bool(errors) and all(
        error.get("ErrorCode") in _UNKNOWN_TYPE
        and "instancetype" in str(error.get("ErrorMessage", "")).lower().replace(" ", "")
        for error in errors
    )


def refusal_of(
    errors: Sequence[Mapping[str, Any]],
    types: Sequence[str],
    network_ids: NetworkIds,
    *,
    spot: bool,
) -> str:
    """Return the reason for a refusal in plain words, with the attempts that were made."""
    codes = dict.fromkeys(str(error.get("ErrorCode")) for error in errors)
    said = [_IN_WORDS[code] for code in codes if code in _IN_WORDS]
    reason = "; ".join(said) or "AWS has no such instance free at the moment"
    zones = ", ".join(sorted(set(network_ids.subnets.values())))
    kind = "spot" if spot else "on demand"
    return f"{reason} ({', '.join(codes)}; tried {', '.join(types)}, {kind}, in {zones})"


# Logs ---------------------------------------------------------------------------------------------

_NONE, _EXISTS = "ResourceNotFoundException", "ResourceAlreadyExistsException"
#: Number of characters after which one call reads no further page.
LONGEST = 400_000


class Logs:
    """The log group of one region, created with a retention of ``kept_days``."""

    def __init__(self, api: AWSApi, kept_days: int) -> None:
        self._api = api
        self._kept_days = kept_days
        self._known = False

    async def exists(self) -> bool:
        groups = await self._api.pages(
            "logs", "describe_log_groups", "logGroups", logGroupNamePrefix=LOG_GROUP
        )
        return any(group["logGroupName"] == LOG_GROUP for group in groups)

    async def prepare(self) -> None:
        """Create the log group if it does not exist."""
        if self._known:
            return
        if not await self.exists():
            try:
                await self._api.call(
                    "logs", "create_log_group", logGroupName=LOG_GROUP, tags={SHARED: "logs"}
                )
            except AWSError as error:
                if error.error_code != _EXISTS:
                    raise
            await self._api.call(
                "logs",
                "put_retention_policy",
                logGroupName=LOG_GROUP,
                retentionInDays=self._kept_days,
            )
        self._known = True

    async def read(self, stream: str, since: str) -> tuple[str, str]:
        """Return a stream's output (if it exists) after ``since``, and the position of its end."""
        parts: list[str] = []
        size = 0
        mark = since
        while size < LONGEST:
            given: Mapping[str, str] = {"nextToken": mark} if mark else {}
            try:
                answer = await self._api.call(
                    "logs",
                    "get_log_events",
                    logGroupName=LOG_GROUP,
                    logStreamName=stream,
                    startFromHead=True,
                    **given,
                )
            except AWSError as error:
                if error.error_code != _NONE:
                    raise
                break
            lines = [f"{event['message']}\n" for event in answer.get("events", ())]
            following = str(answer.get("nextForwardToken") or mark)
            parts += lines
            size += sum(map(len, lines))
            if following == mark or not lines:
                mark = following
                break
            mark = following
        return "".join(parts), mark
