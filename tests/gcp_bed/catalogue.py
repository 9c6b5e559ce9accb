"""Zones, machine types and images: the resources that nobody makes."""

import re

from .errors import ApiError, invalid, not_found
from .filtering import page
from .identities import DEFAULT_ACCOUNT, PROJECT

BASE = "https://www.googleapis.com/compute/v1"
#: Region -> letters of its zones.
REGIONS = {
    "us-central1": "abcf",
    "us-east1": "bcd",
    "europe-west1": "bcd",
    "europe-west4": "abc",
}
#: Series -> GiB for each CPU by kind, and the numbers of CPUs.
SERIES = {
    "e2": ({"standard": 4, "highmem": 8, "highcpu": 1}, (2, 4, 8, 16, 32)),
    "n1": ({"standard": 3.75, "highmem": 6.5, "highcpu": 0.9}, (1, 2, 4, 8, 16, 32, 64, 96)),
    "n2": (
        {"standard": 4, "highmem": 8, "highcpu": 1},
        (2, 4, 8, 16, 32, 48, 64, 80, 96, 128),
    ),
    "n2d": (
        {"standard": 4, "highmem": 8, "highcpu": 1},
        (2, 4, 8, 16, 32, 48, 64, 80, 96),
    ),
    "c2": ({"standard": 4}, (4, 8, 16, 30, 60)),
    "c2d": ({"standard": 4, "highmem": 8, "highcpu": 2}, (2, 4, 8, 16, 32, 56, 112)),
    "c3": ({"standard": 4, "highmem": 8, "highcpu": 2}, (4, 8, 22, 44, 88, 176)),
    "t2d": ({"standard": 4}, (1, 2, 4, 8, 16, 32, 48, 60)),
}
#: Name -> CPUs, GiB, type and number of accelerators, letters of the zones that have it.
OTHERS = {
    "e2-micro": (2, 1, "", 0, ""),
    "e2-small": (2, 2, "", 0, ""),
    "e2-medium": (2, 4, "", 0, ""),
    "a2-highgpu-1g": (12, 85, "nvidia-tesla-a100", 1, "abcf"),
    "a2-highgpu-2g": (24, 170, "nvidia-tesla-a100", 2, "abcf"),
    "a2-highgpu-4g": (48, 340, "nvidia-tesla-a100", 4, "abcf"),
    "a2-highgpu-8g": (96, 680, "nvidia-tesla-a100", 8, "abcf"),
    "g2-standard-4": (4, 16, "nvidia-l4", 1, "ab"),
    "g2-standard-8": (8, 32, "nvidia-l4", 1, "ab"),
    "g2-standard-12": (12, 48, "nvidia-l4", 1, "ab"),
    "g2-standard-24": (24, 96, "nvidia-l4", 2, "ab"),
    "g2-standard-48": (48, 192, "nvidia-l4", 4, "ab"),
}
CUSTOM = re.compile(r"(?:(n1|n2|n2d|e2)-)?custom-(\d+)-(\d+)")
#: Families of cos-cloud, and the name of the image in each.
FAMILIES = {
    "cos-stable": "cos-stable-121-18867-90-59",
    "cos-beta": "cos-beta-125-19216-0-94",
    "cos-dev": "cos-dev-129-19296-0-0",
    "cos-121-lts": "cos-121-18867-90-59",
    "cos-117-lts": "cos-117-18613-164-98",
}
IMAGE_GB = 10
DISK_TYPES = ("pd-standard", "pd-balanced", "pd-ssd", "hyperdisk-balanced")
#: Default limits of a region; a machine of a series counts for its own metric, if it has one.
QUOTAS = {
    "CPUS": 2400.0,
    "PREEMPTIBLE_CPUS": 0.0,
    "N2_CPUS": 2400.0,
    "N2D_CPUS": 2400.0,
    "C2_CPUS": 1200.0,
    "C2D_CPUS": 1200.0,
    "C3_CPUS": 1200.0,
    "T2D_CPUS": 1200.0,
    "A2_CPUS": 1200.0,
    "NVIDIA_A100_GPUS": 16.0,
    "NVIDIA_L4_GPUS": 16.0,
    "NVIDIA_T4_GPUS": 16.0,
    "INSTANCES": 6000.0,
    "IN_USE_ADDRESSES": 2300.0,
    "DISKS_TOTAL_GB": 204800.0,
    "SSD_TOTAL_GB": 81920.0,
}
ACCELERATORS = {
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
    "nvidia-l4": "NVIDIA_L4_GPUS",
    "nvidia-tesla-t4": "NVIDIA_T4_GPUS",
}
OLD = "1969-12-31T16:00:00.000-08:00"


def region_of(zone):
    return zone.rpartition("-")[0]


def zones():
    return [f"{region}-{letter}" for region, letters in REGIONS.items() for letter in letters]


def link(path):
    return f"{BASE}/projects/{path}"


class Catalogue:
    """Answers questions about what the places offer."""

    def __init__(self):
        #: (zone, machine type) that are not there, on order; "*" stands for each.
        self.missing = set()
        self.limits = {region: dict(QUOTAS) for region in REGIONS}
        #: Returns metric -> usage of a region.
        self.usage = lambda region: {}

    # Zones and regions ----------------------------------------------------------------------------

    def zone(self, name):
        if name not in zones():
            raise not_found(f"projects/{PROJECT}/zones/{name}")
        return {
            "kind": "compute#zone",
            "id": str(2000 + zones().index(name)),
            "creationTimestamp": OLD,
            "name": name,
            "description": name,
            "status": "UP",
            "region": link(f"{PROJECT}/regions/{region_of(name)}"),
            "selfLink": link(f"{PROJECT}/zones/{name}"),
            "availableCpuPlatforms": ["Intel Broadwell", "Intel Cascade Lake", "Intel Skylake"],
        }

    def region(self, name):
        if name not in REGIONS:
            raise not_found(f"projects/{PROJECT}/regions/{name}")
        used = self.usage(name)
        quotas = [
            {"metric": metric, "limit": limit, "usage": float(used.get(metric, 0))}
            for metric, limit in self.limits[name].items()
        ]
        return {
            "kind": "compute#region",
            "id": str(1000 + list(REGIONS).index(name)),
            "creationTimestamp": OLD,
            "name": name,
            "description": name,
            "status": "UP",
            "zones": [link(f"{PROJECT}/zones/{name}-{letter}") for letter in REGIONS[name]],
            "quotas": quotas,
            "selfLink": link(f"{PROJECT}/regions/{name}"),
        }

    # Machine types --------------------------------------------------------------------------------

    def machine_types(self, zone):
        """Return the machine types of a zone by name."""
        found = {}
        for series, (kinds, counts) in SERIES.items():
            for kind, gigabytes in kinds.items():
                for count in counts:
                    name = f"{series}-{kind}-{count}"
                    found[name] = self.shape(zone, name, count, gigabytes * count)
        for name, (cpus, gigabytes, gpu, number, letters) in OTHERS.items():
            if not letters or zone[-1] in letters:
                found[name] = self.shape(zone, name, cpus, gigabytes, gpu, number)
        return {name: shape for name, shape in found.items() if self.offered(zone, name)}

    def offered(self, zone, name):
        return not {(zone, name), (zone, "*"), ("*", name)} & self.missing

    def machine_type(self, zone, name):
        """Return a machine type of a zone, None if it is not there."""
        self.zone(zone)
        if found := CUSTOM.fullmatch(name):
            memory = int(found[3])
            if memory % 256 or not self.offered(zone, name):
                return None
            return self.shape(zone, name, int(found[2]), memory / 1024)
        return self.machine_types(zone).get(name)

    @staticmethod
    def shape(zone, name, cpus, gigabytes, gpu="", number=0):
        found = {
            "kind": "compute#machineType",
            "id": str(sum(ord(c) * 131**i for i, c in enumerate(name)) % 10**9),
            "creationTimestamp": OLD,
            "name": name,
            "description": f"{cpus} vCPUs, {gigabytes:g} GB RAM",
            "guestCpus": cpus,
            "memoryMb": int(gigabytes * 1024),
            "imageSpaceGb": 0,
            "maximumPersistentDisks": 128,
            "maximumPersistentDisksSizeGb": "263168",
            "zone": zone,
            "isSharedCpu": name in {"e2-micro", "e2-small", "e2-medium"},
            "architecture": "X86_64",
            "selfLink": link(f"{PROJECT}/zones/{zone}/machineTypes/{name}"),
        }
        if gpu:
            entry = {"guestAcceleratorType": gpu, "guestAcceleratorCount": number}
            found["accelerators"] = [entry]
        return found

    def wanted_type(self, zone, url):
        """Return the machine type that an instance's URL names."""
        where = "resource.machineType"
        found = re.fullmatch(r"(?:.*/)?zones/([^/]+)/machineTypes/([^/]+)", url)
        if not found:
            raise invalid(where, url, "The URL is malformed.")
        if found[1] != zone:
            raise invalid(where, url, f"Machine type is in a different zone than '{zone}'.")
        shape = self.machine_type(zone, found[2])
        if shape is None:
            text = f"Machine type with name '{found[2]}' does not exist in zone '{zone}'."
            raise invalid(where, url, text)
        return shape

    # Images ---------------------------------------------------------------------------------------

    def image(self, project, name):
        """Return an image of cos-cloud by its name."""
        for family, found in FAMILIES.items():
            if project == "cos-cloud" and found == name:
                return {
                    "kind": "compute#image",
                    "id": str(7000 + list(FAMILIES).index(family)),
                    "creationTimestamp": "2026-10-01T00:00:00.000-07:00",
                    "name": name,
                    "description": "Google, Container-Optimized OS, stable",
                    "family": family,
                    "status": "READY",
                    "diskSizeGb": str(IMAGE_GB),
                    "architecture": "X86_64",
                    "selfLink": link(f"{project}/global/images/{name}"),
                }
        raise not_found(f"projects/{project}/global/images/{name}")

    def family(self, project, family):
        if project != "cos-cloud" or family not in FAMILIES:
            raise not_found(f"projects/{project}/global/images/family/{family}")
        return self.image(project, FAMILIES[family])

    def wanted_image(self, url):
        """Return the image that a disk's URL names."""
        found = re.fullmatch(r"(?:.*/)?projects/([^/]+)/global/images/(family/)?([^/]+)", url)
        if not found:
            text = "The URL is malformed."
            raise invalid("resource.disks[0].initializeParams.sourceImage", url, text)
        return (self.family if found[2] else self.image)(found[1], found[3])

    # Methods --------------------------------------------------------------------------------------

    def handlers(self):
        return {
            "compute.zones.get": lambda call: self.zone(call.path["zone"]),
            "compute.regions.get": lambda call: self.region(call.path["region"]),
            "compute.machineTypes.aggregatedList": self.do_all_machine_types,
            "compute.images.get": lambda call: self.image(call.path["project"], call.path["image"]),
            "compute.images.getFromFamily": lambda call: self.family(
                call.path["project"], call.path["family"]
            ),
            "compute.projects.get": self.do_project,
        }

    def do_project(self, call):
        return {
            "kind": "compute#project",
            "id": "4711",
            "name": PROJECT,
            "defaultServiceAccount": DEFAULT_ACCOUNT,
            "commonInstanceMetadata": {"kind": "compute#metadata", "items": []},
            "quotas": [{"metric": "CPUS_ALL_REGIONS", "limit": 4800.0, "usage": 0.0}],
            "selfLink": link(PROJECT),
        }

    def do_all_machine_types(self, call):
        found = [shape for zone in zones() for shape in self.machine_types(zone).values()]
        items, more = page(call.query, found)
        return {
            "kind": "compute#machineTypeAggregatedList",
            "items": scoped(items, "machineTypes"),
            **more,
        }


def scoped(items, name, kind="zone"):
    """Return the items of an aggregated list by zone, or region; empty ones have a warning."""
    scopes = {}
    for place in zones() if kind == "zone" else REGIONS:
        here = [item for item in items if item[kind].rpartition("/")[2] == place]
        scope = f"{kind}s/{place}"
        if here:
            scopes[scope] = {name: here}
        else:
            warning = {
                "code": "NO_RESULTS_ON_PAGE",
                "message": f"There are no results for scope '{scope}' on this page.",
                "data": [{"key": "scope", "value": scope}],
            }
            scopes[scope] = {"warning": warning}
    return scopes


def needed(shape, resource):
    """Return metric -> amount that a machine takes from the quotas of its region."""
    series = shape["name"].partition("-")[0].upper()
    own = f"{series}_CPUS"
    spot = (resource.get("scheduling") or {}).get("provisioningModel") == "SPOT"
    cpus = shape["guestCpus"]
    found = {"INSTANCES": 1, own if own in QUOTAS else "CPUS": cpus}
    if spot:  # taken from the preemptible ones where the region has such a limit
        found["PREEMPTIBLE_CPUS"] = cpus
    for entry in shape.get("accelerators", ()):
        found[ACCELERATORS[entry["guestAcceleratorType"]]] = entry["guestAcceleratorCount"]
    for entry in resource.get("guestAccelerators") or ():
        kind = entry["acceleratorType"].rpartition("/")[2]
        if kind not in ACCELERATORS:
            raise ApiError(404, f"The resource '{entry['acceleratorType']}' was not found")
        metric = ACCELERATORS[kind]
        found[metric] = found.get(metric, 0) + entry["acceleratorCount"]
    found["IN_USE_ADDRESSES"] = sum(
        bool(nic.get("accessConfigs")) for nic in resource.get("networkInterfaces") or ()
    )
    return found
