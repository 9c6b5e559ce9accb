"""Network of a cluster: its firewall rules are found, or created and deleted."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Mapping
from typing import Any

from scalable.errors import ProviderError
from scalable.providers.gcp.api import Api
from scalable.providers.gcp.config import Config
from scalable.providers.gcp.errors import CONFLICT, FORBIDDEN, NOT_FOUND, GoogleError
from scalable.providers.gcp.firewall import Need, is_met, marks_of, needs, rule_body
from scalable.providers.gcp.instances import network_path, subnetwork_path, unix_time
from scalable.providers.gcp.names import PREFIX, last
from scalable.providers.gcp.operations import Operations
from scalable.providers.gcp.refusals import failure_in
from scalable.remote.cloud import CLUSTER

logger = logging.getLogger("scalable.providers.gcp")

#: Seconds within which a rule has to be created.
RULE_TIMEOUT_S = 40.0
_PATH = re.compile(r"(?:.*/)?projects/(?P<project>[^/]+)/(?P<rest>.+)")


class Network:
    """Firewall rules of clusters in one network."""

    def __init__(self, api: Api, operations: Operations, config: Config) -> None:
        self._api = api
        self._operations = operations
        self._config = config

    async def missing(self, cluster_id: str) -> list[Need]:
        """Return the traffic of a cluster that no rule allows yet."""
        subnetwork, network = await asyncio.gather(self._subnetwork(), self._find())
        if subnetwork.get("network"):
            network = subnetwork["network"]
        project, _ = _split(network)
        rules = [rule for rule in await self._rules(project) if _is_in(rule, network)]
        wanted = needs(cluster_id, self._config, subnetwork.get("ipCidrRange", ""))
        return [n for n in wanted if not is_met(n, rules, self._config.network_tags)]

    async def prepare(self, cluster_id: str, marks: Mapping[str, str]) -> list[str]:
        """Create the missing rules, and return a description of each."""
        try:
            missing = await self.missing(cluster_id)
        except GoogleError as error:
            if error.status != FORBIDDEN:
                raise
            # For example the account of a manager, whose cluster its creator has prepared.
            logger.warning("the rules of the network are not looked at: %s", error.message)
            return []
        await asyncio.gather(*(self._make(need, marks) for need in missing))
        return [need.described(last(self._config.network)) for need in missing]

    async def _make(self, need: Need, marks: Mapping[str, str]) -> None:
        network = (await self._subnetwork()).get("network") or network_path(self._config.network)
        project, _ = _split(network)
        body = rule_body(need, network, marks)
        logger.debug("made: %s", need.described(network))
        query = {"requestId": str(uuid.uuid4())}
        try:
            operation = await self._api.compute(
                "POST", "global/firewalls", project=project, query=query, body=body
            )
        except GoogleError as error:
            if error.status == CONFLICT:
                return
            raise _explained(error, need, network) from error
        done = await self._operations.outcome("global", operation, RULE_TIMEOUT_S, project)
        failure = failure_in(done)
        if failure is not None:
            raise ProviderError(
                f"{need.described(last(network))} cannot be made: {failure.message}"
            )

    async def clean(self, marks: Mapping[str, str]) -> list[str]:
        """Delete the rules with these marks, and return a description of each."""
        network = self._config.network
        project, _ = _split(network)
        rules = [r for r in await self._rules(project) if _carries(r, marks)]
        await asyncio.gather(*(self._delete(rule["name"], project) for rule in rules))
        return [f"firewall rule {rule['name']}" for rule in rules]

    async def clusters(self, marks: Mapping[str, str], older_than_s: float) -> set[str]:
        """Return the ids of clusters with these marks whose rules are older than that."""
        project, _ = _split(self._config.network)
        return {
            marks_of(rule).get(CLUSTER, "")
            for rule in await self._rules(project)
            if _carries(rule, marks)
            and time.time() - unix_time(rule["creationTimestamp"]) > older_than_s
        }

    async def _delete(self, name: str, project: str | None) -> None:
        try:
            await self._api.compute("DELETE", f"global/firewalls/{name}", project=project)
        except GoogleError as error:
            if error.status != NOT_FOUND:
                raise

    # Queries --------------------------------------------------------------------------------------

    async def _find(self) -> str:
        project, path = _split(network_path(self._config.network))
        try:
            found = await self._api.compute("GET", path, project=project)
        except GoogleError as error:
            if error.status != NOT_FOUND:
                raise
            raise ProviderError(
                f"there is no network {self._config.network!r} in this project",
                hint="name one in the target's network",
            ) from error
        return str(found["selfLink"])

    async def _subnetwork(self) -> dict[str, Any]:
        """Return the subnetwork of the machines, or an empty dict if it is unknown."""
        named = self._config.subnetwork
        written = named or last(self._config.network)
        project, path = _split(subnetwork_path(written, self._config.region))
        if not named:
            project = _split(self._config.network)[0]
        try:
            return await self._api.compute("GET", path, project=project)
        except GoogleError as error:
            if error.status not in (NOT_FOUND, FORBIDDEN):
                raise
            if named and error.status == NOT_FOUND:
                raise ProviderError(
                    f"there is no subnetwork {named!r} in {self._config.region}",
                    hint="name one in the target's subnetwork",
                ) from error
            return {}

    async def _rules(self, project: str | None) -> list[dict[str, Any]]:
        url = await self._api.compute_url("global/firewalls", project)
        found: list[dict[str, Any]] = []
        async for page in self._api.pages(url):
            found += page.get("items") or ()
        return found


def _split(path: str) -> tuple[str | None, str]:
    """Return the project of a path, or None without one, and the path within it."""
    found = _PATH.fullmatch(path)
    return (found["project"], found["rest"]) if found else (None, path)


def _is_in(rule: Mapping[str, Any], network: str) -> bool:
    return _split(rule.get("network", ""))[1] == _split(network)[1]


def _carries(rule: Mapping[str, Any], marks: Mapping[str, str]) -> bool:
    ours = rule["name"].startswith(PREFIX)
    return ours and bool(marks) and marks.items() <= marks_of(rule).items()


def _explained(error: GoogleError, need: Need, network: str) -> ProviderError:
    """Return the error, with a hint for a user without the permission."""
    if error.status != FORBIDDEN:
        return error
    first, final = need.ports
    source = (
        f"--source-tags={need.source}"
        if need.source
        else f"--source-ranges={','.join(need.ranges)}"
    )
    ports = "tcp" if (first, final) == (0, 65535) else f"tcp:{first}"
    return ProviderError(
        f"no firewall rule lets {need.purpose}, and this user may not make one: {error.message}",
        hint="ask for a rule of the network and name its target tag in network_tags, such as: "
        f"gcloud compute firewall-rules create scalable --network={last(network)} "
        f"--allow={ports} --target-tags=scalable {source}",
    )
