"""Google Cloud as a cloud of machines: Compute Engine instances, secrets, firewall rules."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from scalable.errors import ProviderError
from scalable.model import ComponentSpec
from scalable.providers.gcp.api import ENDPOINT, Api, Operations
from scalable.providers.gcp.config import Config
from scalable.providers.gcp.errors import FORBIDDEN, GoogleError
from scalable.providers.gcp.fleet import Fleet, Launching
from scalable.providers.gcp.network import Network
from scalable.providers.gcp.secrets import Secrets
from scalable.providers.gcp.shapes import units_on
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

    def __init__(self, config: Config, *, owner: str = "", api: Api | None = None) -> None:
        self.config = config
        #: E-mail of the user, given to a machine. Empty until it is requested.
        self._owner = owner
        self.api = api or Api(config.project or None)
        self._operations = Operations(self.api)
        self._launching = Launching(self.api, self._operations, config)
        self._fleet = Fleet(self.api, config)
        self._secrets = Secrets(self.api, config)
        self.network = Network(self.api, self._operations, config)

    @property
    def spot_share(self) -> float:
        return self.config.spot_share

    def units_on(self, component: ComponentSpec) -> int:
        return units_on(self.config, component)

    async def owner(self) -> str:
        """Return the e-mail of the account with these credentials."""
        if not self._owner:
            self._owner = await email_of(self.api)
        return self._owner

    async def prepare(self, cluster_id: str, marks: Mapping[str, str]) -> None:
        """Create the firewall rules that the network lacks."""
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
        """Return all machines with these marks, even if they ended in the last ten minutes."""
        found, missing = await self._fleet.survey(marks)
        await self._explain(missing)
        for machine in await self._launching.failures(m.marks.get(NAME, "") for m in found):
            self._fleet.remember(machine)
        return [*found, *self._fleet.remembered(marks)]

    async def _explain(self, missing: Sequence[Machine]) -> None:
        for machine in missing:
            self._fleet.remember(await self._fleet.explain(machine))

    async def stop(self, machines: Sequence[Machine]) -> None:
        """Delete machines, without waiting until they are gone."""
        await self._fleet.stop(machines)

    async def stop_units(self, machine: Machine, units: Sequence[str]) -> None:
        await self._fleet.stop_units(machine, units)

    async def put_files(
        self, name: str, marks: Mapping[str, str], files: Mapping[str, str]
    ) -> None:
        """Store private files as secrets, which the machines' account can read."""
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
        """Describe incomplete secrets, and rules in all regions, of clusters without files."""
        begun = await self._secrets.without_version(marks, LEFT_AFTER_S)
        found = dict.fromkeys(begun, "the secret of a cluster whose creator was killed")
        try:
            ruled = await self.network.clusters(marks, LEFT_AFTER_S)
        except GoogleError as error:
            if error.status != FORBIDDEN:
                raise
            ruled = set()
        ended = ruled - await self._secrets.clusters(marks) if ruled else set()
        return found | dict.fromkeys(ended, "firewall rules of a cluster that has ended")

    async def output(self, machine: Machine, since: str) -> tuple[str, str]:
        return await self._fleet.output(machine, since)

    async def close(self) -> None:
        await self._operations.close()
        await self.api.close()


# Identity -----------------------------------------------------------------------------------------

TOKEN_INFO = "https://oauth2.googleapis.com/tokeninfo"  # noqa: S105 - an address


async def email_of(api: Api) -> str:
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
        raise ProviderError(f"Google does not tell whose credentials these are: {error}") from error
    email = str(found.get("email") or "")
    if not email:
        raise ProviderError(
            "the credentials do not tell the e-mail of their account",
            hint="log in with `gcloud auth application-default login`, or use a service account",
        )
    return email


def _form(**fields: str) -> bytes:
    return urlencode(fields).encode()
