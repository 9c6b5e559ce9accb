"""Roles of a cluster's machines: found, or created once, tagged and deleted with it."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping

from scalable.providers.aws import policies
from scalable.providers.aws.api import Api, AWSError
from scalable.providers.aws.names import MADE, REGION, ROLES_PATH, marks_in, pairs, tags
from scalable.providers.aws.policies import EXECUTION, TASK, Scope, role_name, role_path
from scalable.remote.cloud import ROLE

logger = logging.getLogger("scalable.providers.aws")

_ECS, _EC2 = "ecs-tasks.amazonaws.com", "ec2.amazonaws.com"
_POLICY = "scalable"
_NONE = "NoSuchEntity"
_EXISTS = "EntityAlreadyExists"


class Roles:
    """The roles of one account, where managers pass the roles ``passed`` to their machines."""

    def __init__(self, api: Api, passed: tuple[str, ...] = ()) -> None:
        self._api = api
        self._passed = passed
        self._known: set[str] = set()

    async def scope(self, cluster_id: str) -> Scope:
        return Scope(await self._api.identity(), self._api.region, cluster_id)

    async def execution(self, cluster_id: str, marks: Mapping[str, str]) -> str:
        """Return the ARN of the role with which Fargate starts tasks, and create it if missing."""
        scope = await self.scope(cluster_id)
        policy = policies.execution_policy(scope)
        return await self._role(scope, EXECUTION, _ECS, policy, marks)

    async def manager_task(self, cluster_id: str, marks: Mapping[str, str]) -> str:
        """Return the ARN of the role of a manager's task, and create it if missing."""
        scope = await self.scope(cluster_id)
        policy = policies.manager_policy(scope, self._passed)
        return await self._role(scope, TASK, _ECS, policy, marks)

    async def instance(self, cluster_id: str, role: str, marks: Mapping[str, str]) -> str:
        """Return the ARN of the instance profile of a role's machines, created if missing."""
        scope = await self.scope(cluster_id)
        kind = policies.instance_kind(role)
        policy = policies.instance_policy(scope, role, self._passed)
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
        """Return the marks of this region's roles of that age by cluster id, except ``without``."""
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
                AssumeRolePolicyDocument=policies.trust(service),
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
