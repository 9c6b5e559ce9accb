"""Rules for instances that the discovery document does not express."""

import re

from .catalogue import DISK_TYPES, IMAGE_GB
from .errors import ApiError, invalid
from .identities import DEFAULT_ACCOUNT

LABEL_KEY = re.compile(r"[^\W\d_A-Z][^\WA-Z-]*(?:[\w-](?<![A-Z]))*")
LABEL_VALUE = re.compile(r"(?:[\w-](?<![A-Z]))*")
TAG = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
METADATA_VALUE = 256 * 1024
METADATA_ALL = 512 * 1024
#: Limits of `maxRunDuration`, in seconds.
RUN_DURATION = 30, 120 * 24 * 3600


def check_labels(labels, where="resource.labels"):
    """Refuse labels that are too many, too long, or not in lower case."""
    if len(labels) > 64:
        raise invalid(where, len(labels), "The number of labels cannot exceed 64.")
    can = "can only contain lowercase letters, numeric characters, underscores and dashes"
    for key, value in labels.items():
        if len(key) > 63 or not key or not (LABEL_KEY.fullmatch(key) and key[0].islower()):
            text = f"Label key '{key}' violates format constraints. The key must start with a lowercase character, {can}. The key can be at most 63 characters long. International characters are allowed."
            raise invalid(where, "", text)
        if len(value) > 63 or not LABEL_VALUE.fullmatch(value):
            text = f"Label value '{value}' violates format constraints. The value {can}. The value can be at most 63 characters long. International characters are allowed."
            raise invalid(where, "", text)


def check_metadata(metadata, where="resource.metadata"):
    """Refuse metadata that is too large or has a key twice."""
    seen = set()
    total = 0
    for index, item in enumerate(metadata.get("items") or ()):
        key = item.get("key", "")
        if key in seen:
            raise invalid(f"{where}.items[{index}].key", key, "Duplicate metadata key.")
        seen.add(key)
        size = len(item.get("value", "").encode())
        total += size + len(key.encode())
        if size > METADATA_VALUE:
            text = f"Value is too long: at most {METADATA_VALUE} character(s); actual size {size}."
            raise ApiError(413, text)
    if total > METADATA_ALL:
        text = f"The total size of all metadata keys and values is {total}; it must be at most {METADATA_ALL}."
        raise ApiError(413, text)


def check_instance(resource, zone, catalogue, identities):
    """Refuse an instance that Compute Engine would not make; return its machine type."""
    if not resource.get("machineType"):
        raise ApiError(400, "Required field 'resource.machineType' not specified", "required")
    shape = catalogue.wanted_type(zone, resource["machineType"])
    check_labels(resource.get("labels") or {})
    check_metadata(resource.get("metadata") or {})
    check_disks(resource.get("disks") or [], zone, catalogue)
    check_scheduling(resource, shape)
    tags = (resource.get("tags") or {}).get("items") or ()
    for tag in tags:
        if len(tag) > 63 or not TAG.fullmatch(tag):
            raise invalid("resource.tags.items", tag, "Must be a match of RFC 1035.")
    if len(tags) > 64:
        raise invalid("resource.tags.items", len(tags), "At most 64 tags are allowed.")
    accounts = resource.get("serviceAccounts") or []
    if len(accounts) > 1:
        raise invalid("resource.serviceAccounts", "", "At most one service account is allowed.")
    for account in accounts:
        if account.get("email") == "default":
            account["email"] = DEFAULT_ACCOUNT
        if account.get("email") not in identities.accounts:
            text = f"The resource '{account.get('email')}' of type 'serviceAccount' was not found."
            raise invalid("resource.serviceAccounts[0].email", account.get("email"), text)
    return shape


def check_disks(disks, zone, catalogue):
    if not disks:
        raise invalid("resource.disks", "", "No disks are specified.")
    if [bool(disk.get("boot")) for disk in disks] != [True] + [False] * (len(disks) - 1):
        raise invalid("resource.disks", "", "The first disk, and no other, must be a boot disk.")
    for index, disk in enumerate(disks):
        where = f"resource.disks[{index}].initializeParams"
        wanted = disk.get("initializeParams")
        if wanted is None:
            raise invalid(f"resource.disks[{index}].source", "", "The test bed makes each disk.")
        kind = wanted.get("diskType", "pd-standard")
        found = re.fullmatch(r"(?:(?:.*/)?zones/([^/]+)/diskTypes/)([^/]+)", kind)
        if "diskType" in wanted and (not found or found[1] != zone or found[2] not in DISK_TYPES):
            text = f"The referenced diskType resource cannot be found in zone '{zone}'."
            raise invalid(f"{where}.diskType", kind, text)
        if disk.get("boot"):
            if not wanted.get("sourceImage"):
                raise invalid(f"{where}.sourceImage", "", "A boot disk needs a source image.")
            catalogue.wanted_image(wanted["sourceImage"])
            size = int(wanted.get("diskSizeGb") or IMAGE_GB)
            if size < IMAGE_GB:
                text = f"Requested disk size cannot be smaller than the image size ({IMAGE_GB} GB)"
                raise invalid(f"{where}.diskSizeGb", size, text)


def check_scheduling(resource, shape):
    scheduling = resource.get("scheduling") or {}
    where = "resource.scheduling"
    spot = scheduling.get("provisioningModel") == "SPOT"
    preemptible = spot or scheduling.get("preemptible", False)
    if preemptible and scheduling.get("automaticRestart"):
        text = "Scheduling must have preemptible be false when AutomaticRestart is true."
        raise invalid(f"{where}.preemptible", "true", text)
    if preemptible and scheduling.get("onHostMaintenance") == "MIGRATE":
        text = "Scheduling must have preemptible be false when OnHostMaintenance isn't TERMINATE."
        raise invalid(f"{where}.preemptible", "true", text)
    gpus = shape.get("accelerators") or resource.get("guestAccelerators")
    if gpus and not preemptible and scheduling.get("onHostMaintenance") != "TERMINATE":
        text = "Instances with guest accelerators do not support live migration."
        raise ApiError(400, text, "unsupportedOperation")
    limit = scheduling.get("maxRunDuration")
    action = scheduling.get("instanceTerminationAction")
    if action and not spot and limit is None:
        text = "Instance termination action is supported for Spot VMs and with a maximum run duration only."
        raise invalid(f"{where}.instanceTerminationAction", action, text)
    if limit is not None:
        seconds = int(limit.get("seconds") or 0)
        if not RUN_DURATION[0] <= seconds <= RUN_DURATION[1]:
            text = f"Must be between {RUN_DURATION[0]} and {RUN_DURATION[1]} seconds."
            raise invalid(f"{where}.maxRunDuration", seconds, text)
        if not action:
            text = "A maximum run duration needs an instance termination action."
            raise invalid(f"{where}.instanceTerminationAction", "", text)
