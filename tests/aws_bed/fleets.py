"""CreateFleet of the type `instant`: instances of the first overrides that have capacity."""

import json

from moto.ec2.utils import random_fleet_id

from .errors import AwsError
from .launches import invalid, merged

#: Launch template configurations and overrides of one fleet.
MOST = 300


class Fleets:
    """Makes the instances of fleets."""

    def __init__(self, instances):
        self.instances = instances

    def create(self, request):
        """Return the answer to CreateFleet."""
        p = request.parameters
        if p.get("Type", "maintain") != "instant":
            raise invalid(
                "the test bed has fleets of the type instant only", "UnsupportedOperation"
            )
        tags = {}
        for one in p.get("TagSpecifications") or ():
            if one["ResourceType"] not in {"fleet", "instance", "volume"}:
                raise invalid(
                    f"'{one['ResourceType']}' is not a valid taggable resource type for this operation."
                )
            tags[one["ResourceType"]] = one
        options = [
            (config["LaunchTemplateSpecification"], override)
            for config in p["LaunchTemplateConfigs"]
            for override in config.get("Overrides") or [{}]
        ]
        if len(options) > MOST:
            raise invalid(f"A fleet may have {MOST} overrides at most.")
        fleet = random_fleet_id()
        made, errors = [], []
        for lifecycle, count in self.wanted(p):
            least = (p.get(f"{'Spot' if lifecycle == 'spot' else 'OnDemand'}Options") or {}).get(
                "MinTargetCapacity", 0
            )
            found, wrong = self.fill(request, options, lifecycle, count, tags, p)
            errors += wrong
            if sum(len(entry["InstanceIds"]) for entry in found) < least:
                self.take_back(request, found)
                continue
            made += found
        for entry in made:
            for name in entry["InstanceIds"]:
                instance = self.instances.runs[name].instance
                instance.add_tags({"aws:ec2:fleet-id": fleet})
        return {"FleetId": fleet, "Errors": errors, "Instances": made}

    @staticmethod
    def wanted(p):
        """Return lifecycle and number of instances, on demand first."""
        target = p["TargetCapacitySpecification"]
        total = target["TotalTargetCapacity"]
        spot = target.get("SpotTargetCapacity", 0)
        demand = target.get("OnDemandTargetCapacity", 0)
        if spot + demand > total:
            raise invalid(
                "The sum of the on-demand and spot target capacity is larger than the total."
            )
        usual = target.get("DefaultTargetCapacityType", "on-demand")
        rest = total - spot - demand
        counts = {"on-demand": demand, "spot": spot}
        counts[usual] += rest
        return [(name, count) for name, count in counts.items() if count]

    def fill(self, request, options, lifecycle, count, tags, p):
        """Make `count` instances of the first options that have capacity for all that is left."""
        made, errors = [], []
        ordered = self.ordered(options, lifecycle, p)
        for specification, override in ordered:
            if count <= 0:
                break
            told = {"LaunchTemplateSpecification": specification, "Overrides": override}
            weight = override.get("WeightedCapacity", 1)
            number = max(1, int(-(-count // weight)))
            names = []
            try:
                launch = self.read(request, specification, override, lifecycle, tags)
                for _ in range(number):
                    reservation = self.instances.launch(request.name, launch, 1)
                    names.append(reservation.instances[0].id)
                    count -= weight
            except AwsError as error:
                if error.code in {"UnauthorizedOperation", "UnsupportedOperation"}:
                    raise
                errors.append(
                    {
                        "LaunchTemplateAndOverrides": told,
                        "Lifecycle": lifecycle,
                        "ErrorCode": error.code,
                        "ErrorMessage": error.message,
                    }
                )
            if names:
                made.append(
                    {
                        "LaunchTemplateAndOverrides": told,
                        "Lifecycle": lifecycle,
                        "InstanceIds": names,
                        "InstanceType": launch.type,
                    }
                )
        return made, errors

    @staticmethod
    def ordered(options, lifecycle, p):
        """Return the options by priority where it counts, else as they are given."""
        key = "SpotOptions" if lifecycle == "spot" else "OnDemandOptions"
        strategy = (p.get(key) or {}).get("AllocationStrategy")
        if strategy in {"prioritized", "capacity-optimized-prioritized"}:
            return sorted(options, key=lambda option: option[1].get("Priority", 10**9))
        return options

    def read(self, request, specification, override, lifecycle, tags):
        """Return the launch of one override."""
        if "InstanceRequirements" in override:
            text = "the test bed does not know InstanceRequirements"
            raise invalid(text, "UnsupportedOperation")
        template = json.loads(
            json.dumps(self.instances.reader.template(request.region, specification), default=str)
        )
        given = {
            name: override[name]
            for name in ("InstanceType", "SubnetId", "ImageId", "Placement")
            if name in override
        }
        if "AvailabilityZone" in override:
            given["Placement"] = {"AvailabilityZone": override["AvailabilityZone"]}
        given["TagSpecifications"] = [one for name, one in tags.items() if name != "fleet"]
        if "SubnetId" in given:
            for interface in template.get("NetworkInterfaces") or ():
                interface.pop("SubnetId", None)
        if lifecycle == "spot":
            given["InstanceMarketOptions"] = {"MarketType": "spot"}
        return self.instances.reader.read(request, merged(template, given))

    def take_back(self, request, made):
        """Terminate what was made of a fleet that does not reach its minimum."""
        for entry in made:
            for name in entry["InstanceIds"]:
                run = self.instances.runs[name]
                self.instances.account.loop.call_soon_threadsafe(run.ask, "terminated")
