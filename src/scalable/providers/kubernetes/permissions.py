"""The permissions that a cluster's creator needs, and the Role that grants them. No I/O."""

from __future__ import annotations

from dataclasses import dataclass


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
    Rule("kubernetes.dask.org", "daskworkergroups", ("create", "delete", "get")),
    Rule("", "pods", ("get", "list", "watch")),
    *RULES[-2:],
)


#: Kinds of objects that give a manager in a pod its rights.
ACCOUNT_KINDS = ("serviceaccounts", "roles", "rolebindings")
#: Permissions that a user needs for detached clusters whose manager gets no account of its own.
_DETACHED_RULES = (
    Rule("batch", "jobs", ("create", "delete", "get", "list", "patch")),
    Rule("", "secrets", ("create", "get", "list")),
    *RULES[2:],
)
_ACCOUNT_RULES = (
    Rule("", "serviceaccounts", ("create",)),
    Rule("rbac.authorization.k8s.io", "roles", ("create",)),
    Rule("rbac.authorization.k8s.io", "rolebindings", ("create",)),
)
#: Permissions of a manager that runs in a pod.
MANAGER_RULES = (
    Rule("", "pods", ("create", "delete", "get", "list", "watch")),
    Rule("", "pods/log", ("get",)),
    # It lets its cluster live as long as asked, and removes it when it has ended by itself.
    Rule("batch", "jobs", ("delete", "list", "patch")),
)


def detached_rules(*, accounts: bool = True) -> tuple[Rule, ...]:
    """Return the permissions that a user needs for detached clusters.

    Parameters
    ----------
    accounts
        Whether an account is made for the manager of each cluster.
    """
    return (*_DETACHED_RULES, *_ACCOUNT_RULES) if accounts else _DETACHED_RULES


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
