"""What the rules of security groups let through; on loopback nothing else holds them."""

import ipaddress

#: An address outside the account's network.
OUTSIDE = "198.51.100.7"


def lets_through(rule, port, groups, address):
    """Whether a rule lets TCP from a machine with these groups and this address through."""
    if rule.ip_protocol not in {"tcp", "-1"}:
        return False
    if rule.ip_protocol == "tcp" and not rule.from_port <= port <= rule.to_port:
        return False
    if rule.source_group:
        return rule.source_group.get("GroupId") in groups
    network = ipaddress.ip_network(rule.ip_range.get("CidrIp", "0.0.0.0/32"))
    return ipaddress.ip_address(address) in network


def reaches(source, target, port):
    """Whether a machine, None for one outside, may connect to a port of another.

    Both are network interfaces of moto. The network of subnets decides between machines, whose
    addresses on this machine are not of it.
    """
    if source is None and not target.public_ip:
        return False
    groups = {group.id for group in source.group_set} if source else set()
    # On AWS the machine has an address of its subnet; any of them stands for it.
    inner = str(ipaddress.ip_network(source.subnet.cidr_block)[10]) if source else OUTSIDE
    # moto's default group lacks the rule that lets its own members through.
    if any(group.name == "default" and group.id in groups for group in target.group_set):
        return True
    rules = [rule for group in target.group_set for rule in group.ingress_rules]
    return any(lets_through(rule, port, groups, inner) for rule in rules)
