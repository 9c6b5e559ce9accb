"""Launches of EC2 instances, checked by the rules of EC2."""

import base64
import binascii
import functools
import re
from dataclasses import dataclass, field
from typing import Any

from moto.core.exceptions import ServiceException
from moto.ec2.models import ec2_backends
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS
from moto.iam.models import iam_backends
from moto.ssm.models import ssm_backends

from .errors import AwsError
from .identities import ACCOUNT
from .task_definitions import check_tags

#: Bytes of user data, before base64.
USER_DATA = 16 * 1024
PUBLIC = (
    "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64",
    "/aws/service/ecs/optimized-ami/amazon-linux-2023/recommended/image_id",
)
METADATA_KEY = re.compile(r"[A-Za-z0-9+\-=.,_:@]+")
#: Fields that the test bed reads or may ignore; others are refused as not supported by it.
KNOWN = {
    "BlockDeviceMappings",
    "ClientToken",
    "CreditSpecification",
    "DisableApiTermination",
    "DryRun",
    "EbsOptimized",
    "IamInstanceProfile",
    "ImageId",
    "InstanceInitiatedShutdownBehavior",
    "InstanceMarketOptions",
    "InstanceType",
    "KeyName",
    "LaunchTemplate",
    "MaxCount",
    "MetadataOptions",
    "MinCount",
    "Monitoring",
    "NetworkInterfaces",
    "Placement",
    "SecurityGroupIds",
    "SubnetId",
    "TagSpecifications",
    "UserData",
}


@dataclass
class Launch:
    """Instances that are to be made, all alike."""

    region: str
    image: str
    type: str
    subnet: str
    zone: str
    groups: list
    public: bool
    spot: bool
    user_data: bytes
    role: str
    role_name: str
    profile_arn: str
    tags: dict
    volume_tags: dict
    metadata: dict
    shutdown: str
    devices: list
    others: dict = field(default_factory=dict)
    address: str = ""
    user_data_text: Any = None
    token: str | None = None

    @property
    def name(self):
        """The name by which faults of the start find an instance."""
        return f"ec2:{self.type}"


@functools.cache
def public_images(region):
    """Return the images that public parameters of SSM name."""
    parameters = ssm_backends[ACCOUNT][region]
    for path in PUBLIC:
        parameters.get_parameter(path)  # moto reads them when they are first asked for
    names = [n for n in list(parameters._parameters) if n.startswith("/aws/service/")]
    found = [parameters.get_parameter(name) for name in names]
    return {p.value for p in found if p is not None and isinstance(p.value, str)}


def invalid(text, code="InvalidParameterValue"):
    return AwsError(code, text)


def merged(template, given):
    """Return the fields of a launch template with those given in the call above them."""
    found = {**template, **{name: value for name, value in given.items() if value is not None}}
    specifications = {}
    for one in [
        *(template.get("TagSpecifications") or ()),
        *(given.get("TagSpecifications") or ()),
    ]:
        own = specifications.setdefault(one["ResourceType"], {})
        own |= {tag["Key"]: tag.get("Value", "") for tag in one.get("Tags") or ()}
    found["TagSpecifications"] = specifications
    return found


class LaunchReader:
    """Makes launches of the parameters of RunInstances and CreateFleet."""

    def __init__(self, account):
        self.account = account

    def template(self, region, specification):
        """Return the data of a version of a launch template."""
        backend = ec2_backends[ACCOUNT][region]
        named = "LaunchTemplateId" in specification or "LaunchTemplateName" in specification
        if not named:
            raise invalid("A launch template needs its id or its name.", "MissingParameter")
        for template in backend.launch_templates.values():
            names = (specification.get("LaunchTemplateId"), specification.get("LaunchTemplateName"))
            if template.id == names[0] or template.name == names[1]:
                break
        else:
            which = specification.get("LaunchTemplateId") or specification["LaunchTemplateName"]
            code = (
                "InvalidLaunchTemplateId.NotFound"
                if "LaunchTemplateId" in specification
                else "InvalidLaunchTemplateName.NotFoundException"
            )
            raise invalid(f"The specified launch template, {which}, does not exist.", code)
        version = specification.get("Version", "$Default")
        numbers = {
            "$Default": template.default_version_number,
            "$Latest": template.latest_version_number,
        }
        number = int(numbers.get(version, version))
        found = next((one for one in template.versions if one.number == number), None)
        if found is None:
            text = f"Could not find launch template version {version}"
            raise invalid(text, "InvalidLaunchTemplateId.VersionNotFound")
        return found.data

    def read(self, request, fields):
        """Return a launch of merged fields."""
        unknown = set(fields) - KNOWN
        if unknown:
            raise invalid(
                f"the test bed does not know {', '.join(sorted(unknown))}", "UnsupportedOperation"
            )
        region = request.region
        backend = ec2_backends[ACCOUNT][region]
        if not fields.get("ImageId"):
            raise invalid("The request must contain the parameter ImageId", "MissingParameter")
        type_ = fields.get("InstanceType") or "m1.small"
        network = self.network(backend, fields)
        self.check_offered(region, type_, network["zone"])
        specifications = fields["TagSpecifications"]
        for tags in specifications.values():
            check_tags([{"Key": k, "Value": v} for k, v in tags.items()], "InvalidParameterValue")
        metadata = {"HttpTokens": "required", **(fields.get("MetadataOptions") or {})}
        if metadata.get("InstanceMetadataTags") == "enabled":
            for key in specifications.get("instance", {}):
                if not METADATA_KEY.fullmatch(key):
                    raise invalid(
                        f"'{key}' is not a valid tag key. Tag keys must match pattern ([0-9a-zA-Z\\-_+=,.@:]{{1,255}}), and must not be a reserved name ('.', '..', '_index')"
                    )
        market = fields.get("InstanceMarketOptions") or {}
        spot = market.get("MarketType") == "spot"
        once = (market.get("SpotOptions") or {}).get("SpotInstanceType", "one-time") == "one-time"
        shutdown = fields.get("InstanceInitiatedShutdownBehavior")
        if spot and once and shutdown:
            text = "The instance initiated shutdown behavior of a one-time spot instance cannot be chosen."
            if shutdown == "stop":
                raise invalid(text, "InvalidParameterCombination")
        return Launch(
            region=region,
            image=self.image(backend, region, fields["ImageId"]),
            type=type_,
            spot=spot,
            user_data=self.user_data(fields.get("UserData")),
            user_data_text=fields.get("UserData"),
            token=fields.get("ClientToken"),
            tags=specifications.get("instance", {}),
            volume_tags=specifications.get("volume", {}),
            metadata=metadata,
            shutdown=shutdown or "stop",
            devices=fields.get("BlockDeviceMappings") or [],
            others={"key_name": fields.get("KeyName")},
            **self.profile(request, fields.get("IamInstanceProfile") or {}),
            **network,
        )

    @staticmethod
    def image(backend, region, wanted):
        """Return the id of an image; it may be named by a parameter of SSM."""
        parameters = ssm_backends[ACCOUNT][region]
        if wanted.startswith("resolve:ssm:"):
            parameter = parameters.get_parameter(wanted.removeprefix("resolve:ssm:"))
            if parameter is None:
                raise invalid(f"The parameter of {wanted} does not exist.")
            return parameter.value
        if not re.fullmatch(r"ami-[0-9a-f]{8,17}", wanted):
            raise invalid(f'Invalid id: "{wanted}" (expecting "ami-...")', "InvalidAMIID.Malformed")
        if wanted in backend.amis:
            return wanted
        if wanted in public_images(region):
            return wanted
        text = f"The image id '[{wanted}]' does not exist"
        raise invalid(text, "InvalidAMIID.NotFound")

    @staticmethod
    def user_data(text):
        if not text:
            return b""
        try:
            data = base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise invalid(
                "Invalid BASE64 encoding of user data", "InvalidUserData.Malformed"
            ) from error
        if len(data) > USER_DATA:
            raise invalid(f"User data is limited to {USER_DATA} bytes")
        return data

    def profile(self, request, wanted):
        """Return the role of an instance profile, which the caller must be let pass."""
        if not wanted:
            return {"role": "", "role_name": "", "profile_arn": ""}
        for profile in iam_backends[ACCOUNT]["aws"].instance_profiles.values():
            named = profile.name == wanted.get("Name") or profile.arn == wanted.get("Arn")
            if named and not self.account.is_new(profile):
                break
        else:
            what = f"iamInstanceProfile.{'name' if 'Name' in wanted else 'arn'}"
            which = wanted.get("Name") or wanted.get("Arn")
            raise invalid(
                f"Value ({which}) for parameter {what} is invalid. Invalid IAM Instance Profile"
            )
        if not profile.roles:
            raise invalid(f'IAM Instance Profile "{profile.arn}" has no associated IAM Roles')
        role = profile.roles[0]
        self.account.check_role(
            role.arn,
            "InvalidParameterValue",
            f"The role {role.name} does not trust ec2.amazonaws.com",
            "ec2.amazonaws.com",
        )
        self.account.check_pass(request, role.arn)
        return {"role": role.arn, "role_name": role.name, "profile_arn": profile.arn}

    @staticmethod
    def check_offered(region, type_, zone):
        """Refuse a type of instance that the region or the zone does not have."""
        offered = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, [])
        if offered and not any(
            o["InstanceType"] == type_ and o["Location"] == zone for o in offered
        ):
            zones = sorted({o["Location"] for o in offered if o["InstanceType"] == type_})
            instead = (
                f" Please retry your request by not specifying an Availability Zone or choosing {', '.join(zones)}."
                if zones
                else ""
            )
            raise invalid(
                f"Your requested instance type ({type_}) is not supported in your requested Availability Zone ({zone}).{instead}",
                "Unsupported",
            )

    @staticmethod
    def network(backend, fields):
        """Return subnet, zone, groups and whether there is a public address."""
        interfaces = fields.get("NetworkInterfaces") or []
        if len(interfaces) > 1:
            raise invalid(
                "the test bed has one network interface for an instance", "UnsupportedOperation"
            )
        first = interfaces[0] if interfaces else {}
        if interfaces and (fields.get("SubnetId") and first.get("SubnetId")):
            raise invalid(
                "Network interfaces and an instance-level subnet ID may not be specified on the same request",
                "InvalidParameterCombination",
            )
        if interfaces and fields.get("SecurityGroupIds"):
            raise invalid(
                "Network interfaces and an instance-level security groups may not be specified on the same request",
                "InvalidParameterCombination",
            )
        zone = (fields.get("Placement") or {}).get("AvailabilityZone")
        wanted = fields.get("SubnetId") or first.get("SubnetId")
        subnets = {name: one for zone_ in backend.subnets.values() for name, one in zone_.items()}
        if wanted and wanted not in subnets:
            raise invalid(f"The subnet ID '{wanted}' does not exist", "InvalidSubnetID.NotFound")
        if not wanted:
            usual = [
                s
                for s in subnets.values()
                if s.default_for_az and zone in {None, s.availability_zone}
            ]
            if not usual:
                raise invalid(
                    "No subnets found for the default VPC. Please specify a subnet.", "MissingInput"
                )
            wanted = min(usual, key=lambda one: one.availability_zone).id
        subnet = subnets[wanted]
        if zone not in {None, subnet.availability_zone}:
            raise invalid("The availability zone in the request is not that of the subnet.")
        groups = first.get("Groups") or fields.get("SecurityGroupIds") or []
        for name in groups:
            if name not in backend.groups[subnet.vpc_id]:
                raise invalid(
                    f"The security group '{name}' does not exist in VPC '{subnet.vpc_id}'",
                    "InvalidGroup.NotFound",
                )
        public = first.get("AssociatePublicIpAddress")
        if public is None:
            public = str(subnet.map_public_ip_on_launch).lower() == "true"
        return {
            "subnet": subnet.id,
            "zone": subnet.availability_zone,
            "groups": list(groups),
            "public": bool(public),
        }


def as_error(error):
    """Return moto's error as one of the test bed."""
    if isinstance(error, ServiceException):
        return AwsError(error.code, error.message)
    return AwsError("InternalError", repr(error), 500)
