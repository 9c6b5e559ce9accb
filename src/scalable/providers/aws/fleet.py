"""Requests for EC2 instances, without I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalable.providers.aws.names import machine_tags, tags, token
from scalable.providers.aws.network import Ground
from scalable.providers.aws.render import program
from scalable.providers.aws.userdata import FILES_AT_VARIABLE, Container, user_data
from scalable.remote.cloud import CLUSTER, MACHINE_OF, ROLE, SCHEDULER, MachineRequest

SPOT, ON_DEMAND = "spot", "on-demand"
#: Maximum number of overrides in one fleet request.
MOST_OVERRIDES = 300
#: Paths of public parameters that name the latest machine image with Docker.
_IMAGES = "/aws/service/ecs/optimized-ami/amazon-linux-2023"

#: Errors of a fleet request for a lack of machines that may pass.
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
    """The common part of the instances of a component in one cluster."""

    region: str
    ami: str
    #: ARN of the instance profile.
    profile: str
    #: ARN of the secret with the files.
    secret: str
    #: Device name and GiB of the root disk; None for the image's own.
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
    request: MachineRequest, frame: InstanceFrame, ground: Ground
) -> dict[str, Any]:
    """Return the data of a machine's launch template, which equal machines share."""
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
                "AssociatePublicIpAddress": ground.public,
                "DeleteOnTermination": True,
                "Groups": list(ground.scheduler_groups if scheduler else ground.groups),
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
    ground: Ground,
    allocation: str,
) -> dict[str, Any]:
    """Return the request that starts one instance, with ``types`` in order of preference."""
    zones = {zone: subnet for subnet, zone in reversed(list(ground.subnets.items()))}
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
    """Return whether the code of a fleet's error means a lack of machines that may pass."""
    return code in _CAPACITY


def lacks_type(errors: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether all errors of a fleet are about types that do not exist there."""
    return bool(errors) and all(
        error.get("ErrorCode") in _UNKNOWN_TYPE
        and "instancetype" in str(error.get("ErrorMessage", "")).lower().replace(" ", "")
        for error in errors
    )


def refusal_of(
    errors: Sequence[Mapping[str, Any]], types: Sequence[str], ground: Ground, *, spot: bool
) -> str:
    """Return the reason of a refusal in plain words, with what was tried."""
    codes = dict.fromkeys(str(error.get("ErrorCode")) for error in errors)
    said = [_IN_WORDS[code] for code in codes if code in _IN_WORDS]
    reason = "; ".join(said) or "AWS has no such instance free at the moment"
    zones = ", ".join(sorted(set(ground.subnets.values())))
    kind = "spot" if spot else "on demand"
    return f"{reason} ({', '.join(codes)}; tried {', '.join(types)}, {kind}, in {zones})"
