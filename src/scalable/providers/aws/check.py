"""Check of a request against the live account."""

from __future__ import annotations

from scalable.errors import ProviderError
from scalable.providers.aws.cloud import AWSCloud
from scalable.providers.aws.settings import EC2, settings_at
from scalable.remote.asking import ask
from scalable.remote.cloud import Cloud
from scalable.spec import DeploymentSpec, Diagnostic, ValidationReport

TIMEOUT_S = 60.0
#: Id of a cluster that does not exist.
_NONE = "CLUSTER"


def check(spec: DeploymentSpec) -> ValidationReport:
    """Compare the request with the account, without creating anything."""
    clouds: list[AWSCloud] = []

    def connect() -> AWSCloud:
        clouds.append(AWSCloud(settings_at({}, spec)))
        return clouds[-1]

    async def found(_: Cloud) -> list[Diagnostic]:
        return await _findings(spec, clouds[-1])

    report = ValidationReport()
    report.extend(ask(connect, found, TIMEOUT_S))
    return report


async def _findings(spec: DeploymentSpec, cloud: AWSCloud) -> list[Diagnostic]:
    target = ("targets", spec.target_name)
    await cloud.owner()
    found = []
    try:
        created = await cloud.missing(_NONE)
    except ProviderError as error:
        if error.transient:
            raise
        return [Diagnostic("E_BAD_OPTION", target, error.message, hint=error.hint)]
    if created:
        text = "; ".join(created)
        message = f"`up` makes what does not exist, and `down` removes it: {text}"
        found.append(Diagnostic("W_NOT_APPLIED", target, message, hint=_WAYS, severity="warning"))
    if spec.options["cluster_type"] == EC2:
        absent = await cloud.absent_types()
        for name in absent:
            message = f"region {cloud.api.region} does not have {name}"
            path = (*target, "instance_type")
            found.append(Diagnostic("E_BAD_OPTION", path, message, hint=absent[name]))
    return found


_WAYS = "name your own in subnets, security_groups and the options whose names end with role_arn"
