"""The methods of `compute.instances`."""

import asyncio
import copy
import itertools

from .catalogue import link, needed, region_of, scoped
from .errors import ApiError, invalid, not_found
from .filtering import page
from .identities import PROJECT
from .instance import Instance, fingerprint
from .operations import Failure
from .rules import check_instance, check_metadata

#: Largest number of bytes of a serial port that one answer has, and that are kept.
CONSOLE = 2**20


class Instances:
    """All instances of the project."""

    def __init__(self, bed):
        self.bed = bed
        self.found = {}
        self.numbers = itertools.count(6_000_000_000_000_000_001)
        bed.catalogue.usage = self.usage
        bed.networks.used = self.links

    def links(self):
        for instance in self.found.values():
            nics = instance.resource["networkInterfaces"]
            used = [nic[key] for nic in nics for key in ("network", "subnetwork")]
            yield instance.resource["selfLink"], used

    def usage(self, region):
        """Return metric -> what the instances of a region take from its quotas."""
        sums = {}
        for instance in self.found.values():
            if region_of(instance.zone) == region and instance.status != "TERMINATED":
                for metric, amount in needed(instance.shape, instance.resource).items():
                    sums[metric] = sums.get(metric, 0) + amount
        return sums

    def forget(self, instance):
        self.found.pop((instance.zone, instance.resource["name"]), None)

    def one(self, zone, name):
        self.bed.catalogue.zone(zone)
        if (zone, name) not in self.found:
            raise not_found(f"projects/{PROJECT}/zones/{zone}/instances/{name}")
        return self.found[zone, name]

    def named(self, name):
        """Return the instance of a name in whatever zone."""
        found = [i for (_, known), i in self.found.items() if known == name]
        if not found:
            raise ValueError(f"there is no instance {name}")
        return found[0]

    def of(self, call):
        return self.one(call.path["zone"], call.path["instance"])

    def handlers(self):
        names = (
            "insert list aggregatedList get delete setMetadata getSerialPortOutput "
            "getGuestAttributes"
        )
        return {f"compute.instances.{n}": getattr(self, f"do_{n}") for n in names.split()}

    # Make -----------------------------------------------------------------------------------------

    def do_insert(self, call):
        if earlier := self.bed.operations.earlier(call):
            return earlier
        zone = call.path["zone"]
        for key in ("sourceInstanceTemplate", "sourceMachineImage"):
            if key in call.query:
                raise ApiError(501, f"the test bed does not have {key}")
        self.bed.catalogue.zone(zone)
        instance = self.make(call, zone, call.body)
        operation = self.bed.operations.begin(call, f"zones/{zone}", "insert", instance.path)
        operation.json["targetId"] = instance.resource["id"]
        instance.begin(operation, self.failure(instance))
        return operation.json

    def make(self, call, zone, wanted):
        """Return a new instance, not yet started."""
        name = wanted["name"]
        wanted = copy.deepcopy(wanted)
        if not wanted.get("networkInterfaces"):
            text = "At least one network interface is required."
            raise invalid("resource.networkInterfaces", "", text)
        shape = check_instance(wanted, zone, self.bed.catalogue, self.bed.identities)
        if wanted.get("serviceAccounts"):
            path = f"projects/{PROJECT}/serviceAccounts/{wanted['serviceAccounts'][0]['email']}"
            self.bed.identities.require(call.identity, "iam.serviceAccounts.actAs", path)
        if (zone, name) in self.found:
            path = f"projects/{PROJECT}/zones/{zone}/instances/{name}"
            raise ApiError(409, f"The resource '{path}' already exists")
        needed(shape, wanted)
        instance = Instance(self, zone, str(next(self.numbers)), wanted, shape)
        self.found[zone, name] = instance
        return instance

    def failure(self, instance):
        """Return the `Failure` by which the making of an instance will end; None if it will not."""
        region = region_of(instance.zone)
        limits = self.bed.catalogue.limits[region]
        used = self.usage(region)
        wants = needed(instance.shape, instance.resource)
        for metric, amount in wants.items():
            limit = limits.get(metric)
            if metric == "PREEMPTIBLE_CPUS" and not limit:
                continue  # no limit of their own: they count as other CPUs
            if limit is not None and amount and used.get(metric, 0) > limit:
                text = f"Quota '{metric}' exceeded.  Limit: {limit} in region {region}."
                return Failure("QUOTA_EXCEEDED", text, 403, "FORBIDDEN")
        return self.bed.faults.exhausted(instance.zone, instance.shape["name"])

    # Ask ------------------------------------------------------------------------------------------

    def do_list(self, call):
        zone = call.path["zone"]
        self.bed.catalogue.zone(zone)
        here = [i.resource for (where, _), i in self.found.items() if where == zone]
        items, more = page(call.query, here)
        path = link(f"{PROJECT}/zones/{zone}/instances")
        return {"kind": "compute#instanceList", "selfLink": path, "items": items, **more}

    def do_aggregatedList(self, call):
        items, more = page(call.query, [i.resource for i in self.found.values()])
        kind = "compute#instanceAggregatedList"
        return {"kind": kind, "items": scoped(items, "instances"), **more}

    def do_get(self, call):
        return self.of(call).resource

    def do_getSerialPortOutput(self, call):
        instance = self.of(call)
        if int(call.query.get("port") or 1) != 1:
            raise invalid("port", call.query["port"], "The test bed has port 1 only.")
        data = instance.machine.console.read_bytes() if instance.machine else b""
        start = int(call.query.get("start") or 0)
        if start < 0:
            start = max(len(data) + start, 0)
        start = max(start, len(data) - CONSOLE)
        part = data[start : start + CONSOLE]
        return {
            "kind": "compute#serialPortOutput",
            "contents": part.decode(errors="replace"),
            "start": str(start),
            "next": str(start + len(part)),
            "selfLink": instance.resource["selfLink"] + "/serialPort",
        }

    def do_getGuestAttributes(self, call):
        instance = self.of(call)
        query = call.query.get("queryPath", "").strip("/")
        space, _, key = query.partition("/")
        there = instance.machine.metadata.guest_attributes if instance.machine else {}
        items = [
            {"namespace": s, "key": k, "value": value}
            for s, entries in there.items()
            for k, value in entries.items()
            if space in {"", s} and key in {"", k}
        ]
        if not items:
            raise not_found(f"projects/{PROJECT}/{instance.path}/guestAttributes/{query}")
        kind = "compute#guestAttributes"
        return {"kind": kind, "queryPath": f"{query}/", "queryValue": {"items": items}}

    # Change ---------------------------------------------------------------------------------------

    def done(self, call, instance, kind):
        operation = self.bed.operations.begin(call, f"zones/{instance.zone}", kind, instance.path)
        operation.json["targetId"] = instance.resource["id"]
        operation.finish()
        return operation.json

    def do_setMetadata(self, call):
        if earlier := self.bed.operations.earlier(call):
            return earlier
        instance = self.of(call)
        body = call.body
        self.current(
            body.get("fingerprint"), instance.resource["metadata"]["fingerprint"], "Metadata"
        )
        check_metadata(body)
        metadata = {"kind": "compute#metadata", "items": body.get("items") or []}
        metadata["fingerprint"] = fingerprint(metadata)
        instance.resource["metadata"] = metadata
        if instance.machine is not None:
            instance.machine.metadata.notify()
        return self.done(call, instance, "setMetadata")

    @staticmethod
    def current(given, own, what):
        if given != own:
            text = f"{what} fingerprint either invalid or resource labels have changed"
            raise ApiError(412, text)

    # End ------------------------------------------------------------------------------------------

    def do_delete(self, call):
        if earlier := self.bed.operations.earlier(call):
            return earlier
        instance = self.of(call)
        operation = self.bed.operations.begin(
            call, f"zones/{instance.zone}", "delete", instance.path
        )
        earlier = instance.stopping
        instance.stopping = asyncio.create_task(self.after(earlier, instance, operation))
        return operation.json

    async def after(self, earlier, instance, operation):
        """Delete an instance when what ends it already has done so."""
        if earlier is not None:
            await asyncio.wait([earlier])
        if instance.gone:
            operation.finish()
        else:
            await instance.delete("delete", operation)
