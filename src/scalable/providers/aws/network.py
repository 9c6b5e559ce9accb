"""Network of a cluster's machines: an existing one, or one created, tagged and deleted with it.

Machines share a security group that allows all traffic between them. The scheduler's own group
opens its two ports to clients. Without a default VPC, one is created and shared by all clusters.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalable.errors import ProviderError
from scalable.protocol.streams import RELAY_PORT
from scalable.providers.aws.api import AWSApi, AWSError
from scalable.providers.aws.names import MADE, SHARED, family, marks_in, pairs, tags
from scalable.providers.aws.settings import NetworkOptions
from scalable.providers.remote.cloud import CLUSTER, ROLE

logger = logging.getLogger("scalable.providers.aws")

SCHEDULER_PORT = 8786
#: Seconds for which the deletion of a security group waits for the last interfaces in it.
RELEASE_TIMEOUT_S = 40.0
RELEASE_POLL_S = 2.0
_GONE = {"InvalidGroup.NotFound", "InvalidGroupId.NotFound"}


@dataclass(frozen=True)
class NetworkIds:
    """Network of a cluster's machines."""

    #: Zone of each subnet, by its id.
    subnets: Mapping[str, str]
    #: Security groups of machines. The next attribute has those of the scheduler's machine.
    groups: tuple[str, ...]
    scheduler_groups: tuple[str, ...]
    #: True if machines get public addresses.
    public: bool


class AWSNetwork:
    """The networks of one region."""

    def __init__(self, api: AWSApi, options: NetworkOptions) -> None:
        self._api = api
        self._options = options
        self._vpcs = Vpcs(api)

    async def network_ids(self, cluster_id: str, marks: Mapping[str, str]) -> NetworkIds:
        """Return the network of a cluster, creating missing parts."""
        vpc, subnets = await self._subnets()
        if not subnets:
            vpc = await self._vpcs.make(self._options.zones)
            subnets = self._in_zones(await self._subnets_of(vpc))
        if self._options.security_groups:
            inner = door = self._options.security_groups
        else:
            inside = await self._group(cluster_id, "inside", vpc, marks)
            opened = await self._group(cluster_id, "clients", vpc, marks)
            inner, door = (inside,), (inside, opened)
        return NetworkIds(subnets, inner, door, self._options.public)

    async def missing(self, cluster_id: str) -> list[str]:
        """Return descriptions of the resources that :meth:`network_ids` would create."""
        _, subnets = await self._subnets()
        created = [] if subnets else [f"VPC {VPC_CIDR} with subnets in up to {ZONES} zones"]
        if not self._options.security_groups:
            ports = f"the scheduler's ports {SCHEDULER_PORT} and {RELAY_PORT}"
            blocks = ", ".join(self._options.clients_from)
            created += [
                f"security group {_name(cluster_id, 'inside')}: all ports within the cluster",
                f"security group {_name(cluster_id, 'clients')}: {ports} from {blocks}",
            ]
        return created

    async def clean(self, cluster_id: str) -> list[str]:
        """Delete the security groups of a cluster, and return a description of each.
        Raises a transient ProviderError if a machine does not leave its group within 40 s.
        """
        marked = [{"Name": f"tag:{CLUSTER}", "Values": [cluster_id]}]
        groups = await self._api.pages(
            "ec2", "describe_security_groups", "SecurityGroups", Filters=marked
        )
        until = time.monotonic() + RELEASE_TIMEOUT_S
        # The group that others refer to is deleted last.
        ordered = sorted(
            groups, key=lambda group: group["GroupName"] == _name(cluster_id, "inside")
        )
        return [await self._delete_group(group, until) for group in ordered]

    async def clean_shared(self) -> list[str]:
        """Delete this package's VPC if it is unused, and return a description."""
        return await self._vpcs.clean()

    async def clusters(self, marks: Mapping[str, str], older_than_s: float) -> set[str]:
        """Return the ids of clusters with these marks that have groups of at least this age."""
        filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in marks.items()]
        groups = await self._api.pages(
            "ec2", "describe_security_groups", "SecurityGroups",
            Filters=[*filters, {"Name": "tag-key", "Values": [CLUSTER]}],
        )  # fmt: skip
        found = set()
        for group in groups:
            tagged = pairs(group.get("Tags"))
            if time.time() - float(tagged.get(MADE, "inf")) >= older_than_s:
                found.add(marks_in(tagged)[CLUSTER])
        return found

    async def _delete_group(self, group: Mapping[str, Any], until: float) -> str:
        name, its_id = group["GroupName"], group["GroupId"]
        while True:
            try:
                await self._api.call("ec2", "delete_security_group", GroupId=its_id)
            except AWSError as error:
                if error.error_code in _GONE:
                    break
                if error.error_code not in ("DependencyViolation", "InvalidGroup.InUse"):
                    raise
                if time.monotonic() > until:
                    raise ProviderError(
                        f"security group {name} is still used by a machine that is shutting down",
                        hint="repeat the command in a minute",
                        transient=True,
                    ) from error
                await asyncio.sleep(RELEASE_POLL_S)
            else:
                break
        return f"security group {name}"

    # Subnets --------------------------------------------------------------------------------------

    async def _subnets(self) -> tuple[str, dict[str, str]]:
        """Return the VPC, and the zones of its machine subnets by subnet id."""
        options = self._options
        if options.subnets:
            found = await self._named_subnets(options.subnets)
            vpcs = {str(subnet["VpcId"]) for subnet in found}
            if len(vpcs) > 1:
                raise ProviderError(
                    f"the subnets are in {len(vpcs)} VPCs: {', '.join(sorted(vpcs))}",
                    hint="choose subnets of one VPC",
                )
            return vpcs.pop(), self._in_zones(found)
        if options.vpc:
            return options.vpc, self._in_zones(await self._subnets_of(options.vpc))
        default = [{"Name": "is-default", "Values": ["true"]}]
        defaults = await self._api.pages("ec2", "describe_vpcs", "Vpcs", Filters=default)
        own = None if defaults else await self._vpcs.find()
        for vpc in [*(str(each["VpcId"]) for each in defaults), *([own] if own else [])]:
            subnets = await self._subnets_of(vpc, found_by_us=True)
            if subnets:
                return vpc, self._in_zones(subnets)
        return "", {}

    async def _named_subnets(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        try:
            return await self._api.pages("ec2", "describe_subnets", "Subnets", SubnetIds=list(ids))
        except AWSError as error:
            if not error.error_code.startswith("InvalidSubnet"):
                raise
            raise ProviderError(
                f"region {self._api.region} does not have the subnets {', '.join(ids)}: "
                f"{error.message}",
                hint="correct the target's subnets, or its region",
            ) from error

    async def _subnets_of(self, vpc: str, *, found_by_us: bool = False) -> list[dict[str, Any]]:
        filters = [{"Name": "vpc-id", "Values": [vpc]}]
        found = await self._api.pages("ec2", "describe_subnets", "Subnets", Filters=filters)
        if not found and not found_by_us:
            raise ProviderError(
                f"region {self._api.region} has no subnets in a VPC {vpc}",
                hint="correct the target's vpc, or leave it out for the default one",
            )
        # In a VPC that we have chosen, use only public subnets: images have to be pulled.
        public = [each for each in found if each.get("MapPublicIpOnLaunch")]
        return public if public and self._options.public else found

    def _in_zones(self, found: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        zones = {str(each["SubnetId"]): str(each["AvailabilityZone"]) for each in found}
        if not self._options.zones:
            return dict(sorted(zones.items(), key=lambda pair: (pair[1], pair[0])))
        kept = {subnet: zone for subnet, zone in zones.items() if zone in self._options.zones}
        if not kept:
            raise ProviderError(
                f"there is no subnet in {', '.join(self._options.zones)}",
                hint=f"zones with subnets: {', '.join(sorted(set(zones.values())))}",
            )
        return kept

    # Security groups ------------------------------------------------------------------------------

    async def _group(
        self, cluster_id: str, purpose: str, vpc: str, marks: Mapping[str, str]
    ) -> str:
        name = _name(cluster_id, purpose)
        filters = [
            {"Name": "group-name", "Values": [name]},
            {"Name": "vpc-id", "Values": [vpc]},
        ]
        found = await self._api.pages(
            "ec2", "describe_security_groups", "SecurityGroups", Filters=filters
        )
        if found:
            group = str(found[0]["GroupId"])
            if found[0].get("IpPermissions"):
                return group
        else:
            group = await self._create_group(name, purpose, vpc, marks)
        try:
            await self._api.call(
                "ec2",
                "authorize_security_group_ingress",
                GroupId=group,
                IpPermissions=rules(purpose, group, self._options.clients_from),
            )
        except AWSError as error:
            if error.error_code != "InvalidPermission.Duplicate":
                raise
        return group

    async def _create_group(
        self, name: str, purpose: str, vpc: str, marks: Mapping[str, str]
    ) -> str:
        logger.debug("security group %s is created in %s", name, vpc)
        try:
            made = await self._api.call(
                "ec2",
                "create_security_group",
                GroupName=name,
                Description=f"scalable: {purpose}",
                VpcId=vpc,
                TagSpecifications=_tagged("security-group", marks),
            )
        except AWSError as error:
            if error.error_code != "InvalidGroup.Duplicate":
                raise
            filters = [{"Name": "group-name", "Values": [name]}]
            again = await self._api.pages(
                "ec2", "describe_security_groups", "SecurityGroups", Filters=filters
            )
            return str(again[0]["GroupId"])
        return str(made["GroupId"])


def rules(purpose: str, group: str, clients_from: Sequence[str]) -> list[dict[str, Any]]:
    """Return the ingress rules of a security group.
    ``inside`` allows all traffic between the cluster's machines. ``clients`` opens the scheduler's
    ports to CIDR blocks. Blocks with a colon are IPv6.
    """
    if purpose == "inside":
        return [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    v4 = [{"CidrIp": block} for block in clients_from if ":" not in block]
    v6 = [{"CidrIpv6": block} for block in clients_from if ":" in block]
    return [
        {
            "IpProtocol": "tcp",
            "FromPort": port,
            "ToPort": port,
            **({"IpRanges": v4} if v4 else {}),
            **({"Ipv6Ranges": v6} if v6 else {}),
        }
        for port in (SCHEDULER_PORT, RELAY_PORT)
    ]


def _name(cluster_id: str, purpose: str) -> str:
    return f"{family(cluster_id)}-{purpose}"


def _tagged(kind: str, marks: Mapping[str, str]) -> list[dict[str, Any]]:
    kept = {key: value for key, value in marks.items() if key != ROLE}
    return [{"ResourceType": kind, "Tags": tags({**kept, MADE: str(int(time.time()))})}]


# Vpc ----------------------------------------------------------------------------------------------

#: Number of zones that get a subnet, unless the target names zones.
ZONES = 3
#: Addresses of the VPC, and of its subnets.
VPC_CIDR, SUBNET_CIDR = "10.86.0.0/16", "10.86.{}.0/20"
_STEP = 16
#: Tag values of the created resources.
VPC, SUBNET, GATEWAY = "vpc", "subnet", "gateway"


class Vpcs:
    """The VPC of scalable in one region."""

    def __init__(self, api: AWSApi) -> None:
        self._api = api

    async def find(self) -> str | None:
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
                TagSpecifications=_tag("internet-gateway", GATEWAY),
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
        logger.info("region %s has no default VPC; creating one", self._api.region)
        made = await self._api.call_without_token(
            "ec2", "create_vpc", CidrBlock=VPC_CIDR, TagSpecifications=_tag("vpc", VPC)
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
                TagSpecifications=_tag("subnet", SUBNET),
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
        """Delete the VPC if it contains no cluster's security group, and return descriptions."""
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
            logger.debug("could not delete VPC %s: %s", vpc, error)
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
        """Send a request that may fail harmlessly because its result exists already."""
        try:
            return await self._api.call("ec2", operation, **parameters)
        except AWSError as error:
            if error.error_code not in codes:
                raise
            return {}


def _tag(kind: str, value: str) -> list[dict[str, Any]]:
    own = {SHARED: value, "Name": "scalable"}
    return [{"ResourceType": kind, "Tags": tags(own)}]
