"""Start of instances: requests, their results, and the next zone without capacity."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalable.errors import ProviderError
from scalable.providers.gcp.api import Api
from scalable.providers.gcp.config import Config
from scalable.providers.gcp.errors import CONFLICT, NOT_FOUND, GoogleError
from scalable.providers.gcp.instances import (
    Attempt,
    instance_body,
    instance_name,
    machine_of,
    marks_of,
)
from scalable.providers.gcp.names import last
from scalable.providers.gcp.operations import Operations
from scalable.providers.gcp.refusals import (
    Failure,
    Kind,
    Tried,
    attempts,
    failure_from,
    failure_in,
)
from scalable.providers.gcp.shapes import candidates
from scalable.providers.quotes import share_counted
from scalable.remote.cloud import NAME, Machine, MachineRequest, MachineState, Refusal

logger = logging.getLogger("scalable.providers.gcp")

#: Seconds for which an instance's operation is watched: most failures appear within a few.
TAKEN_AFTER_S = 20.0
#: Seconds within which all attempts for one machine have to finish.
ATTEMPTS_S = 45.0
#: Seconds for which an attempt without capacity is not repeated.
EXHAUSTED_S = 60.0
#: Number of machines that are requested at the same time.
AT_ONCE = 12


class Launching:
    """Starts instances."""

    def __init__(self, api: Api, operations: Operations, config: Config) -> None:
        self._api = api
        self._operations = operations
        self._config = config
        self._zones: list[str] = []
        self._slots = asyncio.Semaphore(AT_ONCE)
        # Times and failures of the last minute's attempts.
        self._full: dict[Attempt, tuple[float, Failure]] = {}
        # Machines and their unfinished operations, by name.
        self._unsure: dict[str, tuple[Machine, str]] = {}

    async def run(
        self, requests: Sequence[MachineRequest], known: Iterable[Machine]
    ) -> dict[str, Machine | Refusal]:
        """Start machines. One in ``known`` belongs to an earlier request whose answer was lost."""
        there = {machine.marks.get(NAME, ""): machine for machine in known}
        found: dict[str, Machine | Refusal] = {
            each.name: there[each.name] for each in requests if each.name in there
        }
        new = [each for each in requests if each.name not in found]
        if new:
            self._zones = self._zones or await self._zones_of_region()
        answers = await asyncio.gather(*(self._start(each) for each in new), return_exceptions=True)
        for request, answer in zip(new, answers, strict=True):
            if isinstance(answer, BaseException):
                # The others have been requested, and can be listed by their marks.
                raise answer
            found[request.name] = answer
        return found

    async def _zones_of_region(self) -> list[str]:
        if self._config.zone:
            return [self._config.zone]
        try:
            region = await self._api.compute("GET", f"regions/{self._config.region}")
        except GoogleError as error:
            if error.status != NOT_FOUND:
                raise
            raise ProviderError(
                f"Google Cloud has no region {self._config.region!r}",
                hint="`gcloud compute regions list` shows them",
            ) from error
        return sorted(last(url) for url in region.get("zones") or ())

    async def _start(self, request: MachineRequest) -> Machine | Refusal:
        units = max(1, len(request.units))
        size = (request.cpus * units, request.memory_bytes * units, request.gpus * units)
        spot = share_counted(self._config.spot_share, request)
        shapes = candidates(self._config, *size, spot=spot)
        if not shapes:
            raise ProviderError(
                f"no machine type of {self._config.region} in the table holds {size[0]:g} cpus, "
                f"{size[1] / 2**30:.1f} GiB and {size[2]} gpus",
                hint="name one in the target's instance_type",
            )
        tried = Tried()
        deadline = time.monotonic() + ATTEMPTS_S
        for attempt in attempts(self._zones, shapes, request.spot):
            if tried.is_pointless(attempt):
                continue
            async with self._slots:
                failure = self._known_failure(attempt)
                if failure is None:
                    if time.monotonic() > deadline:
                        return Refusal(f"{tried.told()}; there was no time to try more")
                    answer = await self._insert(request, attempt)
                    if isinstance(answer, Machine):
                        return answer
                    failure = answer
            logger.debug("%s in %s: %s", request.name, attempt, failure.message)
            if failure.kind is Kind.FATAL:
                raise ProviderError(
                    f"Google Cloud refuses machine {request.name} in {attempt.zone}: "
                    f"{failure.message}"
                )
            if failure.kind in (Kind.EXHAUSTED, Kind.QUOTA, Kind.QUOTA_OF_REGION):
                self._full.setdefault(attempt, (time.monotonic(), failure))
            tried.note(attempt, failure)
        if tried.never():
            raise ProviderError(
                f"{self._config.region} has no machine for {request.name}: {tried.told()}",
                hint="choose another region, zone or instance_type",
            )
        return Refusal(tried.told())

    def _known_failure(self, attempt: Attempt) -> Failure | None:
        """Return the failure of the same attempt for another machine in the last minute."""
        since, failure = self._full.get(attempt, (0.0, None))
        if failure is not None and time.monotonic() - since > EXHAUSTED_S:
            del self._full[attempt]
            return None
        return failure

    async def _insert(self, request: MachineRequest, attempt: Attempt) -> Machine | Failure:
        body = instance_body(request, self._config, attempt)
        scope = f"zones/{attempt.zone}"
        # Retries of this request have its id, so that a lost answer creates no second instance.
        query = {"requestId": str(uuid.uuid4())}
        try:
            operation = await self._api.compute(
                "POST", f"{scope}/instances", query=query, body=body
            )
        except GoogleError as error:
            if error.status == CONFLICT:
                return await self._existing(request, attempt.zone)
            failure = failure_from(error)
            if failure.kind is Kind.FATAL:
                raise _explained(error, self._config) from error
            return failure
        operation = await self._operations.outcome(scope, operation, TAKEN_AFTER_S)
        failure_there = failure_in(operation)
        if failure_there is not None:
            return failure_there
        machine = _requested(request, attempt, operation)
        if operation.get("status") != "DONE":
            self._unsure[request.name] = (machine, operation["name"])
        return machine

    async def _existing(self, request: MachineRequest, zone: str) -> Machine:
        path = f"zones/{zone}/instances/{instance_name(request.name)}"
        instance = await self._api.compute("GET", path)
        if marks_of(instance).get(NAME) != request.name:
            raise ProviderError(
                f"an instance {instance_name(request.name)!r} in {zone} is no machine of this "
                "cluster",
                hint="delete it, or use another project",
            )
        return machine_of(instance)

    async def failures(self, seen: Iterable[str]) -> list[Machine]:
        """Return machines that were accepted but not created, once, except those in ``seen``."""
        for name in set(seen) & self._unsure.keys():
            del self._unsure[name]
        found = []
        for name, (machine, operation) in list(self._unsure.items()):
            path = f"zones/{machine.zone}/operations/{operation}"
            done = await self._api.compute("GET", path)
            failure = failure_in(done)
            if done.get("status") == "DONE":
                self._unsure.pop(name, None)
            if failure is not None:
                ended = dataclasses.replace(
                    machine, state=MachineState.ENDED, from_outside=True, reason=failure.message
                )
                found.append(ended)
        return found


def _requested(request: MachineRequest, attempt: Attempt, operation: Mapping[str, Any]) -> Machine:
    """Return the machine of an operation, as far as it is known before it is listed."""
    return Machine(
        id=str(operation.get("targetId") or instance_name(request.name)),
        marks={**request.marks, NAME: request.name},
        units=request.units,
        state=MachineState.PENDING,
        reason="Google Cloud starts the machine",
        shape=attempt.shape.partition("+")[0],
        zone=attempt.zone,
        spot=attempt.spot,
        made_at=time.time(),
    )


def _explained(error: GoogleError, config: Config) -> ProviderError:
    """Return the error, with a hint for a missing network or permission."""
    if error.status == NOT_FOUND and "network" in error.message:
        return ProviderError(
            f"Google Cloud refuses machines in network {config.network!r}: {error.message}",
            hint="name the network and subnetwork of the target",
        )
    if "actAs" in error.message or "serviceAccount" in error.message:
        return ProviderError(
            f"this user may not start machines with their service account: {error.message}",
            hint="grant roles/iam.serviceAccountUser on the account, or name another one in "
            "service_account",
        )
    return error
