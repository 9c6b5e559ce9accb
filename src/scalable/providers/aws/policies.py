"""Policies of the roles of a cluster's machines, without I/O.

Each cluster has its own roles, so that no machine reads another cluster's secrets. A worker's task
has no role: AWS reads the secret for it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scalable.providers.aws.api import Identity
from scalable.providers.aws.names import LOG_GROUP, ROLES_PATH, SECRETS_PATH
from scalable.remote.cloud import CLUSTER, MANAGING, ROLE

#: The role with which Fargate starts tasks: images, secrets, logs.
EXECUTION = "execution"
#: The role of a manager's task.
TASK = "manager-task"


@dataclass(frozen=True)
class Scope:
    """The cluster, account and region that policies are limited to."""

    identity: Identity
    region: str
    cluster_id: str

    def arn(self, service: str, rest: str, *, everywhere: bool = False) -> str:
        """Return the ARN of a resource in the account, without a region if ``everywhere``."""
        region = "" if everywhere else self.region
        return f"arn:{self.identity.partition}:{service}:{region}:{self.identity.account}:{rest}"

    @property
    def secrets(self) -> str:
        """ARN pattern of the cluster's secrets."""
        return self.arn("secretsmanager", f"secret:{SECRETS_PATH}{self.cluster_id}/*")

    @property
    def roles(self) -> str:
        """ARN pattern of the cluster's roles."""
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
    """Return the name of a role, which has at most 64 characters."""
    return f"scalable-{cluster_id}-{kind}"


def instance_kind(role: str) -> str:
    """Return the role kind of the instances with a machine's role."""
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
    """Return the policy of instances. Except for managers, it allows only the role's secrets."""
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
    """Return the policy of a manager's task, which may pass its machines the roles ``passed``."""
    return _document(_managing(scope, passed))


def _running(scope: Scope) -> list[dict[str, Any]]:
    """Return the statements for starting a container: its image and its log stream."""
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
