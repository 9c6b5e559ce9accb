"""Values of `secrets` of a container definition, from moto's Secrets Manager and SSM."""

import json
import re

from moto.core.exceptions import ServiceException
from moto.secretsmanager.models import secretsmanager_backends
from moto.ssm.models import ssm_backends

from .identities import ACCOUNT

SECRET = re.compile(
    r"(arn:aws:secretsmanager:([a-z0-9-]+):\d+:secret:[^:]+)(?::([^:]*))?(?::([^:]*))?(?::([^:]*))?"
)
PARAMETER = re.compile(r"arn:aws:ssm:([a-z0-9-]+):\d+:parameter(/.+)")


class SecretError(Exception):
    """A secret cannot be read."""


def secret_value(value_from, region, may):
    """Return the text that `valueFrom` names; `may(action, arn)` tells whether its reader may."""
    found = SECRET.fullmatch(value_from)
    if found:
        return from_secrets_manager(*found.groups(), may)
    found = PARAMETER.fullmatch(value_from)
    where, name = (found[1], found[2]) if found else (region, value_from)
    arn = f"arn:aws:ssm:{where}:{ACCOUNT}:parameter/{name.lstrip('/')}"
    if not may("ssm:GetParameters", arn):
        raise SecretError(denied("ssm:GetParameters", arn))
    for spelled in (name, name.lstrip("/")):
        parameter = ssm_backends[ACCOUNT][where].get_parameter(spelled)
        if parameter is not None:
            return parameter.decrypt(parameter.value)
    raise SecretError(
        f"unable to pull secrets or registry auth: unable to retrieve secrets from ssm: invalid parameters: {name}"
    )


def from_secrets_manager(arn, region, key, stage, version, may):
    prefix = "unable to pull secrets or registry auth: execution resource retrieval failed: unable to retrieve secret from asm:"
    if not may("secretsmanager:GetSecretValue", arn):
        raise SecretError(f"{prefix} {denied('secretsmanager:GetSecretValue', arn)}")
    backend = secretsmanager_backends[ACCOUNT][region]
    try:
        answer = backend.get_secret_value(arn, version or None, stage or None)
    except (ServiceException, KeyError) as error:
        text = f"{prefix} failed to fetch secret {arn} from secrets manager: ResourceNotFoundException: Secrets Manager can't find the specified secret."
        raise SecretError(text) from error
    if "SecretString" not in answer:
        raise SecretError(f"{prefix} secret {arn} has no SecretString")
    if not key:
        return answer["SecretString"]
    try:
        value = json.loads(answer["SecretString"])[key]
    except (ValueError, KeyError, TypeError) as error:
        text = f"{prefix} retrieved secret from Secrets Manager did not contain json key {key}"
        raise SecretError(text) from error
    return value if isinstance(value, str) else json.dumps(value)


def denied(action, arn):
    return f"AccessDeniedException: no identity-based policy of the execution role allows the {action} action on resource: {arn}"
