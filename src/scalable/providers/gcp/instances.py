"""Request bodies for instances, and the machines in answers, without I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scalable.providers.gcp.config import Config
from scalable.providers.gcp.names import (
    label_value,
    labels,
    last,
    network_tag,
    resource_name,
    secret_id,
)
from scalable.providers.gcp.startup import shutdown_script, startup_script
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
    """Return the name of the instance for a machine's name."""
    return resource_name(name)


# Request ------------------------------------------------------------------------------------------


def instance_body(request: MachineRequest, config: Config, attempt: Attempt) -> dict[str, Any]:
    """Return the body of ``instances.insert``."""
    marks = {**request.marks, NAME: request.name}
    cluster, role = marks.get(CLUSTER, ""), marks.get(ROLE, "")
    machine_type, gpu, count = split_shape(attempt.shape)
    body: dict[str, Any] = {
        "name": instance_name(request.name),
        "description": "Made by scalable: a machine of a cluster. It ends with its program.",
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
    """Return machine type, type of the GPUs attached to it, and their number."""
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
    """Return the path of a network that an option names."""
    return network if "/" in network else f"global/networks/{network}"


def subnetwork_path(subnetwork: str, region: str) -> str:
    """Return the path of a subnetwork that an option names."""
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
    """Return the exact marks of an instance, which are empty for instances of others."""
    return _texts(metadata_of(instance).get(MARKS, ""))


def account_of(instance: Mapping[str, Any]) -> str:
    """Return the e-mail of an instance's account, or an empty string without one."""
    accounts = instance.get("serviceAccounts") or [{}]
    return str(accounts[0].get("email") or "")


def _texts(written: str) -> dict[str, str]:
    try:
        found = json.loads(written or "{}")
    except ValueError:
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def machine_of(instance: Mapping[str, Any]) -> Machine:
    """Return the machine of an instance."""
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
