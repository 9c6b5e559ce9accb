"""Network of a cluster, with existing or new firewall rules."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scalable.errors import ProviderError
from scalable.protocol.streams import RELAY_PORT
from scalable.providers.gcp.api import (
    CONFLICT,
    FORBIDDEN,
    NOT_FOUND,
    GoogleApi,
    GoogleError,
    Operations,
)
from scalable.providers.gcp.config import Config
from scalable.providers.gcp.instances import failure_in, network_path, subnetwork_path, unix_time
from scalable.providers.gcp.names import PREFIX, checksum, last, network_tag, resource_name
from scalable.providers.remote.cloud import CLUSTER, SCHEDULER

logger = logging.getLogger("scalable.providers.gcp")

#: Seconds within which a rule has to be created.
RULE_TIMEOUT_S = 40.0
_PATH = re.compile(r"(?:.*/)?projects/(?P<project>[^/]+)/(?P<rest>.+)")


class GoogleNetwork:
    """Firewall rules of clusters in one network."""

    def __init__(self, api: GoogleApi, operations: Operations, config: Config) -> None:
        self._api = api
        self._operations = operations
        self._config = config

    async def missing(self, cluster_id: str) -> list[Need]:
        """Return the cluster's traffic that no rule allows yet."""
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
            logger.warning("could not check the firewall rules of the network: %s", error.message)
            return []
        await asyncio.gather(*(self._make(need, marks) for need in missing))
        return [need.described(last(self._config.network)) for need in missing]

    async def _make(self, need: Need, marks: Mapping[str, str]) -> None:
        network = (await self._subnetwork()).get("network") or network_path(self._config.network)
        project, _ = _split(network)
        body = rule_body(need, network, marks)
        logger.debug("created: %s", need.described(network))
        query = {"requestId": str(uuid.uuid4())}
        try:
            operation = await self._api.compute(
                "POST", "global/firewalls", project=project, query=query, body=body
            )
        except GoogleError as error:
            if error.status == CONFLICT:
                return
            raise _with_hint(error, need, network) from error
        done = await self._operations.outcome("global", operation, RULE_TIMEOUT_S, project)
        failure = failure_in(done)
        if failure is not None:
            raise ProviderError(
                f"{need.described(last(network))} cannot be created: {failure.message}"
            )

    async def clean(self, marks: Mapping[str, str]) -> list[str]:
        """Delete the rules that carry these marks, and return a description of each."""
        network = self._config.network
        project, _ = _split(network)
        rules = [r for r in await self._rules(project) if _carries(r, marks)]
        await asyncio.gather(*(self._delete(rule["name"], project) for rule in rules))
        return [f"firewall rule {rule['name']}" for rule in rules]

    async def clusters(self, marks: Mapping[str, str], older_than_s: float) -> set[str]:
        """Return the ids of clusters with these marks and a rule older than ``older_than_s``."""
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
                hint="set network of the target",
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
                    hint="set subnetwork of the target",
                ) from error
            return {}

    async def _rules(self, project: str | None) -> list[dict[str, Any]]:
        url = await self._api.compute_url("global/firewalls", project)
        found: list[dict[str, Any]] = []
        async for page in self._api.pages(url):
            found += page.get("items") or ()
        return found


def _split(path: str) -> tuple[str | None, str]:
    """Return the project in a path (or None) and the path within the project."""
    found = _PATH.fullmatch(path)
    return (found["project"], found["rest"]) if found else (None, path)


def _is_in(rule: Mapping[str, Any], network: str) -> bool:
    return _split(rule.get("network", ""))[1] == _split(network)[1]


def _carries(rule: Mapping[str, Any], marks: Mapping[str, str]) -> bool:
    ours = rule["name"].startswith(PREFIX)
    return ours and bool(marks) and marks.items() <= marks_of(rule).items()


def _with_hint(error: GoogleError, need: Need, network: str) -> ProviderError:
    """Return the error, with a hint for users without the permission."""
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
        f"no firewall rule lets {need.purpose}, and this user may not create one: {error.message}",
        hint="ask for a firewall rule, and set network_tags to its target tag; for example: "
        f"gcloud compute firewall-rules create scalable --network={last(network)} "
        f"--allow={ports} --target-tags=scalable {source}",
    )


# Firewall -----------------------------------------------------------------------------------------

#: Key of the marks in a rule's description: rules have no labels.
MARKS = "scalable-marks"
ALL_PORTS = (0, 65535)


@dataclass(frozen=True)
class Need:
    """Traffic that a cluster needs."""

    #: Name of the rule that is created for it.
    name: str
    #: Purpose, for the user.
    purpose: str
    #: Network tag of the machines that receive it.
    target: str
    #: First and last port.
    ports: tuple[int, int]
    #: Address ranges that it comes from.
    ranges: tuple[str, ...] = ()
    #: Network tag of the machines that send it; empty if it comes from ``ranges``.
    source: str = ""

    def described(self, network: str) -> str:
        where = "from the cluster's machines" if self.source else f"from {', '.join(self.ranges)}"
        first, last = self.ports
        ports = f"port {first}" if first == last else "all ports"
        return f"firewall rule {self.name} in network {network!r}: tcp, {ports}, {where}"


def needs(cluster_id: str, config: Config, inside: str = "") -> list[Need]:
    """Return the traffic that a cluster needs. ``inside`` is the subnetwork's address range."""
    tag = network_tag(cluster_id)
    found = [
        Need(
            name=rule_name(cluster_id, "inside"),
            purpose="the cluster's machines reach each other",
            target=tag,
            ports=ALL_PORTS,
            ranges=(inside,) if inside else (),
            source=tag,
        )
    ]
    if config.clients_from:
        found.append(
            Need(
                name=rule_name(cluster_id, "clients"),
                purpose="clients reach the scheduler",
                target=network_tag(cluster_id, SCHEDULER),
                ports=(RELAY_PORT, RELAY_PORT),
                ranges=config.clients_from,
            )
        )
    return found


def rule_name(cluster_id: str, purpose: str) -> str:
    """Return the name of a cluster's rule."""
    return resource_name(checksum(cluster_id, 12), purpose)


def rule_body(need: Need, network: str, marks: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of ``firewalls.insert``."""
    first, last = need.ports
    port = f"{first}" if first == last else f"{first}-{last}"
    source = {"sourceTags": [need.source]} if need.source else {"sourceRanges": [*need.ranges]}
    return {
        "name": need.name,
        "description": json.dumps({"purpose": need.purpose, MARKS: dict(marks)}),
        "network": network,
        "direction": "INGRESS",
        "priority": 1000,
        "allowed": [{"IPProtocol": "tcp", "ports": [port]}],
        "targetTags": [need.target],
        **source,
    }


def marks_of(rule: Mapping[str, Any]) -> dict[str, str]:
    """Return the marks of a rule, or an empty dict for other rules."""
    try:
        found = json.loads(rule.get("description") or "{}")
        marks = found.get(MARKS) or {}
        return {str(key): str(text) for key, text in marks.items()}
    except (ValueError, AttributeError):
        return {}


def is_met(need: Need, rules: Iterable[Mapping[str, Any]], tags: Iterable[str]) -> bool:
    """Return whether a rule allows the traffic to machines with the cluster's tags or ``tags``."""
    targets = {need.target, *tags}
    return any(_allows(need, rule, targets) for rule in rules)


def _allows(need: Need, rule: Mapping[str, Any], targets: set[str]) -> bool:
    if rule.get("direction", "INGRESS") != "INGRESS" or rule.get("disabled"):
        return False
    if rule.get("targetServiceAccounts") or rule.get("sourceServiceAccounts"):
        return False
    wanted = rule.get("targetTags")
    if wanted and not targets & set(wanted):
        return False
    return _has_ports(need.ports, rule) and _has_source(need, rule)


def _has_ports(ports: tuple[int, int], rule: Mapping[str, Any]) -> bool:
    for entry in rule.get("allowed") or ():
        if str(entry.get("IPProtocol", "")).lower() not in ("tcp", "all", "6"):
            continue
        written = entry.get("ports")
        if not written:
            return True
        for text in written:
            first, _, last = str(text).partition("-")
            # Port 0 is not a port: a rule for 1-65535 allows all.
            if int(first) <= max(1, ports[0]) and ports[1] <= int(last or first):
                return True
    return False


def _has_source(need: Need, rule: Mapping[str, Any]) -> bool:
    if need.source and need.source in (rule.get("sourceTags") or ()):
        return True
    offered = [_range(text) for text in rule.get("sourceRanges") or ()]
    wanted = [_range(text) for text in need.ranges]
    return bool(wanted) and all(
        any(each.version == other.version and each.subnet_of(other) for other in offered)  # type: ignore[arg-type]
        for each in wanted
    )


def _range(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    return ipaddress.ip_network(text, strict=False)
