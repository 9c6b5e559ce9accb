"""Roles of a cluster's machines: existing ones, or ones created and deleted with the cluster."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalable.providers.aws.api import AWSApi, AWSError, Identity
from scalable.providers.aws.names import (
    LOG_GROUP,
    MADE,
    REGION,
    ROLES_PATH,
    SECRETS_PATH,
    marks_in,
    pairs,
    tags,
)
from scalable.providers.remote.cloud import CLUSTER, MANAGING, ROLE

logger = logging.getLogger("scalable.providers.aws")

_ECS, _EC2 = "ecs-tasks.amazonaws.com", "ec2.amazonaws.com"
_POLICY = "scalable"
_NONE = "NoSuchEntity"
_EXISTS = "EntityAlreadyExists"


class Roles:
    """Roles of one account. ``passed`` are the roles that managers pass to their machines."""

    def __init__(self, api: AWSApi, passed: tuple[str, ...] = ()) -> None:
        self._api = api
        self._passed = passed
        self._known: set[str] = set()

    async def scope(self, cluster_id: str) -> Scope:
        return Scope(await self._api.identity(), self._api.region, cluster_id)

    async def execution(self, cluster_id: str, marks: Mapping[str, str]) -> str:
        """Return the ARN of the role with which Fargate starts tasks, creating it if missing."""
        scope = await self.scope(cluster_id)
        policy = execution_policy(scope)
        return await self._role(scope, EXECUTION, _ECS, policy, marks)

    async def manager_task(self, cluster_id: str, marks: Mapping[str, str]) -> str:
        """Return the ARN of a manager task's role, creating it if missing."""
        scope = await self.scope(cluster_id)
        policy = manager_policy(scope, self._passed)
        return await self._role(scope, TASK, _ECS, policy, marks)

    async def instance(self, cluster_id: str, role: str, marks: Mapping[str, str]) -> str:
        """Return the ARN of the instance profile for machines in a role, creating it if missing."""
        scope = await self.scope(cluster_id)
        kind = instance_kind(role)
        policy = instance_policy(scope, role, self._passed)
        arn = scope.profile(kind)
        if arn in self._known:
            return arn
        await self._role(scope, kind, _EC2, policy, marks)
        name = role_name(cluster_id, kind)
        if await self._missing("get_instance_profile", InstanceProfileName=name):
            await self._make(
                "create_instance_profile",
                InstanceProfileName=name,
                Path=role_path(cluster_id),
                Tags=self._tags(marks),
            )
            await self._make(
                "add_role_to_instance_profile", InstanceProfileName=name, RoleName=name
            )
        self._known.add(arn)
        return arn

    async def clean(self, cluster_id: str) -> list[str]:
        """Delete the roles of a cluster, and return a description of each."""
        return [
            await self._remove(role["RoleName"])
            for role in await self._api.pages(
                "iam", "list_roles", "Roles", PathPrefix=role_path(cluster_id)
            )
        ]

    async def clusters(
        self, older_than_s: float, without: Collection[str] = ()
    ) -> dict[str, dict[str, str]]:
        """Map cluster ids to the marks of this region's old roles, except ids in ``without``."""
        found: dict[str, dict[str, str]] = {}
        for role in await self._api.pages("iam", "list_roles", "Roles", PathPrefix=ROLES_PATH):
            if time.time() - role["CreateDate"].timestamp() < older_than_s:
                continue
            cluster_id = role["Path"].removeprefix(ROLES_PATH).strip("/")
            if cluster_id in found or cluster_id in without:
                continue
            answer = await self._api.call("iam", "list_role_tags", RoleName=role["RoleName"])
            tagged = pairs(answer.get("Tags"))
            if tagged.get(REGION) == self._api.region:
                found.setdefault(cluster_id, marks_in(tagged))
        return found

    async def _role(
        self, scope: Scope, kind: str, service: str, policy: str, marks: Mapping[str, str]
    ) -> str:
        arn, name = scope.role(kind), role_name(scope.cluster_id, kind)
        if arn in self._known:
            return arn
        if await self._missing("get_role", RoleName=name):
            logger.debug("role %s is created", name)
            await self._make(
                "create_role",
                RoleName=name,
                Path=role_path(scope.cluster_id),
                AssumeRolePolicyDocument=trust(service),
                Description="machines of a scalable cluster",
                Tags=self._tags(marks),
            )
            # A creator that dies before this leaves a role without a policy.
            await self._make(
                "put_role_policy", RoleName=name, PolicyName=_POLICY, PolicyDocument=policy
            )
        elif await self._missing("get_role_policy", RoleName=name, PolicyName=_POLICY):
            await self._make(
                "put_role_policy", RoleName=name, PolicyName=_POLICY, PolicyDocument=policy
            )
        self._known.add(arn)
        return arn

    async def _missing(self, question: str, **parameters: str) -> bool:
        try:
            await self._api.call("iam", question, **parameters)
        except AWSError as error:
            if error.error_code == _NONE:
                return True
            # A manager in the cloud may not read all policies. Its creator has created the roles.
            if question == "get_role_policy" and error.forbidden:
                return False
            raise
        return False

    async def _make(self, operation: str, **parameters: object) -> None:
        try:
            await self._api.call("iam", operation, **parameters)
        except AWSError as error:
            # The answer to an earlier attempt was lost, or another process was faster.
            if error.error_code not in (_EXISTS, "LimitExceeded") or (
                error.error_code == "LimitExceeded" and operation != "add_role_to_instance_profile"
            ):
                raise

    async def _remove(self, name: str) -> str:
        await self._drop(
            "remove_role_from_instance_profile", InstanceProfileName=name, RoleName=name
        )
        await self._drop("delete_instance_profile", InstanceProfileName=name)
        await self._drop("delete_role_policy", RoleName=name, PolicyName=_POLICY)
        await self._drop("delete_role", RoleName=name)
        self._known.clear()
        return f"role {name}"

    async def _drop(self, operation: str, **parameters: str) -> None:
        try:
            await self._api.call("iam", operation, **parameters)
        except AWSError as error:
            if error.error_code != _NONE:
                raise

    def _tags(self, marks: Mapping[str, str]) -> list[dict[str, str]]:
        kept = {key: value for key, value in marks.items() if key != ROLE}
        return tags({**kept, MADE: str(int(time.time())), REGION: self._api.region})


# Policies -----------------------------------------------------------------------------------------

#: The role with which Fargate starts tasks: images, secrets, logs.
EXECUTION = "execution"
#: The role of a manager's task.
TASK = "manager-task"


@dataclass(frozen=True)
class Scope:
    """Cluster, account and region that policies are limited to."""

    identity: Identity
    region: str
    cluster_id: str

    def arn(self, service: str, rest: str, *, everywhere: bool = False) -> str:
        """Return the ARN of a resource in the account, without a region if ``everywhere``."""
        region = "" if everywhere else self.region
        return f"arn:{self.identity.partition}:{service}:{region}:{self.identity.account}:{rest}"

    @property
    def secrets(self) -> str:
        return self.arn("secretsmanager", f"secret:{SECRETS_PATH}{self.cluster_id}/*")

    @property
    def roles(self) -> str:
        return self.arn("iam", f"role{ROLES_PATH}{self.cluster_id}/*", everywhere=True)

    def role(self, kind: str) -> str:
        path = f"role{role_path(self.cluster_id)}{role_name(self.cluster_id, kind)}"
        return self.arn("iam", path, everywhere=True)

    def profile(self, kind: str) -> str:
        path = f"instance-profile{role_path(self.cluster_id)}{role_name(self.cluster_id, kind)}"
        return self.arn("iam", path, everywhere=True)


def role_path(cluster_id: str) -> str:
    """Return the path of a cluster's roles."""
    return f"{ROLES_PATH}{cluster_id}/"


def role_name(cluster_id: str, kind: str) -> str:
    """Return the name of a role, at most 64 characters long."""
    return f"scalable-{cluster_id}-{kind}"


def instance_kind(role: str) -> str:
    """Return the kind of IAM role for instances, given the role of their machine."""
    return f"ec2-{role}"


def trust(service: str) -> str:
    """Return the trust policy that allows an AWS service to assume a role."""
    return _document([_allow("sts:AssumeRole", Principal={"Service": service})])


def execution_policy(scope: Scope) -> str:
    """Return the policy of the role with which Fargate starts a cluster's tasks."""
    return _document(
        [
            _allow("secretsmanager:GetSecretValue", Resource=scope.secrets),
            *_running(scope),
        ]
    )


def instance_policy(scope: Scope, role: str, passed: Sequence[str] = ()) -> str:
    """Return the policy of instances. Except for managers, it only covers the role's secrets."""
    if role == MANAGING:
        return _document([*_managing(scope, passed), *_running(scope)])
    condition = {"StringEquals": {f"secretsmanager:ResourceTag/{ROLE}": role}}
    return _document(
        [
            _allow("secretsmanager:GetSecretValue", Resource=scope.secrets, Condition=condition),
            *_running(scope),
        ]
    )


def manager_policy(scope: Scope, passed: Sequence[str] = ()) -> str:
    """Return the policy of a manager's task. It may pass the roles ``passed`` to machines."""
    return _document(_managing(scope, passed))


def _running(scope: Scope) -> list[dict[str, Any]]:
    """Return the policy statements that a container needs to start: for its image and logs."""
    streams = scope.arn("logs", f"log-group:{LOG_GROUP}:*")
    images = ("BatchCheckLayerAvailability", "BatchGetImage", "GetDownloadUrlForLayer")
    return [
        _allow("logs:CreateLogStream", "logs:PutLogEvents", Resource=streams),
        _allow("ecr:GetAuthorizationToken", Resource="*"),
        _allow(*(f"ecr:{each}" for each in images), Resource="*"),
    ]


def _managing(scope: Scope, passed: Sequence[str]) -> list[dict[str, Any]]:
    own = {"StringEquals": {f"aws:ResourceTag/{CLUSTER}": scope.cluster_id}}
    asked = {"StringEquals": {f"aws:RequestTag/{CLUSTER}": scope.cluster_id}}
    profiles = scope.roles.replace(":role/", ":instance-profile/")
    return [
        _allow(
            *("ecs:DescribeClusters", "ecs:DescribeTasks", "ecs:ListTasks"),
            *("ecs:DescribeTaskDefinition", "ecs:RegisterTaskDefinition"),
            *("ecs:ListTaskDefinitions", "ecs:ListTaskDefinitionFamilies"),
            *("ecs:DeregisterTaskDefinition", "ecs:DeleteTaskDefinitions"),
            *("ec2:DescribeAvailabilityZones", "ec2:DescribeImages", "ec2:DescribeInstances"),
            *("ec2:DescribeInstanceTypeOfferings", "ec2:DescribeLaunchTemplates"),
            *("ec2:DescribeNetworkInterfaces", "ec2:DescribeSecurityGroups"),
            *("ec2:DescribeSubnets", "ec2:DescribeVpcs", "ec2:DescribeRouteTables"),
            *("logs:DescribeLogGroups", "secretsmanager:ListSecrets", "sts:GetCallerIdentity"),
            *("secretsmanager:BatchGetSecretValue", "ssm:GetParameter"),
            Resource="*",
        ),
        _allow("ecs:RunTask", "ecs:TagResource", Resource="*", Condition=asked),
        _allow("ecs:StopTask", Resource="*", Condition=own),
        # A fleet request starts instances from a launch template, in the account's subnets.
        _allow("ec2:CreateFleet", "ec2:RunInstances", Resource="*"),
        _allow("ec2:CreateTags", "ec2:CreateLaunchTemplate", Resource="*", Condition=asked),
        _allow(
            *("ec2:CreateTags", "ec2:TerminateInstances", "ec2:DeleteLaunchTemplate"),
            *("ec2:DeleteSecurityGroup",),
            Resource="*",
            Condition=own,
        ),
        _allow("secretsmanager:*", Resource=scope.secrets),
        _allow(
            "logs:GetLogEvents", "logs:DescribeLogStreams",
            Resource=scope.arn("logs", f"log-group:{LOG_GROUP}:*"),
        ),
        _allow("iam:PassRole", Resource=[scope.roles, *passed]),
        _allow("iam:GetRole", "iam:GetInstanceProfile", Resource=[scope.roles, profiles]),
    ]  # fmt: skip


def _allow(*actions: str, **rest: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": sorted(actions), **rest}


def _document(statements: list[dict[str, Any]]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements})
