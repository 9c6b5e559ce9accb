"""The life of one instance, from PROVISIONING to TERMINATED."""

import asyncio
import base64
import copy
import hashlib
import json
import logging

from .catalogue import FAMILIES, link, region_of
from .identities import PROJECT
from .machine import Machine
from .operations import Failure, now

logger = logging.getLogger("gcp_bed")
SCHEDULING = {
    "onHostMaintenance": "MIGRATE",
    "automaticRestart": True,
    "preemptible": False,
    "provisioningModel": "STANDARD",
}


def fingerprint(value):
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
    return base64.urlsafe_b64encode(digest[:8]).decode()


class Instance:
    """An instance: its resource, and the machine while there is one."""

    def __init__(self, instances, zone, number, wanted, shape):
        self.instances = instances
        self.bed = instances.bed
        self.zone = zone
        self.shape = shape
        self.address = None
        self.machine = None
        self.preempted = False
        self.maintenance = "NONE"
        #: The task that starts it and waits for its end.
        self.life = None
        #: Set when it runs, or cannot be made.
        self.settled = asyncio.Event()
        #: The task that stops it.
        self.stopping = None
        self.gone = False
        self.resource = self.describe(number, copy.deepcopy(wanted))
        self.image = wanted["disks"][0]["initializeParams"]["sourceImage"]
        if "/family/" in self.image:
            family = self.image.rpartition("/")[2]
            self.image = f"projects/cos-cloud/global/images/{FAMILIES[family]}"

    @property
    def path(self):
        return f"zones/{self.zone}/instances/{self.resource['name']}"

    @property
    def status(self):
        return self.resource["status"]

    @status.setter
    def status(self, status):
        self.resource["status"] = status
        if status == "RUNNING":
            self.resource["lastStartTimestamp"] = now()
        if status == "TERMINATED":
            self.resource["lastStopTimestamp"] = now()

    @property
    def spot(self):
        return self.resource["scheduling"]["preemptible"]

    def has_guest_attributes(self):
        """Whether the machine may write guest attributes."""
        items = self.resource["metadata"].get("items") or ()
        found = {item["key"]: item["value"] for item in items}
        return found.get("enable-guest-attributes", "").upper() == "TRUE"

    def describe(self, number, resource):
        """Return the resource of an instance as it is shown."""
        zone = self.zone
        scheduling = resource.get("scheduling") or {}
        preemptible = scheduling.get("preemptible") or scheduling.get("provisioningModel") == "SPOT"
        defaults = dict(SCHEDULING)
        if preemptible:
            defaults |= {"automaticRestart": False, "onHostMaintenance": "TERMINATE"}
        if scheduling.get("provisioningModel") == "SPOT":
            defaults["instanceTerminationAction"] = "STOP"
        resource["scheduling"] = defaults | scheduling | {"preemptible": bool(preemptible)}
        metadata = {"kind": "compute#metadata"} | (resource.get("metadata") or {})
        metadata["fingerprint"] = fingerprint(metadata)
        resource["metadata"] = metadata
        resource["labelFingerprint"] = fingerprint(resource.get("labels") or {})
        tags = resource.setdefault("tags", {})
        tags["fingerprint"] = fingerprint(tags)
        region = region_of(zone)
        for index, nic in enumerate(resource["networkInterfaces"]):
            where = f"resource.networkInterfaces[{index}]"
            network, subnetwork = self.bed.networks.interface(nic, region, where)
            nic |= {
                "kind": "compute#networkInterface",
                "name": f"nic{index}",
                "network": network["selfLink"],
                "subnetwork": subnetwork["selfLink"],
                "stackType": "IPV4_ONLY",
            }
        for index, disk in enumerate(resource["disks"]):
            name = f"{resource['name']}-{index}" if index else resource["name"]
            wanted = disk.pop("initializeParams")
            disk |= {
                "kind": "compute#attachedDisk",
                "type": disk.get("type", "PERSISTENT"),
                "mode": "READ_WRITE",
                "index": index,
                "deviceName": disk.get("deviceName", f"persistent-disk-{index}"),
                "diskSizeGb": str(wanted.get("diskSizeGb") or 10),
                "source": link(f"{PROJECT}/zones/{zone}/disks/{wanted.get('diskName', name)}"),
            }
        return resource | {
            "kind": "compute#instance",
            "id": number,
            "creationTimestamp": now(),
            "status": "PROVISIONING",
            "cpuPlatform": "Intel Broadwell",
            "zone": link(f"{PROJECT}/zones/{zone}"),
            "machineType": link(f"{PROJECT}/zones/{zone}/machineTypes/{self.shape['name']}"),
            "selfLink": link(f"{PROJECT}/zones/{zone}/instances/{resource['name']}"),
            "startRestricted": False,
            "deletionProtection": bool(resource.get("deletionProtection")),
        }

    # Start ----------------------------------------------------------------------------------------

    def begin(self, operation, failure=None):
        """Start the machine in a task; `failure` is why the operation is to fail, if it is."""
        self.preempted = False
        self.stopping = None
        self.settled.clear()
        self.life = asyncio.create_task(self.live(operation, failure))
        self.life.add_done_callback(self.log_failure)

    def log_failure(self, task):
        self.settled.set()
        if not task.cancelled() and task.exception():
            logger.error("instance %s", self.path, exc_info=task.exception())

    async def live(self, operation, failure):
        settings = self.bed.settings
        await asyncio.sleep(settings["pending"])
        operation.run()
        await asyncio.sleep(settings["provisioning"])
        if failure is None:
            failure = self.take_address()
        if failure is not None:
            self.remove()
            operation.finish(failure)
            return
        self.status = "STAGING"
        await asyncio.sleep(settings["staging"])
        if self.machine is None:
            self.machine = Machine(self, self.bed)
        await self.machine.start(self.bed.faults.boots(self.resource["name"]))
        self.status = "RUNNING"
        self.settled.set()
        operation.finish()
        limit = self.resource["scheduling"].get("maxRunDuration")
        seconds = int(limit["seconds"]) * settings["run_scale"] if limit else None
        try:
            async with asyncio.timeout(seconds):
                await self.machine.exited()
        except TimeoutError:
            self.order_end()
            return
        if self.stopping is None:  # its processes have ended it: `poweroff`
            self.stopping = asyncio.create_task(self.stop("compute.instances.guestTerminate"))

    def take_address(self):
        """Give the instance its address; return a `Failure` if there is none left."""
        self.address = self.bed.addresses.take()
        if self.address is None:
            text = f"IP space of 'projects/{PROJECT}/regions/{region_of(self.zone)}/subnetworks/default' is exhausted."
            return Failure("IP_SPACE_EXHAUSTED", text)
        for nic in self.resource["networkInterfaces"]:
            nic["networkIP"] = self.address
            for entry in nic.get("accessConfigs") or ():
                entry.setdefault("name", "External NAT")
                entry.setdefault("type", "ONE_TO_ONE_NAT")
                entry["kind"], entry["natIP"] = "compute#accessConfig", self.address
        return None

    # End ------------------------------------------------------------------------------------------

    def order_end(self, kind="", grace=None):
        """End the instance as its termination action says: it is stopped, or deleted."""
        if self.stopping is None:
            action = self.resource["scheduling"].get("instanceTerminationAction")
            ending = self.delete if action == "DELETE" else self.stop
            kind = kind or ("delete" if action == "DELETE" else "stop")
            self.stopping = asyncio.create_task(ending(kind, grace=grace))

    def preempt(self):
        """Take the machine back: a notice now, the end when its time is over."""
        if self.stopping is None and self.status == "RUNNING":
            self.preempted = True
            self.machine.metadata.notify()
            self.order_end("compute.instances.preempted", self.bed.settings["notice"])

    async def end_machine(self, grace):
        self.status = "STOPPING"
        if self.machine is not None:
            await self.machine.stop(self.bed.settings["shutdown"] if grace is None else grace)
        if self.address is not None:
            self.bed.addresses.give_back(self.address)
            self.address = None

    async def stop(self, kind, operation=None, grace=None):
        """End the machine's processes and keep the instance."""
        if operation is None:
            operation = self.bed.operations.make(f"zones/{self.zone}", kind, self.path)
        operation.json["targetId"] = self.resource["id"]
        operation.run()
        await self.end_machine(grace)
        if not self.gone:
            self.status = "TERMINATED"
            for nic in self.resource["networkInterfaces"]:
                for entry in nic.get("accessConfigs") or ():
                    entry.pop("natIP", None)
        operation.finish()

    async def delete(self, kind, operation=None, grace=None):
        """End the machine's processes and remove the instance."""
        if operation is None:
            operation = self.bed.operations.make(f"zones/{self.zone}", kind, self.path)
        operation.json["targetId"] = self.resource["id"]
        operation.run()
        await asyncio.sleep(self.bed.settings["pending"])
        await self.settled.wait()
        if self.status != "TERMINATED" and not self.gone:
            await self.end_machine(grace)
        self.remove()
        operation.finish()

    def remove(self):
        """Forget the instance."""
        self.gone = True
        if self.address is not None:
            self.bed.addresses.give_back(self.address)
            self.address = None
        self.instances.forget(self)
