"""Instances: list, deletion and output of existing ones, and start of others."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalable.errors import ProviderError
from scalable.providers.gcp.api import (
    CHANGED,
    CONFLICT,
    NOT_FOUND,
    GoogleApi,
    GoogleError,
    Operations,
)
from scalable.providers.gcp.config import Config, candidates
from scalable.providers.gcp.instances import (
    ATTRIBUTES,
    END,
    STOPPED,
    TAIL,
    Attempt,
    FailureKind,
    LaunchFailure,
    Tried,
    account_of,
    attempts,
    failure_from,
    failure_in,
    instance_body,
    instance_name,
    machine_of,
    marks_of,
    metadata_of,
    parse_end,
    program_output,
    unix_time,
)
from scalable.providers.gcp.names import label_filter, last
from scalable.providers.quotes import share_counted
from scalable.providers.remote.cloud import NAME, Machine, MachineRequest, MachineState, Refusal

logger = logging.getLogger("scalable.providers.gcp")

#: Seconds for which a machine that is gone is still reported.
REMEMBERED_S = 600.0
#: Number of attempts to change metadata, in case of concurrent changes.
CHANGES = 5


class Fleet:
    """All instances with this package's labels in one region."""

    def __init__(self, api: GoogleApi, config: Config) -> None:
        self._api = api
        self._config = config
        # Existing machines that were not stopped here, by name, as last reported.
        self._alive: dict[str, Machine] = {}
        # Times and machines by name, for those that are gone without being stopped here.
        self._gone: dict[str, tuple[float, Machine]] = {}
        # Exit codes, and out of memory or not, of machines that are powered off, by name.
        self._ends: dict[str, tuple[int | None, bool]] = {}
        self._stopped: set[str] = set()
        # E-mails of the machines' accounts, by name.
        self._accounts: dict[str, str] = {}
        # Times at which machines were powered off, in Unix seconds, by name.
        self._stopped_at: dict[str, float] = {}

    async def survey(self, marks: Mapping[str, str]) -> tuple[list[Machine], list[Machine]]:
        """Return the machines with these labels, and those that vanished since the last call."""
        found, unseen = await self._list_machines(marks)
        known = {_name(machine) for machine in found}
        missing = [
            machine
            for name, machine in self._alive.items()
            if name not in known
            and machine.zone not in unseen
            and marks.items() <= machine.marks.items()
        ]
        for machine in missing:
            del self._alive[_name(machine)]
        for machine in found:
            if _name(machine) not in self._stopped:
                self._alive[_name(machine)] = machine
        ended = [machine for machine in found if machine.state is MachineState.ENDED]
        await asyncio.gather(*(self._ask_end(machine) for machine in ended))
        await self._remove_old(ended)
        return [self._with_end(machine) for machine in found], missing

    async def _list_machines(self, marks: Mapping[str, str]) -> tuple[list[Machine], set[str]]:
        """Return the machines, and the zones that did not answer."""
        url = await self._api.compute_url("aggregated/instances")
        query = {"filter": label_filter(marks)}
        found: list[Machine] = []
        unseen: set[str] = set()
        async for page in self._api.pages(url, query):
            unseen |= {last(scope) for scope in page.get("unreachables") or ()}
            for scope, there in (page.get("items") or {}).items():
                if (there.get("warning") or {}).get("code") == "UNREACHABLE":
                    unseen.add(last(scope))
                if last(scope).rpartition("-")[0] != self._config.region:
                    continue
                for instance in there.get("instances") or ():
                    machine = machine_of(instance)
                    found.append(machine)
                    self._accounts[_name(machine)] = account_of(instance)
                    if "lastStopTimestamp" in instance:
                        stopped_at = unix_time(instance["lastStopTimestamp"])
                        self._stopped_at[_name(machine)] = stopped_at
        return [each for each in found if marks.items() <= each.marks.items()], unseen

    async def _remove_old(self, ended: Sequence[Machine]) -> None:
        """Delete machines that have been powered off for a while, since their disks cost money."""
        now = time.time()
        old = [m for m in ended if now - self._stopped_at.get(_name(m), now) > REMEMBERED_S]
        try:
            await self.stop(old)
        except ProviderError as error:
            logger.debug("could not delete machines that are powered off: %s", error)

    # Exits ----------------------------------------------------------------------------------------

    async def _ask_end(self, machine: Machine) -> None:
        """Request the exit code of a powered-off machine, once."""
        name = _name(machine)
        if name in self._ends or name in self._stopped:
            return
        text = await self._attribute(machine, END)
        self._ends[name] = (None, False) if text is None else parse_end(text)

    async def _attribute(self, machine: Machine, key: str) -> str | None:
        query = {"queryPath": f"{ATTRIBUTES}/{key}"}
        try:
            found = await self._api.compute(
                "GET", f"{_path(machine)}/getGuestAttributes", query=query
            )
        except GoogleError as error:
            logger.debug("could not read %s of %s: %s", key, machine.id, error)
            return None
        items = (found.get("queryValue") or {}).get("items") or ()
        return next((str(item["value"]) for item in items if item.get("key") == key), None)

    def _with_end(self, machine: Machine) -> Machine:
        if machine.state is not MachineState.ENDED or _name(machine) not in self._ends:
            return machine
        code, out_of_memory = self._ends[_name(machine)]
        reason = machine.reason or (
            "the machine is powered off" if code is None else f"its program exited with code {code}"
        )
        return dataclasses.replace(
            machine, exit_code=code, out_of_memory=out_of_memory, reason=reason
        )

    def remember(self, machine: Machine) -> None:
        """Add a machine that is gone to the result of :meth:`remembered` for ten minutes."""
        self._gone[_name(machine)] = (time.monotonic(), machine)

    def remembered(self, marks: Mapping[str, str]) -> list[Machine]:
        """Return the machines passed to :meth:`remember` in the last ten minutes."""
        now = time.monotonic()
        self._gone = {k: v for k, v in self._gone.items() if now - v[0] < REMEMBERED_S}
        return [m for _, m in self._gone.values() if marks.items() <= m.marks.items()]

    async def explain(self, machine: Machine) -> Machine:
        """Return a vanished machine, with the reason from its zone's operations."""
        ended = dataclasses.replace(
            machine, state=MachineState.ENDED, from_outside=True, reason="it no longer exists"
        )
        url = await self._api.compute_url(f"zones/{machine.zone}/operations")
        query = {"orderBy": "creationTimestamp desc", "maxResults": "500"}
        page = await self._api.request("GET", url, query=query)
        about = [o for o in page.get("items") or () if str(o.get("targetId")) == machine.id]
        kinds = {operation.get("operationType", ""): operation for operation in about}
        if "compute.instances.preempted" in kinds:
            return dataclasses.replace(ended, reason="Google Cloud preempted the spot machine")
        if "delete" in kinds:
            user = str(kinds["delete"].get("user") or "somebody")
            if user == self._accounts.get(_name(machine)):
                # It has deleted itself: see the startup script.
                return dataclasses.replace(
                    ended, from_outside=False, exit_code=0, reason="its program has exited"
                )
            return dataclasses.replace(ended, reason=f"it was deleted by {user}")
        return ended

    # Stop -----------------------------------------------------------------------------------------

    async def stop(self, machines: Sequence[Machine]) -> None:
        """Delete instances. Their programs get SIGTERM first. Already gone is success."""
        await asyncio.gather(*(self._delete(machine) for machine in machines))

    async def _delete(self, machine: Machine) -> None:
        name = _name(machine)
        self._stopped.add(name)
        self._alive.pop(name, None)
        if self._gone.pop(name, None) is not None:
            return
        try:
            query = {"requestId": str(uuid.uuid4())}
            await self._api.compute("DELETE", _path(machine), query=query)
        except GoogleError as error:
            if error.status != NOT_FOUND:
                raise

    async def stop_units(self, machine: Machine, units: Sequence[str]) -> None:
        """Write the units that must stop into their machine's metadata."""
        for attempt in range(1, CHANGES + 1):
            instance = await self._api.compute("GET", _path(machine))
            metadata = metadata_of(instance)
            before = set(json.loads(metadata.get(STOPPED) or "[]"))
            if set(units) <= before:
                return
            metadata[STOPPED] = json.dumps(sorted(before | set(units)))
            body: dict[str, Any] = {
                "fingerprint": (instance.get("metadata") or {}).get("fingerprint", ""),
                "items": [{"key": key, "value": text} for key, text in metadata.items()],
            }
            try:
                await self._api.compute("POST", f"{_path(machine)}/setMetadata", body=body)
            except GoogleError as error:
                if error.status != CHANGED or attempt == CHANGES:
                    raise
            else:
                return

    # Output ---------------------------------------------------------------------------------------

    async def output(self, machine: Machine, since: str) -> tuple[str, str]:
        if since == TAIL:
            return "", since
        query = {"start": since} if since else {}
        try:
            found = await self._api.compute("GET", f"{_path(machine)}/serialPort", query=query)
        except GoogleError as error:
            if error.transient:
                raise
            logger.debug("the console of %s cannot be read: %s", machine.id, error)
            return await self._last_output(machine, since)
        text = str(found.get("contents") or "")
        if not text and not since and machine.state is MachineState.ENDED:
            return await self._last_output(machine, since)
        whole, end, rest = text.rpartition("\n")
        # The last line may be incomplete, and is requested again.
        following = int(found.get("next") or 0) - len(rest.encode())
        return program_output(whole + end), str(following)

    async def _last_output(self, machine: Machine, since: str) -> tuple[str, str]:
        """Return the last output of a powered-off machine."""
        if machine.state is not MachineState.ENDED or since:
            return "", since
        return await self._attribute(machine, TAIL) or "", TAIL


def _name(machine: Machine) -> str:
    return machine.marks.get(NAME) or machine.id


def _path(machine: Machine) -> str:
    return f"zones/{machine.zone}/instances/{instance_name(_name(machine))}"


# Launching ----------------------------------------------------------------------------------------

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

    def __init__(self, api: GoogleApi, operations: Operations, config: Config) -> None:
        self._api = api
        self._operations = operations
        self._config = config
        self._zones: list[str] = []
        self._slots = asyncio.Semaphore(AT_ONCE)
        # Times and failures of the last minute's attempts.
        self._full: dict[Attempt, tuple[float, LaunchFailure]] = {}
        # Machines and their unfinished operations, by name.
        self._unsure: dict[str, tuple[Machine, str]] = {}

    async def run(
        self, requests: Sequence[MachineRequest], known: Iterable[Machine]
    ) -> dict[str, Machine | Refusal]:
        """Start machines. Machines in ``known`` belong to an earlier request with a lost answer."""
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
                hint="set another region; list them with `gcloud compute regions list`",
            ) from error
        return sorted(last(url) for url in region.get("zones") or ())

    async def _start(self, request: MachineRequest) -> Machine | Refusal:
        units = max(1, len(request.units))
        size = (request.cpus * units, request.memory_bytes * units, request.gpus * units)
        spot = share_counted(self._config.spot_share, request)
        shapes = candidates(self._config, *size, spot=spot)
        if not shapes:
            raise ProviderError(
                f"no known machine type of {self._config.region} has {size[0]:g} cpus, "
                f"{size[1] / 2**30:.1f} GiB and {size[2]} gpus",
                hint="set instance_type of the target",
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
                        return Refusal(f"{tried.told()}; there was no time for further attempts")
                    answer = await self._insert(request, attempt)
                    if isinstance(answer, Machine):
                        return answer
                    failure = answer
            logger.debug("%s in %s: %s", request.name, attempt, failure.message)
            if failure.kind is FailureKind.FATAL:
                raise ProviderError(
                    f"Google Cloud does not start machine {request.name} in {attempt.zone}: "
                    f"{failure.message}"
                )
            if failure.kind in (
                FailureKind.EXHAUSTED,
                FailureKind.QUOTA,
                FailureKind.QUOTA_OF_REGION,
            ):
                self._full.setdefault(attempt, (time.monotonic(), failure))
            tried.note(attempt, failure)
        if tried.never():
            raise ProviderError(
                f"no machine for {request.name} in {self._config.region}: {tried.told()}",
                hint="choose another region, zone or instance_type",
            )
        return Refusal(tried.told())

    def _known_failure(self, attempt: Attempt) -> LaunchFailure | None:
        """Return the same attempt's failure for another machine in the last minute, or None."""
        since, failure = self._full.get(attempt, (0.0, None))
        if failure is not None and time.monotonic() - since > EXHAUSTED_S:
            del self._full[attempt]
            return None
        return failure

    async def _insert(self, request: MachineRequest, attempt: Attempt) -> Machine | LaunchFailure:
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
            if failure.kind is FailureKind.FATAL:
                raise _with_hint(error, self._config) from error
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
                f"an instance {instance_name(request.name)!r} in {zone} is not a machine of this "
                "cluster",
                hint="delete it, or use another project",
            )
        return machine_of(instance)

    async def failures(self, seen: Iterable[str]) -> list[Machine]:
        """Return machines that were accepted but never created, without those in ``seen``."""
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
    """Return the machine that an operation starts, as far as it is known before it is listed."""
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


def _with_hint(error: GoogleError, config: Config) -> ProviderError:
    """Return the error, with a hint for a missing network or permission."""
    if error.status == NOT_FOUND and "network" in error.message:
        return ProviderError(
            f"Google Cloud refuses machines in network {config.network!r}: {error.message}",
            hint="set network and subnetwork of the target",
        )
    if "actAs" in error.message or "serviceAccount" in error.message:
        return ProviderError(
            f"this user may not start machines with their service account: {error.message}",
            hint="grant roles/iam.serviceAccountUser on the account, or set another one in "
            "service_account",
        )
    return error
