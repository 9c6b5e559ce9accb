"""Request bodies for instances, and conversion of answers to machines. This module does no I/O."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from scalable.providers.gcp.api import NOT_FOUND, GoogleError, one_line
from scalable.providers.gcp.config import Config
from scalable.providers.gcp.names import (
    label_value,
    labels,
    last,
    network_tag,
    resource_name,
    secret_id,
)
from scalable.providers.remote.cloud import (
    CLUSTER,
    MACHINE_OF,
    MANAGING,
    NAME,
    ROLE,
    Machine,
    MachineRequest,
    MachineState,
)

#: Keys of a machine's metadata.
MARKS, UNITS, FILES, STOPPED = (
    "scalable-marks",
    "scalable-units",
    "scalable-files",
    "scalable-stopped-units",
)
#: Name of this provider, in the command of a machine's container.
PROVIDER = "gcp"
CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
#: Machine type with attached GPUs, their type and number: ``n1-standard-4+t4x1``.
_ATTACHED = re.compile(r"(?P<type>[^+]+)\+(?P<gpu>[a-z0-9]+)x(?P<count>\d+)")
_ACCELERATORS = {"t4": "nvidia-tesla-t4", "v100": "nvidia-tesla-v100", "p4": "nvidia-tesla-p4"}
#: Machine types with built-in GPUs.
_WITH_GPUS = re.compile(r"(a2|a3|a4|g2|g4)-")

_STATES = {
    "PENDING": MachineState.PENDING,
    "PROVISIONING": MachineState.PENDING,
    "STAGING": MachineState.PENDING,
    "RUNNING": MachineState.RUNNING,
    "REPAIRING": MachineState.RUNNING,
    "PENDING_STOP": MachineState.ENDING,
    "STOPPING": MachineState.ENDING,
    "SUSPENDING": MachineState.ENDING,
    "DEPROVISIONING": MachineState.ENDING,
    "STOPPED": MachineState.ENDED,
    "SUSPENDED": MachineState.ENDED,
    "TERMINATED": MachineState.ENDED,
}


@dataclass(frozen=True)
class Attempt:
    """Zone and machine type of one attempt to start a machine."""

    zone: str
    #: Machine type, with the GPUs attached to it.
    shape: str
    spot: bool = False


def instance_name(name: str) -> str:
    """Return the instance name for a machine's name."""
    return resource_name(name)


# Request ------------------------------------------------------------------------------------------


def instance_body(request: MachineRequest, config: Config, attempt: Attempt) -> dict[str, Any]:
    """Return the body of ``instances.insert``."""
    marks = {**request.marks, NAME: request.name}
    cluster, role = marks.get(CLUSTER, ""), marks.get(ROLE, "")
    machine_type, gpu, count = split_shape(attempt.shape)
    body: dict[str, Any] = {
        "name": instance_name(request.name),
        "description": "Created by scalable: a machine of a cluster. It ends with its program.",
        "machineType": f"zones/{attempt.zone}/machineTypes/{machine_type}",
        "labels": labels(marks),
        "tags": {"items": [network_tag(cluster), network_tag(cluster, role), *config.network_tags]},
        "metadata": {"items": _items(request, marks)},
        "disks": [_disk(config, attempt.zone, marks)],
        "networkInterfaces": [_interface(config)],
        "serviceAccounts": [
            {
                "email": config.account(role == MANAGING) or "default",
                # The account's roles limit its rights: Secret Manager has no scope of its own.
                "scopes": [CLOUD_PLATFORM],
            }
        ],
        "scheduling": _scheduling(config, attempt),
    }
    if gpu:
        kind = f"zones/{attempt.zone}/acceleratorTypes/{gpu}"
        body["guestAccelerators"] = [{"acceleratorType": kind, "acceleratorCount": count}]
    return body


def split_shape(shape: str) -> tuple[str, str, int]:
    """Return machine type, type of its attached GPUs, and their number."""
    found = _ATTACHED.fullmatch(shape)
    if found is None:
        return shape, "", 0
    gpu = found["gpu"]
    return found["type"], _ACCELERATORS.get(gpu, gpu), int(found["count"])


def _items(request: MachineRequest, marks: Mapping[str, str]) -> list[dict[str, str]]:
    command = ("python3", "-m", "scalable.clusters.programs.machine", PROVIDER, *request.program)
    environment = {**request.environment, MACHINE_OF: PROVIDER}
    gpus = request.gpus * max(1, len(request.units))
    items = {
        "startup-script": startup_script(
            request.image, command, environment, gpus=gpus, leaves=bool(request.units)
        ),
        "shutdown-script": shutdown_script(),
        "enable-guest-attributes": "TRUE",
        # The project's keys are for machines that people log in to.
        "block-project-ssh-keys": "TRUE",
        MARKS: json.dumps(marks),
        UNITS: json.dumps(request.units),
        FILES: secret_id(request.files),
    }
    return [{"key": key, "value": text} for key, text in items.items()]


def _disk(config: Config, zone: str, marks: Mapping[str, str]) -> dict[str, Any]:
    cluster = {CLUSTER: label_value(marks[CLUSTER])} if CLUSTER in marks else {}
    return {
        "boot": True,
        "autoDelete": True,
        "initializeParams": {
            "sourceImage": config.machine_image,
            "diskSizeGb": str(config.disk_gb),
            "diskType": f"zones/{zone}/diskTypes/{config.disk_type}",
            "labels": cluster,
        },
    }


def _interface(config: Config) -> dict[str, Any]:
    interface: dict[str, Any] = {"network": network_path(config.network)}
    if config.subnetwork:
        interface["subnetwork"] = subnetwork_path(config.subnetwork, config.region)
        if config.subnetwork.startswith("projects/"):
            # For another project's subnetwork, the network is that of the subnetwork.
            del interface["network"]
    if config.external_ip:
        interface["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    return interface


def network_path(network: str) -> str:
    """Return the path of a network given by name or path."""
    return network if "/" in network else f"global/networks/{network}"


def subnetwork_path(subnetwork: str, region: str) -> str:
    """Return the path of a subnetwork given by name or path."""
    return subnetwork if "/" in subnetwork else f"regions/{region}/subnetworks/{subnetwork}"


def _scheduling(config: Config, attempt: Attempt) -> dict[str, Any]:
    # A restarted machine would run units that their manager has given up.
    scheduling: dict[str, Any] = {"automaticRestart": False}
    if attempt.spot:
        scheduling["provisioningModel"] = "SPOT"
    if attempt.spot or "+" in attempt.shape or _WITH_GPUS.match(attempt.shape):
        scheduling["onHostMaintenance"] = "TERMINATE"
    if config.longest_s is not None:
        scheduling["maxRunDuration"] = {"seconds": str(max(60, round(config.longest_s)))}
    if attempt.spot or config.longest_s is not None:
        scheduling["instanceTerminationAction"] = "DELETE"
    return scheduling


# Answer -------------------------------------------------------------------------------------------


def metadata_of(instance: Mapping[str, Any]) -> dict[str, str]:
    """Return an instance's metadata."""
    items = (instance.get("metadata") or {}).get("items") or ()
    return {item["key"]: item.get("value", "") for item in items}


def marks_of(instance: Mapping[str, Any]) -> dict[str, str]:
    """Return the marks that this package gave an instance, or an empty dict for other instances."""
    return _texts(metadata_of(instance).get(MARKS, ""))


def account_of(instance: Mapping[str, Any]) -> str:
    """Return the e-mail address of an instance's account, or an empty string."""
    accounts = instance.get("serviceAccounts") or [{}]
    return str(accounts[0].get("email") or "")


def _texts(written: str) -> dict[str, str]:
    try:
        found = json.loads(written or "{}")
    except ValueError:
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def machine_of(instance: Mapping[str, Any]) -> Machine:
    """Convert an instance in an API answer to a machine."""
    metadata = metadata_of(instance)
    interface: Mapping[str, Any] = (instance.get("networkInterfaces") or [{}])[0]
    outside: Mapping[str, Any] = (interface.get("accessConfigs") or [{}])[0]
    scheduling = instance.get("scheduling") or {}
    state = _STATES.get(instance.get("status", ""), MachineState.PENDING)
    return Machine(
        id=str(instance.get("id") or instance["name"]),
        marks=marks_of(instance),
        units=_units(metadata.get(UNITS, "")),
        state=state,
        reason=instance.get("statusMessage") or _waits(instance.get("status", "")),
        address=interface.get("networkIP"),
        public_address=outside.get("natIP"),
        shape=last(instance.get("machineType", "")),
        zone=last(instance.get("zone", "")),
        spot=scheduling.get("provisioningModel") == "SPOT",
        made_at=unix_time(instance.get("creationTimestamp", "")),
    )


def _units(written: str) -> tuple[str, ...]:
    try:
        found = json.loads(written or "[]")
    except ValueError:
        return ()
    return tuple(str(name) for name in found) if isinstance(found, list) else ()


def _waits(status: str) -> str | None:
    return {
        "PROVISIONING": "Google Cloud looks for a machine",
        "STAGING": "Google Cloud prepares the machine",
        "REPAIRING": "Google Cloud repairs the machine",
    }.get(status)


def unix_time(text: str) -> float:
    """Return the Unix time of an ISO 8601 timestamp, or 0.0 if it is invalid."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


# Start of machines --------------------------------------------------------------------------------


CONTAINER = "scalable"
#: Seconds that a program has after SIGTERM: normally, and if its spot machine is preempted.
GRACE_S, NOTICE_GRACE_S = 30, 25
#: Prefixes of lines on the serial console: the program's output, and our own.
OUTPUT, NOTE = "scalable| ", "scalable: "
#: Namespace of the guest attributes, and their keys: exit code and last output of the program.
ATTRIBUTES, END, TAIL = "scalable", "end", "tail"
OUT_OF_MEMORY = "out-of-memory"
#: Registries for which the machine's account is used.
REGISTRIES = ("gcr.io", "pkg.dev")

_GPU = """\
note "installing the driver of the GPUs"
cos-extensions install gpu >"$console" 2>&1 || finish 1
mount --bind /var/lib/nvidia /var/lib/nvidia
mount -o remount,exec /var/lib/nvidia
options+=(--volume /var/lib/nvidia/lib64:/usr/local/nvidia/lib64)
options+=(--volume /var/lib/nvidia/bin:/usr/local/nvidia/bin)
for device in /dev/nvidia*; do [ -c "$device" ] && options+=(--device "$device"); done
"""

_LEAVE = """\
  # A machine whose account may not delete it stays, powered off, until somebody lists machines.
  [ "$1" = 0 ] && delete_this_machine && sleep 60
"""

_SCRIPT = """\
#!/bin/bash
# Starts the container of this machine, tells its end, and powers the machine off.
exec </dev/null
console=/dev/ttyS0
[ -w "$console" ] || console=/dev/stdout
export HOME=/var/lib/scalable
mkdir -p "$HOME"
metadata=http://${{GCE_METADATA_HOST:-metadata.google.internal}}/computeMetadata/v1
flavor='Metadata-Flavor: Google'
note() {{ printf '{note}%s\\n' "$1" >"$console"; }}
ask() {{ curl -sS -m 10 --retry 3 -H "$flavor" "$metadata/$1"; }}
tell() {{
  curl -sS -m 10 --retry 3 -X PUT -H "$flavor" --data-binary @- \\
    "$metadata/instance/guest-attributes/{attributes}/$1" >/dev/null 2>&1
}}
delete_this_machine() {{
  local zone project name token
  zone=$(ask instance/zone) project=$(ask project/project-id) name=$(ask instance/name)
  token=$(ask instance/service-accounts/default/token |
    sed -n 's/.*"access_token" *: *"\\([^"]*\\)".*/\\1/p')
  printf 'header = "Authorization: Bearer %s"\\n' "$token" |
    curl -sS -f -m 20 --retry 2 -K - -X DELETE >/dev/null 2>&1 \\
      "https://compute.googleapis.com/compute/v1/projects/$project/zones/${{zone##*/}}/instances/$name"
}}
finish() {{
  note "the program ended with exit code $1 $2"
  docker logs --tail 40 {container} 2>&1 | tail -c 3000 | tell {tail}
  printf '%s' "$1 $2" | tell {end}
{leave}  poweroff
  exit
}}
iptables -w -A INPUT -p tcp -j ACCEPT
image={image}
registry=${{image%%/*}}
case $registry in
  {registries}) docker-credential-gcr configure-docker --registries="$registry" >/dev/null 2>&1 ;;
esac
for pause in 2 5 10 20 40 0; do
  fault=$(docker pull -q "$image" 2>&1) && break
  note "image $image: $fault"
  [ "$pause" = 0 ] && finish 125
  sleep "$pause"
done
# The system of the machine keeps a part of the memory, so that only the container runs out of it.
while read -r key size _; do [ "$key" = MemTotal: ] && total=$size; done </proc/meminfo
memory=$((total - 200000))k
options=(--memory "$memory" --memory-swap "$memory")
{gpus}docker rm -f {container} >/dev/null 2>&1
note "starting the program"
fault=$(docker run -d --name {container} --init --network host --stop-timeout {grace} \\
  --log-driver json-file --log-opt max-size=50m --ulimit nofile=1048576:1048576 \\
  "${{options[@]}}" {environment}"$image" \\
  {command} 2>&1) || {{ code=$?; note "$fault"; finish "$code"; }}
docker logs -f {container} 2>&1 | sed -u 's/^/{output}/' >"$console" &
code=$(docker wait {container})
for _ in 1 2 3 4 5 6 7 8 9 10; do jobs %% >/dev/null 2>&1 || break; sleep 0.2; done
killed=
[ "$(docker inspect -f '{{{{.State.OOMKilled}}}}' {container})" = true ] && killed={out_of_memory}
finish "$code" "$killed"
"""


def startup_script(
    image: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    gpus: int = 0,
    leaves: bool = False,
) -> str:
    """Return the startup script of a machine, without secrets.
    With ``leaves``, the machine deletes itself after exit code 0. Otherwise it stays powered off.
    """
    variables = (f"-e {shlex.quote(f'{key}={text}')} " for key, text in environment.items())
    return _SCRIPT.format(
        note=NOTE,
        output=OUTPUT,
        attributes=ATTRIBUTES,
        end=END,
        tail=TAIL,
        out_of_memory=OUT_OF_MEMORY,
        container=CONTAINER,
        grace=GRACE_S,
        registries="|".join(f"*{name}" for name in REGISTRIES),
        image=shlex.quote(image),
        environment="".join(variables),
        command=shlex.join(command),
        gpus=_GPU if gpus else "",
        leave=_LEAVE if leaves else "",
    )


def shutdown_script() -> str:
    """Return the script that runs when a machine is stopped or preempted."""
    return f"#!/bin/bash\ndocker stop -t {NOTICE_GRACE_S} {CONTAINER}\n"


def program_output(console: str) -> str:
    """Return the program's and the startup script's lines from a serial console's output."""
    lines = []
    for line in console.splitlines():
        _, mark, text = line.partition(OUTPUT)
        if not mark:
            _, mark, text = line.partition(NOTE)
            text = f"[machine] {text}"
        if mark:
            lines.append(text.rstrip("\r"))
    return "".join(f"{line}\n" for line in lines)


def parse_end(text: str) -> tuple[int | None, bool]:
    """Return the exit code, and whether memory ran out, from the guest attribute ``end``."""
    code, _, killed = text.strip().partition(" ")
    return (int(code) if code.lstrip("-").isdigit() else None), killed.strip() == OUT_OF_MEMORY


# Refusals -----------------------------------------------------------------------------------------


class FailureKind(Enum):
    """Kind of a failure, which determines the next attempt."""

    #: The zone has no such machine now, but another zone may.
    EXHAUSTED = "exhausted"
    #: The zone never has such a machine.
    NOT_OFFERED = "not offered"
    #: A limit of the project in this zone is reached: another zone may work.
    QUOTA = "quota"
    #: A limit of the project in the whole region is reached: another machine type may work.
    QUOTA_OF_REGION = "quota of the region"
    #: The subnetwork has no free address: no other attempt can succeed.
    ADDRESSES = "addresses"
    #: The request can never succeed.
    FATAL = "fatal"


@dataclass(frozen=True)
class LaunchFailure:
    """A failure to start an instance."""

    kind: FailureKind
    #: Message of Compute Engine.
    message: str
    #: Name and limit of the exceeded quota; empty for other failures.
    quota: str = ""


_EXHAUSTED = ("RESOURCE_POOL_EXHAUSTED", "STOCKOUT", "RESOURCE_AVAILABILITY")
_QUOTA = ("QUOTAEXCEEDED", "QUOTA_EXCEEDED")
_QUOTA_NAME = re.compile(
    r"[Qq]uota '?(?P<name>[A-Z0-9_]+)'? exceeded\.?\s*(Limit: (?P<limit>[0-9]+))?"
)


def failure_of(code: str, message: str, status: int = 0) -> LaunchFailure:
    """Classify a failure by its error code or reason, its message, and the HTTP status (or 0)."""
    word, text = code.upper(), one_line(message)
    if any(part in word for part in _EXHAUSTED) or "RESOURCE_POOL_EXHAUSTED" in text:
        return LaunchFailure(FailureKind.EXHAUSTED, text)
    if any(part in word for part in _QUOTA):
        found = _QUOTA_NAME.search(text)
        quota = ""
        if found is not None:
            limit = f" (limit {found['limit']})" if found["limit"] else ""
            quota = f"{found['name']}{limit}"
        regional = "in region" in text or "ALL_REGIONS" in text or "globally" in text
        return LaunchFailure(
            FailureKind.QUOTA_OF_REGION if regional else FailureKind.QUOTA, text, quota
        )
    if "IP_SPACE_EXHAUSTED" in word:
        return LaunchFailure(FailureKind.ADDRESSES, text)
    about_type = "machineType" in text or "Machine type" in text or "acceleratorType" in text
    absent = "does not exist" in text or "not found" in text or "not available" in text
    if about_type and (absent or status == NOT_FOUND):
        return LaunchFailure(FailureKind.NOT_OFFERED, text)
    return LaunchFailure(FailureKind.FATAL, text)


def failure_in(operation: Mapping[str, Any]) -> LaunchFailure | None:
    """Return the failure of an operation, or None if it has none."""
    errors = (operation.get("error") or {}).get("errors") or ()
    if errors:
        return failure_of(str(errors[0].get("code", "")), str(errors[0].get("message", "")))
    status = int(operation.get("httpErrorStatusCode") or 0)
    if status >= 400:
        return failure_of("", str(operation.get("httpErrorMessage", "")), status)
    return None


def failure_from(error: GoogleError) -> LaunchFailure:
    """Classify the failure of a refused request."""
    return failure_of(error.reason, error.message, error.status)


class Tried:
    """Attempts for one machine, and their failures, which may rule out other attempts."""

    def __init__(self) -> None:
        self.failures: list[tuple[Attempt, LaunchFailure]] = []

    def note(self, attempt: Attempt, failure: LaunchFailure) -> None:
        self.failures.append((attempt, failure))

    def is_pointless(self, attempt: Attempt) -> bool:
        """Return whether earlier failures imply that an attempt would fail."""
        return any(_rules_out(earlier, failure, attempt) for earlier, failure in self.failures)

    def never(self) -> bool:
        """Return whether all later attempts would fail too."""
        kinds = {failure.kind for _, failure in self.failures}
        return kinds == {FailureKind.NOT_OFFERED}

    def told(self) -> str:
        return "; ".join(_told(self.failures))


def _rules_out(earlier: Attempt, failure: LaunchFailure, attempt: Attempt) -> bool:
    if failure.kind is FailureKind.ADDRESSES:
        return True
    if earlier.shape != attempt.shape:
        return False
    if failure.kind is FailureKind.QUOTA_OF_REGION:
        return earlier.spot == attempt.spot
    if failure.kind is FailureKind.NOT_OFFERED:
        return earlier.zone == attempt.zone
    return earlier == attempt


def _told(failures: Iterable[tuple[Attempt, LaunchFailure]]) -> list[str]:
    zones: dict[tuple[FailureKind, str, str], list[str]] = {}
    for attempt, failure in failures:
        name = f"spot {attempt.shape}" if attempt.spot else attempt.shape
        zones.setdefault((failure.kind, name, failure.quota), []).append(attempt.zone)
    words = {
        FailureKind.EXHAUSTED: "no {shape} is free in {zones}",
        FailureKind.NOT_OFFERED: "{zones} does not offer {shape}",
        FailureKind.QUOTA: "the quota {quota} of the project is used up in {zones} ({shape})",
        FailureKind.QUOTA_OF_REGION: "the quota {quota} of the project is used up ({shape})",
        FailureKind.ADDRESSES: "the subnetwork has no free address",
    }
    return [
        words.get(kind, "{zones} refused {shape}").format(
            zones=", ".join(dict.fromkeys(found)), shape=name, quota=quota or "for machines"
        )
        for (kind, name, quota), found in zones.items()
    ]


def attempts(zones: Iterable[str], shapes: Iterable[str], spot: bool) -> list[Attempt]:
    """Return all attempts for a machine: each type in all zones before the next type."""
    zones = list(zones)
    return [Attempt(zone, shape, spot) for shape in shapes for zone in zones]
