"""EC2 instances: the tasks that concern them, and the instances themselves."""

import base64
import json
import re
import secrets
import time
from copy import copy

from moto.core.serialize import EC2Serializer, XFormedAttributePicker
from moto.ec2.models import EC2Backend, ec2_backends
from moto.ec2.responses._base_response import EC2BaseResponse
from moto.ec2.utils import filter_dict_attribute_mapping, parse_user_data

from .errors import AwsError
from .fleets import Fleets
from .identities import ACCOUNT
from .instance_image import Image
from .instance_run import InstanceRun
from .launches import LaunchReader, invalid, merged
from .requests import model
from .task_definitions import check_tags

#: Codes of a lack of capacity and of a type that a zone does not have.
NO_CAPACITY = "InsufficientInstanceCapacity"
CONSOLE = 64 * 1024
GROUP_TEXT = re.compile(r"[a-zA-Z0-9. _:/()#,@\[\]+=&;{}!$*-]{1,255}")
#: Filters of DescribeInstances that moto lacks.
filter_dict_attribute_mapping |= {
    "client-token": "client_token",
    "instance-lifecycle": "lifecycle",
    "metadata-options.http-tokens": "metadata_options.http_tokens",
}


def serialized(operation, document):
    """Return the XML of an answer."""
    picker = XFormedAttributePicker(
        response_transformers=EC2BaseResponse.RESPONSE_KEY_PATH_TO_TRANSFORMER
    )
    made = EC2Serializer(
        operation_model=model("ec2").operation_model(operation),
        pretty_print=False,
        value_picker=picker,
    )
    return made.serialize(document)["body"]


class Instances:
    """All instances of the account."""

    def __init__(self, account):
        self.account = account
        self.reader = LaunchReader(account)
        self.image = Image(account.directory)
        self.fleets = Fleets(self)
        self.runs = {}
        self.tokens = {}
        hide_new(self)

    def answer(self, request):
        """Answer a call of EC2, with the lock held; None where moto answers."""
        method = getattr(self, f"on_{request.operation}", None)
        return method(request) if method else None

    def done(self, request):
        """Make real what moto has answered."""
        method = getattr(self, f"after_{request.operation}", None)
        if method:
            method(request)

    # Launches -------------------------------------------------------------------------------------

    def once(self, request, make):
        """Return the answer to a call with a client token, the same as before if it came before."""
        token = request.parameters.get("ClientToken")
        asked = json.dumps(request.parameters, sort_keys=True, default=str)
        key = (request.region, request.operation, token)
        if token and key in self.tokens:
            known, answer = self.tokens[key]
            if known != asked:
                raise invalid(
                    "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).",
                    "IdempotentParameterMismatch",
                )
            return answer() if callable(answer) else answer
        answer = make()
        if token:
            self.tokens[key] = (asked, answer)
        return answer

    def on_RunInstances(self, request):
        if request.parameters.get("DryRun"):
            raise AwsError(
                "DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412
            )
        reservation = self.once(request, lambda: self.run_instances(request))
        return serialized("RunInstances", reservation)

    def run_instances(self, request):
        p = dict(request.parameters)
        specification = p.pop("LaunchTemplate", None)
        template = self.reader.template(request.region, specification) if specification else {}
        launch = self.reader.read(request, merged(template, p))
        least, most = p["MinCount"], p["MaxCount"]
        if not 1 <= least <= most:
            raise invalid("MinCount must be at least 1 and at most MaxCount.")
        return self.launch(request.name, launch, most)

    def capacity(self, name, launch):
        """Raise the error of a lack of capacity where a fault wants it."""
        rule = self.account.faults.capacity_rule(
            name,
            zone=launch.zone,
            type=launch.type,
            provider="spot" if launch.spot else "on-demand",
        )
        if rule is None:
            return
        code = rule.fields.get("code") or NO_CAPACITY
        text = (
            rule.fields.get("reason")
            or f"We currently do not have sufficient {launch.type} capacity in the Availability Zone you requested ({launch.zone}). Our system will be working on provisioning additional capacity."
        )
        raise AwsError(code, text, 500 if code == NO_CAPACITY else 400)

    def launch(self, name, launch, count):
        """Make instances in moto and begin their lives; return moto's reservation."""
        self.capacity(name, launch)
        backend = ec2_backends[ACCOUNT][launch.region]
        addresses = self.account.addresses.take_some(count)
        reservation = backend.run_instances(
            image_id=launch.image,
            count=count,
            user_data=parse_user_data(launch.user_data_text),
            security_group_names=[],
            security_group_ids=launch.groups,
            instance_type=launch.type,
            is_instance_type_default=False,
            region_name=launch.region,
            subnet_id=launch.subnet,
            associate_public_ip=False,
            tags={"instance": launch.tags, "volume": launch.volume_tags},
            metadata_options=launch.metadata,
            instance_initiated_shutdown_behavior=launch.shutdown,
            lifecycle="spot" if launch.spot else None,
            client_token=launch.token,
            **({"block_device_mappings": devices(launch.devices)} if launch.devices else {}),
            **launch.others,
        )
        for instance, address in zip(reservation.instances, addresses, strict=True):
            self.furnish(backend, instance, launch, address)
        return reservation

    def furnish(self, backend, instance, launch, address):
        """Give an instance its address, its state and its life."""
        order = copy(launch)
        order.address = address
        interface = instance.nics[0]
        interface.private_ip_address = address
        interface.private_ip_addresses = [{"Primary": True, "PrivateIpAddress": address}]
        interface.public_ip = address if launch.public else None
        instance._state.name, instance._state.code = "pending", 0
        if launch.spot:
            instance.spot_instance_request_id = f"sir-{secrets.token_hex(4)}"
        if launch.profile_arn:
            backend.associate_iam_instance_profile(
                instance.id, iam_instance_profile_arn=launch.profile_arn
            )
        run = InstanceRun(self, launch.region, instance, order)
        self.runs[instance.id] = run
        self.account.loop.call_soon_threadsafe(run.begin)

    def on_CreateFleet(self, request):
        return serialized("CreateFleet", self.once(request, lambda: self.fleets.create(request)))

    # Other calls ----------------------------------------------------------------------------------

    def on_CreateTags(self, request):
        p = request.parameters
        tags = {tag["Key"]: tag.get("Value", "") for tag in p["Tags"]}
        for name in p["Resources"]:
            run = self.runs.get(name)
            known = {t["key"]: t["value"] for t in run.instance.get_tags()} if run else {}
            own = {k: v for k, v in (known | tags).items() if not k.startswith("aws:")}
            check_tags([{"Key": k, "Value": v} for k, v in own.items()], "InvalidParameterValue")

    def on_CreateSecurityGroup(self, request):
        p = request.parameters
        for name in ("GroupName", "Description"):
            if not GROUP_TEXT.fullmatch(p[name]) or p[name].startswith("sg-"):
                raise invalid(f"Invalid security group {name}: {p[name]}")

    def on_DeleteSecurityGroup(self, request):
        name = request.parameters.get("GroupId")
        backend = ec2_backends[ACCOUNT][request.region]
        used = any(name in {g.id for g in eni.group_set} for eni in backend.enis.values())
        referred = any(
            rule.source_group.get("GroupId") == name and group.id != name
            for groups in backend.groups.values()
            for group in groups.values()
            for rule in [*group.ingress_rules, *group.egress_rules]
        )
        if used or referred:
            raise invalid(f"resource {name} has a dependent object", "DependencyViolation")

    def on_CreateLaunchTemplate(self, request):
        self.reader.user_data(request.parameters["LaunchTemplateData"].get("UserData"))

    def on_GetConsoleOutput(self, request):
        run = self.find(request.parameters["InstanceId"])
        data = run.console.read_bytes()[-CONSOLE:] if run.console.exists() else b""
        document = {"InstanceId": run.id, "Output": base64.b64encode(data).decode()}
        return serialized("GetConsoleOutput", document)

    def changed(self, request, now, state):
        """Carry out what moto has done to instances: moto's state is the end of it."""
        for name in request.parameters["InstanceIds"]:
            run = self.runs[name]
            if run.ended:
                run.set("terminated")
                continue
            run.instance.nics[0].public_ip = run.order.address if run.order.public else None
            run.set(now)
            self.account.loop.call_soon_threadsafe(run.ask, state)

    def after_TerminateInstances(self, request):
        self.changed(request, "shutting-down", "terminated")

    # Instances ------------------------------------------------------------------------------------

    def find(self, name):
        if name not in self.runs:
            raise invalid(f"The instance ID '{name}' does not exist", "InvalidInstanceID.NotFound")
        return self.runs[name]

    def remove(self, run):
        """Remove what a terminated instance leaves, with the lock held."""
        if run.ended:
            return
        run.ended = True
        backend = ec2_backends[ACCOUNT][run.region]
        interface = run.instance.nics[0]
        backend.enis.pop(interface.id, None)
        interface.public_ip = None
        interface.private_ip_address = None
        run.instance.teardown_defaults()
        backend.iam_instance_profile_associations.pop(run.id, None)
        self.account.addresses.give_back(run.address)

    def close(self):
        """End every instance; return what is to be waited for."""
        going = [run for run in self.runs.values() if run.task and not run.task.done()]
        for run in going:
            run.wanted = "terminated"
            run.change.set()
            run.kill()
        return [run.task for run in going]


def hide_new(instances):
    """Let moto describe no instance before the time at which calls find it."""
    original = EC2Backend.all_reservations

    def all_reservations(backend, filters=None):
        reservations = original(backend, filters)
        hidden = {run.id for run in instances.runs.values() if run.seen_at > time.monotonic()}
        if not hidden:
            return reservations
        for reservation in reservations:
            reservation.instances = [i for i in reservation.instances if i.id not in hidden]
        return [reservation for reservation in reservations if reservation.instances]

    EC2Backend.all_reservations = all_reservations


def devices(mappings):
    """Return block devices as moto takes them; volumes end with their instance unless said."""
    found = []
    for mapping in mappings:
        if "Ebs" in mapping:
            ebs = {"DeleteOnTermination": True, **mapping["Ebs"]}
            found.append({"DeviceName": mapping.get("DeviceName", "/dev/xvda"), "Ebs": ebs})
    return found
