"""VPC for regions without a default one: found, created once for all clusters, and deleted."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from scalable.providers.aws.api import Api, AWSError
from scalable.providers.aws.names import SHARED, tags

logger = logging.getLogger("scalable.providers.aws")

#: Number of zones that get a subnet, unless the target names zones.
ZONES = 3
#: Addresses of the VPC, and of its subnets.
VPC_CIDR, SUBNET_CIDR = "10.86.0.0/16", "10.86.{}.0/20"
_STEP = 16
#: Tag values of the created resources.
VPC, SUBNET, GATEWAY = "vpc", "subnet", "gateway"


class Vpcs:
    """The VPC of this package in one region.

    Each step of its creation first checks for an existing result: if a creator dies, the next one
    completes the VPC.
    """

    def __init__(self, api: Api) -> None:
        self._api = api

    async def find(self) -> str | None:
        """Return the id of the VPC, or None without one."""
        return await self._marked("describe_vpcs", "Vpcs", "VpcId", VPC)

    async def make(self, zones: tuple[str, ...]) -> str:
        """Create the VPC with a public subnet per zone, by default in three, and return its id."""
        vpc = await self.find() or await self._create_vpc()
        gateway = await self._marked(
            "describe_internet_gateways", "InternetGateways", "InternetGatewayId", GATEWAY
        )
        if gateway is None:
            made = await self._api.call_without_token(
                "ec2",
                "create_internet_gateway",
                TagSpecifications=_tagged("internet-gateway", GATEWAY),
            )
            gateway = str(made["InternetGateway"]["InternetGatewayId"])
        await self._tolerating(
            ("Resource.AlreadyAssociated",),
            "attach_internet_gateway", InternetGatewayId=gateway, VpcId=vpc,
        )  # fmt: skip
        await self._open_route(vpc, gateway)
        await self._add_subnets(vpc, zones)
        return vpc

    async def _create_vpc(self) -> str:
        logger.info("region %s has no default VPC: one is made", self._api.region)
        made = await self._api.call_without_token(
            "ec2", "create_vpc", CidrBlock=VPC_CIDR, TagSpecifications=_tagged("vpc", VPC)
        )
        vpc = str(made["Vpc"]["VpcId"])
        for name in ("EnableDnsSupport", "EnableDnsHostnames"):
            await self._api.call(
                "ec2", "modify_vpc_attribute", VpcId=vpc, **{name: {"Value": True}}
            )
        return vpc

    async def _open_route(self, vpc: str, gateway: str) -> None:
        filters = [
            {"Name": "vpc-id", "Values": [vpc]},
            {"Name": "association.main", "Values": ["true"]},
        ]
        tables = await self._api.pages(
            "ec2", "describe_route_tables", "RouteTables", Filters=filters
        )
        await self._tolerating(
            ("RouteAlreadyExists",),
            "create_route",
            RouteTableId=tables[0]["RouteTableId"],
            DestinationCidrBlock="0.0.0.0/0",
            GatewayId=gateway,
        )

    async def _add_subnets(self, vpc: str, zones: tuple[str, ...]) -> None:
        found = await self._api.pages(
            "ec2", "describe_availability_zones", "AvailabilityZones",
            Filters=[{"Name": "zone-type", "Values": ["availability-zone"]}],
        )  # fmt: skip
        there = sorted(str(zone["ZoneName"]) for zone in found)
        chosen = [zone for zone in there if zone in zones] if zones else there[:ZONES]
        for zone in chosen:
            block = SUBNET_CIDR.format(_STEP * there.index(zone))
            await self._tolerating(
                ("InvalidSubnet.Conflict",), "create_subnet",
                VpcId=vpc, AvailabilityZone=zone, CidrBlock=block,
                TagSpecifications=_tagged("subnet", SUBNET),
            )  # fmt: skip
        for subnet in await self._subnets(vpc):
            await self._api.call(
                "ec2", "modify_subnet_attribute",
                SubnetId=subnet["SubnetId"], MapPublicIpOnLaunch={"Value": True},
            )  # fmt: skip

    async def _subnets(self, vpc: str) -> list[dict[str, Any]]:
        filters = [{"Name": "vpc-id", "Values": [vpc]}]
        return await self._api.pages("ec2", "describe_subnets", "Subnets", Filters=filters)

    async def clean(self) -> list[str]:
        """Delete the VPC if no cluster has a security group in it, and return descriptions."""
        vpc = await self.find()
        if vpc is None:
            return []
        filters = [{"Name": "vpc-id", "Values": [vpc]}]
        groups = await self._api.pages(
            "ec2", "describe_security_groups", "SecurityGroups", Filters=filters
        )
        if any(group["GroupName"] != "default" for group in groups):
            return []
        try:
            await self._remove(vpc)
        except AWSError as error:
            logger.debug("VPC %s stays: %s", vpc, error)
            return []
        return [f"VPC {vpc} with its subnets"]

    async def _remove(self, vpc: str) -> None:
        for subnet in await self._subnets(vpc):
            await self._api.call("ec2", "delete_subnet", SubnetId=subnet["SubnetId"])
        gateway = await self._marked(
            "describe_internet_gateways", "InternetGateways", "InternetGatewayId", GATEWAY
        )
        if gateway is not None:
            await self._tolerating(
                ("Gateway.NotAttached",),
                "detach_internet_gateway", InternetGatewayId=gateway, VpcId=vpc,
            )  # fmt: skip
            await self._api.call("ec2", "delete_internet_gateway", InternetGatewayId=gateway)
        await self._api.call("ec2", "delete_vpc", VpcId=vpc)

    async def _marked(self, question: str, key: str, name: str, value: str) -> str | None:
        filters = [{"Name": f"tag:{SHARED}", "Values": [value]}]
        found = await self._api.pages("ec2", question, key, Filters=filters)
        return str(found[0][name]) if found else None

    async def _tolerating(
        self, codes: tuple[str, ...], operation: str, **parameters: Any
    ) -> Mapping[str, Any]:
        """Send a request whose result may exist already."""
        try:
            return await self._api.call("ec2", operation, **parameters)
        except AWSError as error:
            if error.error_code not in codes:
                raise
            return {}


def _tagged(kind: str, value: str) -> list[dict[str, Any]]:
    own = {SHARED: value, "Name": "scalable"}
    return [{"ResourceType": kind, "Tags": tags(own)}]
