"""Rights of roles, from the policies that they have in moto, and of users, as a test sets them."""

import fnmatch
import json
from urllib.parse import unquote

from moto.iam.models import iam_backends
from moto.secretsmanager.models import secretsmanager_backends

from .errors import AwsError
from .identities import ACCOUNT

DENIED = {"ec2": "UnauthorizedOperation", "iam": "AccessDenied", "sts": "AccessDenied"}


def listed(value):
    return value if isinstance(value, list) else [value]


def matches(patterns, text):
    return any(fnmatch.fnmatchcase(text.lower(), one.lower()) for one in listed(patterns))


def decision(statement, action, resource):
    """Return the effect of a statement on an action, "" without one. Conditions are not read."""
    if "Action" in statement and not matches(statement["Action"], action):
        return ""
    if "NotAction" in statement and matches(statement["NotAction"], action):
        return ""
    if resource and "Resource" in statement and not matches(statement["Resource"], resource):
        return ""
    if resource and "NotResource" in statement and matches(statement["NotResource"], resource):
        return ""
    return statement["Effect"]


class Permissions:
    """Tells who may do what."""

    def __init__(self):
        #: (user, pattern of `service:Operation`) that are denied.
        self.denied = set()

    @staticmethod
    def role(arn):
        """Return a role of moto by its ARN, None without one."""
        for role in iam_backends[ACCOUNT]["aws"].roles.values():
            if role.arn == arn or role.name == arn:
                return role
        return None

    def role_may(self, arn, action, resource):
        """Whether the policies of a role allow an action; resource "" is any resource."""
        role = self.role(arn)
        if role is None:
            return False
        texts = list(role.policies.values())
        for policy in role.managed_policies.values():
            texts += [v.document for v in policy.versions if v.is_default]
        effects = set()
        for text in texts:
            document = json.loads(text if text.lstrip().startswith("{") else unquote(text))
            effects |= {decision(s, action, resource) for s in listed(document["Statement"])}
        return "Allow" in effects and "Deny" not in effects

    def trusts(self, arn, service):
        """Whether a role lets a service take it on."""
        document = json.loads(self.role(arn).assume_role_policy_document)
        return any(
            s["Effect"] == "Allow" and service in listed(s["Principal"].get("Service", ()))
            for s in listed(document["Statement"])
        )

    def check(self, request, action=None, resource=""):
        """Raise the service's error if the caller of a request may not do it."""
        caller = request.caller
        action = action or request.name
        if caller.role:
            allowed = self.role_may(caller.role, action, resource or resource_of(request))
        else:
            allowed = not any(
                caller.user == user and fnmatch.fnmatch(action, pattern)
                for user, pattern in self.denied
            )
        if allowed or action == "sts:GetCallerIdentity":
            return
        code = DENIED.get(request.service, "AccessDeniedException")
        where = f" on resource: {resource}" if resource else ""
        text = f"User: {caller.arn} is not authorized to perform: {action}{where} because no identity-based policy allows the {action} action"
        raise AwsError(code, text, 400 if request.protocol == "json" else 403)


def resource_of(request):
    """Return the ARN of what a machine asks for, "" where the rule does not look at it."""
    p = request.parameters
    if request.service == "secretsmanager" and "SecretId" in p:
        name = p["SecretId"]
        if name.startswith("arn:"):
            return name
        for secret in dict.values(secretsmanager_backends[ACCOUNT][request.region].secrets):
            if secret.name == name:
                return secret.arn
        return f"arn:aws:secretsmanager:{request.region}:{ACCOUNT}:secret:{name}-??????"
    if request.service == "ssm" and "Name" in p:
        name = p["Name"]
        if name.startswith("arn:"):
            return name
        return f"arn:aws:ssm:{request.region}:{ACCOUNT}:parameter/{name.lstrip('/')}"
    return ""
