"""Users by their tokens, and RBAC: who may do what."""

import secrets
from dataclasses import dataclass

from .errors import ApiError
from .kinds import RBAC

#: Users whom a kubeconfig knows; the objects in `roles.py` say what they may do.
MASTERS = "system:masters"


@dataclass(frozen=True)
class User:
    """Somebody who sends requests."""

    name: str
    groups: tuple = ()


class Access:
    """Tokens, and what the roles in the store allow their owners."""

    def __init__(self, store, kinds):
        self.store = store
        self.kinds = kinds
        self.tokens = {}
        self.accounts = {}

    def token(self, user):
        """Return a new token of a user."""
        token = secrets.token_urlsafe(24)
        self.tokens[token] = user
        return token

    def account_token(self, namespace, name):
        """Return the token of a service account."""
        if (namespace, name) not in self.accounts:
            groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
            user = User(f"system:serviceaccount:{namespace}:{name}", groups)
            self.accounts[namespace, name] = self.token(user)
        return self.accounts[namespace, name]

    def user(self, header):
        """Return the user of an Authorization header; None if nobody has that token."""
        scheme, _, token = header.partition(" ")
        return self.tokens.get(token.strip()) if scheme.lower() == "bearer" else None

    # Rules ----------------------------------------------------------------------------------------

    def rules(self, user, namespace):
        """Return the rules that hold for a user in a namespace; "" is the whole cluster."""
        found = []
        for binding in self.store.all("clusterrolebindings", RBAC):
            if bound(binding, user):
                found += self.role_rules(binding, "")
        for binding in self.store.all("rolebindings", RBAC, namespace) if namespace else ():
            if bound(binding, user):
                found += self.role_rules(binding, namespace)
        return found

    def role_rules(self, binding, namespace):
        plural = {"Role": "roles", "ClusterRole": "clusterroles"}[binding["roleRef"]["kind"]]
        space = namespace if plural == "roles" else ""
        role = self.store.find(plural, space, binding["roleRef"]["name"], RBAC)
        return (role or {}).get("rules") or []

    def allowed(self, user, asked):
        """Whether a user may do what `asked` (the resourceAttributes of a review) describes."""
        if MASTERS in user.groups:
            return True
        resource = asked.get("resource", "")
        if asked.get("subresource"):
            resource = f"{resource}/{asked['subresource']}"
        return any(
            covers(rule.get("verbs"), asked.get("verb", ""))
            and covers(rule.get("apiGroups"), asked.get("group", ""))
            and covers(rule.get("resources"), resource)
            and (not rule.get("resourceNames") or asked.get("name") in rule["resourceNames"])
            for rule in self.rules(user, asked.get("namespace", ""))
        )

    def require(self, user, verb, target):
        """Raise a 403 unless a user may do this."""
        kind = target.kind
        if kind.virtual:
            return
        namespace = target.namespace
        if kind.plural == "namespaces" and not kind.group:
            namespace = target.name
        asked = {
            "verb": "create" if target.part == "eviction" else verb,
            "group": kind.group,
            "resource": kind.plural,
            "subresource": target.part,
            "namespace": namespace,
            "name": target.name,
        }
        if self.allowed(user, asked):
            return
        where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
        resource = f"{kind.plural}/{target.part}" if target.part else kind.plural
        title = f'{kind.qualified} "{target.name}"' if target.name else kind.qualified
        text = f'{title} is forbidden: User "{user.name}" cannot {asked["verb"]} resource "{resource}" in API group "{kind.group}" {where}'
        details = {"name": target.name, "group": kind.group, "kind": kind.plural}
        raise ApiError(403, text, details=details)

    # Reviews --------------------------------------------------------------------------------------

    def review(self, user, kind, body):
        """Answer a SelfSubjectReview, a SelfSubjectAccessReview or a SelfSubjectRulesReview."""
        if kind.kind == "SelfSubjectReview":
            info = {"username": user.name, "groups": list(user.groups)}
            known = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": {}}
            return known | {"status": {"userInfo": info}}
        spec = body.get("spec") or {}
        if kind.kind == "SelfSubjectRulesReview":
            rules = self.rules(user, spec.get("namespace", ""))
            if MASTERS in user.groups:
                rules = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
            status = {"resourceRules": rules, "nonResourceRules": [], "incomplete": False}
        else:
            asked = spec.get("resourceAttributes")
            allowed = self.allowed(user, asked) if asked else MASTERS in user.groups
            status = {"allowed": allowed}
            if not allowed:
                status["reason"] = "no role grants it"
        return {
            "kind": kind.kind,
            "apiVersion": kind.api_version,
            "metadata": {},
            "spec": spec,
            "status": status,
        }


def covers(values, value):
    values = values or ()
    return "*" in values or value in values


def bound(binding, user):
    for subject in binding.get("subjects") or ():
        if subject["kind"] == "ServiceAccount":
            name = f"system:serviceaccount:{subject.get('namespace')}:{subject['name']}"
            if name == user.name:
                return True
        elif subject["name"] in (user.groups if subject["kind"] == "Group" else (user.name,)):
            return True
    return False
