"""Firewall rules that a cluster needs, and those that exist, without I/O."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scalable.protocol.streams import RELAY_PORT
from scalable.providers.gcp.config import Config
from scalable.providers.gcp.names import checksum, network_tag, resource_name
from scalable.remote.cloud import SCHEDULER

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
        """Return a description of the rule for the user."""
        where = "from the cluster's machines" if self.source else f"from {', '.join(self.ranges)}"
        first, last = self.ports
        ports = f"port {first}" if first == last else "all ports"
        return f"firewall rule {self.name} in network {network!r}: tcp, {ports}, {where}"


def needs(cluster_id: str, config: Config, inside: str = "") -> list[Need]:
    """Return the traffic that a cluster needs, with the subnetwork's address range ``inside``."""
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
    """Return the marks of a rule, which are empty for rules of others."""
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
