"""Calls of RunTask checked by the rules of ECS."""

import itertools
import re
from dataclasses import dataclass, field
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ecs.models import ecs_backends

from .errors import AwsError
from .identities import ACCOUNT
from .task_definitions import check_pair, check_tags

STARTED_BY = re.compile(r"[A-Za-z0-9_/-]{1,128}")
OVERRIDES = 8192
turns = itertools.count()


def invalid(text):
    return AwsError("InvalidParameterException", text)


@dataclass
class Order:
    """One task that is to be made."""

    region: str
    cluster: Any
    definition: Any
    provider: str
    subnet: str
    zone: str
    groups: list
    public: bool
    cpu: str
    memory: str
    task_role: str
    execution_role: str
    overrides: dict
    started_by: str
    group: str
    tags: list = field(default_factory=list)
    address: str = ""

    @property
    def name(self):
        """The name by which faults of the start find a task."""
        return f"ecs:{self.definition.family}"

    @property
    def private_name(self):
        return f"ip-{self.address.replace('.', '-')}.ec2.internal"


def find_cluster(backend, wanted):
    """Return a cluster by its name or ARN."""
    name = (wanted or "default").rpartition("/")[2]
    cluster = backend.clusters.get(name)
    if cluster is None:
        raise AwsError("ClusterNotFoundException", "Cluster not found.")
    if cluster.status != "ACTIVE":
        raise invalid("The referenced cluster was inactive.")
    return cluster


def find_definition(backend, wanted):
    """Return an active task definition by its ARN, `family:revision` or family."""
    family, _, revision = wanted.rpartition("/")[2].partition(":")
    revisions = backend.task_definitions.get(family) or {}
    active = [number for number, one in revisions.items() if one.status == "ACTIVE"]
    if revision and revision.isdigit() and int(revision) in revisions:
        found = revisions[int(revision)]
        if found.status != "ACTIVE":
            raise AwsError("ClientException", "TaskDefinition is inactive")
        return found
    if revision or not active:
        raise AwsError("ClientException", "TaskDefinition not found.")
    return revisions[max(active)]


class OrderReader:
    """Makes orders of the parameters of RunTask."""

    def __init__(self, account):
        self.account = account

    def read(self, request):
        """Return one order for each task."""
        p = request.parameters
        count = p.get("count", 1)
        if not 1 <= count <= 10:
            raise invalid(f"Count is {count}; it must be between 1 and 10.")
        backend = ecs_backends[ACCOUNT][request.region]
        cluster = find_cluster(backend, p.get("cluster"))
        definition = find_definition(backend, p["taskDefinition"])
        check_tags(p.get("tags") or [])
        if p.get("startedBy") and not STARTED_BY.fullmatch(p["startedBy"]):
            raise invalid("startedBy may have 128 letters, digits, '-', '/' and '_' at most.")
        overrides = p.get("overrides") or {}
        self.check_overrides(overrides, definition)
        providers = self.providers(p, cluster, definition, count)
        cpu = overrides.get("cpu") or definition.cpu
        memory = overrides.get("memory") or definition.memory
        check_pair(cpu, memory)
        tags = list(p.get("tags") or [])
        if p.get("propagateTags") == "TASK_DEFINITION":
            own = {tag["key"] for tag in tags}
            tags += [tag for tag in definition.tags if tag["key"] not in own]
        options = {
            "region": request.region,
            "cluster": cluster,
            "definition": definition,
            "cpu": cpu,
            "memory": memory,
            "overrides": overrides,
            "started_by": p.get("startedBy", ""),
            "group": p.get("group") or f"family:{definition.family}",
            **self.roles(request, overrides, definition),
        }
        network = self.network(p, request.region)
        return [
            Order(provider=provider, tags=[dict(t) for t in tags], **options, **next(network))
            for provider in providers
        ]

    def check_overrides(self, overrides, definition):
        if len(str(overrides)) > OVERRIDES:
            raise invalid(f"The overrides have more than {OVERRIDES} characters.")
        names = {entry["name"] for entry in definition.container_definitions}
        for entry in overrides.get("containerOverrides") or ():
            if entry.get("name") not in names:
                raise invalid(
                    "Override for container named "
                    f"{entry.get('name')} is not a container in the TaskDefinition."
                )

    def providers(self, p, cluster, definition, count):
        """Return the capacity provider of each task."""
        launch, strategy = p.get("launchType"), p.get("capacityProviderStrategy")
        if launch and strategy:
            raise invalid(
                "Specifying both a launch type and capacity provider strategy is not supported. Remove one and try again."
            )
        if not launch and not strategy:
            strategy = cluster.default_capacity_provider_strategy
        if launch not in {None, "FARGATE"} or (not launch and not strategy):
            raise invalid("No Container Instances were found in your cluster.")
        if "FARGATE" not in (definition.requires_compatibilities or ()):
            raise invalid("Task definition does not support launch_type FARGATE.")
        if not strategy:
            return [""] * count
        for entry in strategy:
            name = entry["capacityProvider"]
            if name not in (cluster.capacity_providers or ()):
                raise invalid(
                    f"The specified capacity provider '{name}' is not associated with the cluster '{cluster.name}'."
                )
        if sum(1 for entry in strategy if entry.get("base")) > 1:
            raise invalid("Only one capacity provider of a strategy may have a base.")
        if not any(entry.get("weight", 0) for entry in strategy):
            raise invalid("A capacity provider strategy needs a weight greater than zero.")
        found = [e["capacityProvider"] for e in strategy for _ in range(e.get("base", 0))][:count]
        given = dict.fromkeys((e["capacityProvider"] for e in strategy), 0)
        weighted = [e for e in strategy if e.get("weight", 0)]
        while len(found) < count:
            least = min(weighted, key=lambda e: given[e["capacityProvider"]] / e["weight"])
            given[least["capacityProvider"]] += 1
            found.append(least["capacityProvider"])
        return found

    def roles(self, request, overrides, definition):
        """Return the roles of the tasks; they must exist and the caller must be let pass them."""
        found = {}
        for field_, key in (("task_role", "taskRoleArn"), ("execution_role", "executionRoleArn")):
            arn = overrides.get(key) or getattr(definition, f"{field_}_arn", None) or ""
            found[field_] = arn
            if arn:
                text = f"ECS was unable to assume the role '{arn}' that was provided for this task. Please verify that the role being passed has the proper trust relationship and permissions and that your IAM user has permissions to pass this role."
                self.account.check_role(arn, "ClientException", text, "ecs-tasks.amazonaws.com")
                self.account.check_pass(request, arn)
        return found

    def network(self, p, region):
        """Yield subnet, zone, groups and whether there is a public address, for each task."""
        configuration = (p.get("networkConfiguration") or {}).get("awsvpcConfiguration")
        if not configuration:
            raise invalid(
                "Network Configuration must be provided when networkMode 'awsvpc' is specified."
            )
        backend = ec2_backends[ACCOUNT][region]
        wanted = configuration["subnets"]
        if not 1 <= len(wanted) <= 16:
            raise invalid("subnets must have between 1 and 16 entries.")
        subnets = {}
        for zone in backend.subnets.values():
            subnets |= zone
        for name in wanted:
            if name not in subnets:
                raise invalid(
                    f"Error retrieving subnet information for [{name}]: The subnet ID '{name}' does not exist (ErrorCode: InvalidSubnetID.NotFound)"
                )
        if len({subnets[name].vpc_id for name in wanted}) > 1:
            raise invalid("The subnets are of more than one VPC.")
        vpc = subnets[wanted[0]].vpc_id
        groups = configuration.get("securityGroups") or []
        if len(groups) > 5:
            raise invalid("securityGroups can have at most 5 items.")
        for name in groups:
            if name not in backend.groups[vpc]:
                raise invalid(
                    f"Error retrieving security group information for [{name}]: The security group '{name}' does not exist (ErrorCode: InvalidGroup.NotFound)"
                )
        while True:
            subnet = wanted[next(turns) % len(wanted)]
            yield {
                "subnet": subnet,
                "zone": subnets[subnet].availability_zone,
                "groups": groups,
                "public": configuration.get("assignPublicIp") == "ENABLED",
            }
