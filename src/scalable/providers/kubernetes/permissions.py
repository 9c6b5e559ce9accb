"""The permissions that a cluster's creator needs, and the Role that grants them. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rule:
    """Verbs on one resource.

    Attributes
    ----------
    group
        API group; empty for the core group.
    resource
        Resource, with its subresource if there is one, such as ``pods/log``.
    verbs
        Verbs that are needed.
    """

    group: str
    resource: str
    verbs: tuple[str, ...]


RULES = (
    Rule("batch", "jobs", ("create", "delete", "get", "patch")),
    Rule("", "secrets", ("create",)),
    Rule("", "services", ("create",)),
    Rule("", "pods", ("create", "delete", "get", "list", "watch")),
    Rule("", "pods/log", ("get",)),
    # A WebSocket begins with GET; newer versions check both verbs.
    Rule("", "pods/portforward", ("create", "get")),
)
#: For clusters through the Dask operator, which makes the pods and the Service.
OPERATOR_RULES = (
    Rule("batch", "jobs", ("create", "delete", "get", "patch")),
    Rule("", "secrets", ("create",)),
    Rule("kubernetes.dask.org", "daskclusters", ("create", "get")),
    Rule("kubernetes.dask.org", "daskworkergroups", ("create", "delete", "get", "list")),
    Rule("", "pods", ("get", "list", "watch")),
    *RULES[-2:],
)


#: Kinds of objects that give a manager in a pod its rights.
ACCOUNT_KINDS = ("serviceaccounts", "roles", "rolebindings")
#: Permissions that a user needs beside those of a session's creator, for a detached cluster.
_DETACHED_RULES = (
    Rule("batch", "jobs", ("list",)),
    Rule("", "secrets", ("get", "list")),
    Rule("", "services", ("create",)),
)
#: Permissions that a user needs beside those, for a manager in a pod.
_PLACED_RULES = (Rule("batch", "jobs", ("list",)), Rule("", "services", ("create",)))
_ACCOUNT_RULES = (
    Rule("", "serviceaccounts", ("create",)),
    Rule("rbac.authorization.k8s.io", "roles", ("create",)),
    Rule("rbac.authorization.k8s.io", "rolebindings", ("create",)),
)
#: Permissions of a manager that runs in a pod, beside those on its units.
_MANAGER_RULES = (
    Rule("", "pods/log", ("get",)),
    # It lets its cluster live as long as asked, and removes it when it has ended by itself.
    Rule("batch", "jobs", ("delete", "list", "patch")),
)
MANAGER_RULES = (Rule("", "pods", ("create", "delete", "get", "list", "watch")), *_MANAGER_RULES)
#: Permissions of a manager whose units are worker groups of the Dask operator.
OPERATOR_MANAGER_RULES = (
    Rule("kubernetes.dask.org", "daskworkergroups", ("create", "delete", "get", "list")),
    Rule("", "pods", ("get", "list", "watch")),
    *_MANAGER_RULES,
)


def merged(*parts: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Return all permissions, with one rule for each resource."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for rule in (rule for part in parts for rule in part):
        known = found.get((rule.group, rule.resource), ())
        found[rule.group, rule.resource] = tuple(sorted({*known, *rule.verbs}))
    return tuple(Rule(group, resource, verbs) for (group, resource), verbs in found.items())


#: Permissions of a user of detached clusters whose units are pods.
DETACHED_RULES = merged(RULES, _DETACHED_RULES, _ACCOUNT_RULES)


def _has_account(options: Mapping[str, Any]) -> bool:
    """Return whether an account is made for a manager that runs in a pod."""
    return options["manager_service_account"] is None


def session_rules(rules: tuple[Rule, ...], options: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Return the permissions that the creator of a session's cluster needs.

    Parameters
    ----------
    rules
        Permissions for the scheduler and the units.
    options
        Options of the target.
    """
    if options["manager"] != "there":
        return rules
    return merged(rules, _PLACED_RULES, _ACCOUNT_RULES if _has_account(options) else ())


def detached_rules(rules: tuple[Rule, ...], options: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Return the permissions that the creator of a detached cluster needs.

    Parameters
    ----------
    rules, options
        As for :func:`session_rules`.
    """
    accounts = options["manager"] != "here" and _has_account(options)
    return merged(rules, _DETACHED_RULES, _ACCOUNT_RULES if accounts else ())


def role(namespace: str, rules: tuple[Rule, ...] = RULES) -> str:
    """Return the Role, as YAML, that grants permissions in a namespace.

    Parameters
    ----------
    namespace
        The namespace.
    rules
        The permissions; by default those for clusters whose units are pods.
    """
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
