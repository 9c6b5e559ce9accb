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
