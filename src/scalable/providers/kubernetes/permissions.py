"""Permissions of users and managers, and the Role that grants them. This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AccessRule:
    """Permitted verbs on one resource."""

    #: API group; empty for the core group.
    group: str
    #: Name of the resource, with any subresource, such as ``pods/log``.
    resource: str
    verbs: tuple[str, ...]


RULES = (
    AccessRule("batch", "jobs", ("create", "delete", "get", "patch")),
    AccessRule("", "secrets", ("create",)),
    AccessRule("", "services", ("create",)),
    AccessRule("", "pods", ("create", "delete", "get", "list", "watch")),
    AccessRule("", "pods/log", ("get",)),
    # A WebSocket starts with GET, and newer versions check both verbs.
    AccessRule("", "pods/portforward", ("create", "get")),
)
#: Permissions for clusters of the Dask operator, which creates the pods and the Service.
OPERATOR_RULES = (
    AccessRule("batch", "jobs", ("create", "delete", "get", "patch")),
    AccessRule("", "secrets", ("create",)),
    AccessRule("kubernetes.dask.org", "daskclusters", ("create", "get")),
    AccessRule("kubernetes.dask.org", "daskworkergroups", ("create", "delete", "get", "list")),
    AccessRule("", "pods", ("get", "list", "watch")),
    *RULES[-2:],
)


#: Kinds of objects that grant a manager in a pod its rights.
ACCOUNT_KINDS = ("serviceaccounts", "roles", "rolebindings")
#: Additional permissions for a detached cluster, compared with a session's cluster.
_DETACHED_RULES = (
    AccessRule("batch", "jobs", ("list",)),
    AccessRule("", "secrets", ("get", "list")),
    AccessRule("", "services", ("create",)),
)
#: Additional permissions for a session's manager in a pod.
_PLACED_RULES = (AccessRule("batch", "jobs", ("list",)), AccessRule("", "services", ("create",)))
_ACCOUNT_RULES = (
    AccessRule("", "serviceaccounts", ("create",)),
    AccessRule("rbac.authorization.k8s.io", "roles", ("create",)),
    AccessRule("rbac.authorization.k8s.io", "rolebindings", ("create",)),
)
#: Permissions of a manager in a pod, except those on its units.
_MANAGER_RULES = (
    AccessRule("", "pods/log", ("get",)),
    # It sets its cluster's deadline, and deletes the cluster after it has ended.
    AccessRule("batch", "jobs", ("delete", "list", "patch")),
)
MANAGER_RULES = (
    AccessRule("", "pods", ("create", "delete", "get", "list", "watch")),
    *_MANAGER_RULES,
)
#: Permissions of a manager whose units are worker groups of the Dask operator.
OPERATOR_MANAGER_RULES = (
    AccessRule("kubernetes.dask.org", "daskworkergroups", ("create", "delete", "get", "list")),
    AccessRule("", "pods", ("get", "list", "watch")),
    *_MANAGER_RULES,
)


def merged(*parts: tuple[AccessRule, ...]) -> tuple[AccessRule, ...]:
    """Return all permissions, with one rule for each resource."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for rule in (rule for part in parts for rule in part):
        known = found.get((rule.group, rule.resource), ())
        found[rule.group, rule.resource] = tuple(sorted({*known, *rule.verbs}))
    return tuple(AccessRule(group, resource, verbs) for (group, resource), verbs in found.items())


#: Permissions of a user of detached clusters whose units are pods.
DETACHED_RULES = merged(RULES, _DETACHED_RULES, _ACCOUNT_RULES)


def _has_account(options: Mapping[str, Any]) -> bool:
    """Return whether a service account is created for a manager in a pod."""
    return options["manager_service_account"] is None


def session_rules(
    rules: tuple[AccessRule, ...], options: Mapping[str, Any]
) -> tuple[AccessRule, ...]:
    """Return the permissions of a session's creator: ``rules``, and more for its manager."""
    if options["manager"] != "there":
        return rules
    return merged(rules, _PLACED_RULES, _ACCOUNT_RULES if _has_account(options) else ())


def detached_rules(
    rules: tuple[AccessRule, ...], options: Mapping[str, Any]
) -> tuple[AccessRule, ...]:
    """Return the permissions of a detached cluster's creator. See :func:`session_rules`."""
    accounts = options["manager"] != "here" and _has_account(options)
    return merged(rules, _DETACHED_RULES, _ACCOUNT_RULES if accounts else ())


def role(namespace: str, rules: tuple[AccessRule, ...] = RULES) -> str:
    """Return the Role, as YAML, that grants permissions in a namespace."""
    lines = [
        "apiVersion: rbac.authorization.k8s.io/v1",
        "kind: Role",
        "metadata:",
        "  name: scalable",
        f"  namespace: {namespace}",
        "rules:",
    ]
    for rule in rules:
        lines += [
            f'  - apiGroups: ["{rule.group}"]',
            f'    resources: ["{rule.resource}"]',
            "    verbs: [" + ", ".join(f'"{verb}"' for verb in rule.verbs) + "]",
        ]
    return "\n".join(lines) + "\n"
