"""Google Cloud as a cloud of machines: Compute Engine instances, secrets, firewall rules."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from scalable.errors import ProviderError
from scalable.model import ComponentSpec, DeploymentSpec, Diagnostic, ValidationReport
from scalable.model.prices import Shape
from scalable.providers.gcp.api import (
    ENDPOINT,
    FORBIDDEN,
    NOT_FOUND,
    GoogleApi,
    GoogleError,
    Operations,
    service_url,
)
from scalable.providers.gcp.config import Config, candidates, offers_in, shape_named, units_on
from scalable.providers.gcp.fleet import Fleet, Launching
from scalable.providers.gcp.instances import split_shape
from scalable.providers.gcp.network import GoogleNetwork
from scalable.providers.gcp.secrets import GoogleSecrets
from scalable.providers.remote.cloud import (
    CLUSTER,
    NAME,
    Machine,
    MachineRequest,
    MachineState,
    Refusal,
    StoredFiles,
)

logger = logging.getLogger("scalable.providers.gcp")

#: Age in seconds at which the resources of a cluster without files count as left behind.
LEFT_AFTER_S = 3600.0


class GoogleCloud:
    """One Google Cloud project and region for one user (a :class:`.Cloud`), in one event loop."""

    def __init__(self, config: Config, *, owner: str = "", api: GoogleApi | None = None) -> None:
        self.config = config
        #: E-mail of the user, given to a machine. Empty until it is requested.
        self._owner = owner
        self.api = api or GoogleApi(config.project or None)
        self._operations = Operations(self.api)
        self._launching = Launching(self.api, self._operations, config)
        self._fleet = Fleet(self.api, config)
        self._secrets = GoogleSecrets(self.api, config)
        self.network = GoogleNetwork(self.api, self._operations, config)

    @property
    def spot_share(self) -> float:
        return self.config.spot_share

    def units_on(self, component: ComponentSpec) -> int:
        return units_on(self.config, component)

    async def owner(self) -> str:
        """Return the e-mail address of the account with these credentials."""
        if not self._owner:
            self._owner = await email_of(self.api)
        return self._owner

    async def prepare(self, cluster_id: str, marks: Mapping[str, str]) -> None:
        await self.network.prepare(cluster_id, {**marks, CLUSTER: cluster_id})

    async def run(self, requests: Sequence[MachineRequest]) -> dict[str, Machine | Refusal]:
        if not requests:
            return {}
        clusters = {request.marks.get(CLUSTER, "") for request in requests}
        listed = await asyncio.gather(*(self._fleet.survey({CLUSTER: each}) for each in clusters))
        known = [machine for found, missing in listed for machine in (*found, *missing)]
        for _, missing in listed:
            await self._explain(missing)
        return await self._launching.run(requests, known)

    async def machines(self, marks: Mapping[str, str]) -> list[Machine]:
        """Return all machines with these labels, and those stopped in the last ten minutes."""
        found, missing = await self._fleet.survey(marks)
        await self._explain(missing)
        for machine in await self._launching.failures(m.marks.get(NAME, "") for m in found):
            self._fleet.remember(machine)
        return [*found, *self._fleet.remembered(marks)]

    async def _explain(self, missing: Sequence[Machine]) -> None:
        for machine in missing:
            self._fleet.remember(await self._fleet.explain(machine))

    async def stop(self, machines: Sequence[Machine]) -> None:
        await self._fleet.stop(machines)

    async def stop_units(self, machine: Machine, units: Sequence[str]) -> None:
        await self._fleet.stop_units(machine, units)

    async def put_files(
        self, name: str, marks: Mapping[str, str], files: Mapping[str, str]
    ) -> None:
        """Store private files as secrets that the machines' account can read."""
        await self._secrets.put(name, marks, files)

    async def files(self, marks: Mapping[str, str]) -> list[StoredFiles]:
        return await self._secrets.files(marks)

    async def delete_files(self, marks: Mapping[str, str]) -> list[str]:
        return await self._secrets.delete(marks)

    async def clean(self, marks: Mapping[str, str]) -> list[str]:
        """Delete a cluster's firewall rules, and its machines that are powered off."""
        ended = [m for m in await self.machines(marks) if m.state is MachineState.ENDED]
        await self._fleet.stop(ended)
        return await self.network.clean(marks)

    async def leftovers(self, marks: Mapping[str, str]) -> dict[str, str]:
        """Describe incomplete secrets, and all regions' rules, that clusters without files left."""
        begun = await self._secrets.without_version(marks, LEFT_AFTER_S)
        found = dict.fromkeys(begun, "the secret of a cluster whose creator was killed")
        try:
            ruled = await self.network.clusters(marks, LEFT_AFTER_S)
        except GoogleError as error:
            if error.status != FORBIDDEN:
                raise
            ruled = set()
        ended = ruled - await self._secrets.clusters(marks) if ruled else set()
        return found | dict.fromkeys(ended, "firewall rules of a stopped cluster")

    async def output(self, machine: Machine, since: str) -> tuple[str, str]:
        return await self._fleet.output(machine, since)

    async def close(self) -> None:
        await self._operations.close()
        await self.api.close()


# Identity -----------------------------------------------------------------------------------------

TOKEN_INFO = "https://oauth2.googleapis.com/tokeninfo"  # noqa: S105 - an address


async def email_of(api: GoogleApi) -> str:
    """Return the e-mail of the account."""
    credentials = await api.credentials()
    email = str(getattr(credentials, "service_account_email", "") or "")
    if "@" in email:
        return email
    root = os.environ.get(ENDPOINT)
    url = f"{root.rstrip('/')}/tokeninfo" if root else TOKEN_INFO
    try:
        # The token is in the body, because proxies log addresses.
        found = await api.request("POST", url, body=_form(access_token=credentials.token))
    except GoogleError as error:
        raise ProviderError(f"could not get the account of these credentials: {error}") from error
    email = str(found.get("email") or "")
    if not email:
        raise ProviderError(
            "the credentials contain no e-mail address of their account",
            hint="log in with `gcloud auth application-default login`, or use a service account",
        )
    return email


def _form(**fields: str) -> bytes:
    return urlencode(fields).encode()


# Check of a target --------------------------------------------------------------------------------


#: Permissions for starting and stopping clusters.
PERMISSIONS = (
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.list",
    "compute.instances.setMetadata",
    "compute.firewalls.list",
    "secretmanager.secrets.create",
    "secretmanager.secrets.delete",
    "secretmanager.secrets.setIamPolicy",
    "secretmanager.versions.access",
    "secretmanager.versions.add",
)
#: Id of a cluster that does not exist, for checks of its rules.
SHOWN_ID = "the cluster"


def check(spec: DeploymentSpec, cloud: GoogleCloud) -> ValidationReport:
    """Report a project's missing resources, and what would be created. Closes ``cloud``."""
    report = ValidationReport()
    report.extend(asyncio.run(_check(spec, cloud)))
    return report


async def _check(spec: DeploymentSpec, cloud: GoogleCloud) -> list[Diagnostic]:
    look = _ProjectCheck(spec, cloud)
    try:
        await cloud.owner()
        region = await look.region()
        if region is None:
            return look.found
        await asyncio.gather(look.types(), look.permissions(), look.network())
        look.quotas(region)
        return look.found
    finally:
        await cloud.close()


class _ProjectCheck:
    """Checks of one request against one project."""

    def __init__(self, spec: DeploymentSpec, cloud: GoogleCloud) -> None:
        self._spec, self._cloud = spec, cloud
        self._target = ("targets", spec.target_name)
        self.found: list[Diagnostic] = []

    def _bad(self, key: str, message: str, hint: str | None = None, *, warns: bool = False) -> None:
        severity: Any = "warning" if warns else "error"
        path = (*self._target, key)
        self.found.append(Diagnostic("E_BAD_OPTION", path, message, hint, severity))

    async def region(self) -> Mapping[str, Any] | None:
        """Return the region, or report an error and return None if it does not exist."""
        config = self._cloud.config
        try:
            region = await self._cloud.api.compute("GET", f"regions/{config.region}")
        except GoogleError as error:
            if error.status != NOT_FOUND:
                raise
            self._bad("region", f"Google Cloud has no region {config.region!r}")
            return None
        zones = [url.rpartition("/")[2] for url in region.get("zones") or ()]
        if config.zone and config.zone not in zones:
            self._bad("zone", f"region {config.region!r} has no zone {config.zone!r}")
        return region

    async def types(self) -> None:
        wanted: dict[str, str] = {}
        for component in self._spec.components.values():
            for shape in self._shapes(component)[:1]:
                wanted.setdefault(split_shape(shape)[0], component.name)
        offered = await asyncio.gather(*(self._zones_with(name) for name in wanted))
        for (name, tag), zones in zip(wanted.items(), offered, strict=True):
            if not zones:
                place = self._cloud.config.zone or self._cloud.config.region
                self._bad(
                    "instance_type",
                    f"{place} does not offer {name}, which workers of {tag!r} would get",
                    hint="choose another instance_type, zone or region",
                )

    def _shapes(self, component: ComponentSpec) -> list[str]:
        config = self._cloud.config
        units = units_on(config, component)
        size = (component.cpus * units, (component.memory_bytes or 0) * units)
        return candidates(config, *size, component.gpus * units, spot=config.spot_share)

    async def _zones_with(self, name: str) -> list[str]:
        api, config = self._cloud.api, self._cloud.config
        url = await api.compute_url("aggregated/machineTypes")
        zones = []
        async for page in api.pages(url, {"filter": f'name="{name}"'}):
            for scope, there in (page.get("items") or {}).items():
                zone = scope.rpartition("/")[2]
                if there.get("machineTypes") and zone.rpartition("-")[0] == config.region:
                    zones.append(zone)
        return [zone for zone in zones if config.zone in ("", zone)]

    async def permissions(self) -> None:
        api = self._cloud.api
        path = f"v1/projects/{await api.project()}:testIamPermissions"
        url = service_url("cloudresourcemanager", path)
        try:
            answer = await api.request("POST", url, body={"permissions": list(PERMISSIONS)})
        except GoogleError as error:
            self._bad("project_id", f"could not read permissions: {error.message}", warns=True)
            return
        missing = [p for p in PERMISSIONS if p not in (answer.get("permissions") or ())]
        if missing:
            self._bad(
                "project_id",
                f"this user lacks {', '.join(missing)} in project {await api.project()!r}",
                hint="grant roles/compute.instanceAdmin.v1, roles/compute.securityAdmin and "
                "roles/secretmanager.admin",
            )

    async def network(self) -> None:
        """Report the firewall rules that a cluster would create."""
        name = self._cloud.config.network
        for need in await self._cloud.network.missing(SHOWN_ID):
            rule = need.described(name).replace(need.name, "for the cluster")
            self._bad(
                "network",
                f"a {rule} is made with each cluster, and removed with it",
                hint="to use a rule of your own, set network_tags to its target tag",
                warns=True,
            )

    def quotas(self, region: Mapping[str, Any]) -> None:
        """Check that one machine of each component fits the region's remaining quotas."""
        config = self._cloud.config
        quotas: Sequence[Mapping[str, Any]] = region.get("quotas") or ()
        for component in self._spec.components.values():
            for name in self._shapes(component)[:1]:
                shape = shape_named(name, offers_in(config))
                if shape is None:
                    continue
                for metric, amount in metrics_of(shape, public=config.external_ip).items():
                    left = left_of(quotas, metric)
                    if left is not None and left < amount:
                        self._bad(
                            "region",
                            f"the quota {metric} leaves {left:g}, and a machine for workers of "
                            f"{component.name!r} ({name}) takes {amount:g}",
                            hint="request more quota, or choose another instance_type or region",
                        )


# Quotas -------------------------------------------------------------------------------------------

#: Series with a quota of their own for cores; cores of others count for ``CPUS``.
_OWN = ("n2", "n2d", "c2", "c2d", "c3", "t2d", "a2", "m1", "m2")
_GPUS = {
    "t4": "NVIDIA_T4_GPUS",
    "l4": "NVIDIA_L4_GPUS",
    "a100": "NVIDIA_A100_GPUS",
    "v100": "NVIDIA_V100_GPUS",
}


def metrics_of(shape: Shape, *, public: bool) -> dict[str, float]:
    """Return the quotas and amounts for a machine, including a public address if ``public``."""
    series = shape.name.partition("-")[0]
    found = {f"{series.upper()}_CPUS" if series in _OWN else "CPUS": shape.cpus, "INSTANCES": 1.0}
    if shape.gpus and shape.gpu_type in _GPUS:
        found[_GPUS[shape.gpu_type]] = float(shape.gpus)
    if public:
        found["IN_USE_ADDRESSES"] = 1.0
    return found


def left_of(quotas: Iterable[Mapping[str, Any]], metric: str) -> float | None:
    """Return the unused amount of a quota, or None if the region does not have it."""
    for quota in quotas:
        if quota.get("metric") == metric:
            return float(quota.get("limit", 0)) - float(quota.get("usage", 0))
    return None
