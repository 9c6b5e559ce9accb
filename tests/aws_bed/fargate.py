"""ECS tasks on Fargate: the tasks that concern them, and the tasks themselves."""

import json
import time
from types import SimpleNamespace

from moto.ec2.models import ec2_backends
from moto.ecs.models import Task, ecs_backends

from .errors import AwsError
from .identities import ACCOUNT
from .machines import NoAddressError
from .orders import OrderReader, find_cluster, invalid
from .task_definitions import check_definition, check_tags
from .task_run import TaskRun

#: Tasks in one call of DescribeTasks or one page of ListTasks.
PAGE = 100
UNAVAILABLE = "Capacity is unavailable at this time. Please try again later or in a different availability zone"
#: Longest reason that StopTask takes.
REASON = 1024


class Fargate:
    """All tasks of the account."""

    def __init__(self, account):
        self.account = account
        self.directory = account.directory
        self.lock = account.lock
        self.faults = account.faults
        self.endpoint = account.endpoint
        self.metadata_url = account.metadata_url
        self.reader = OrderReader(account)
        #: region -> ARN -> task
        self.tasks = {}
        self.tokens = {}

    @property
    def delay(self):
        """Seconds that PROVISIONING and PENDING take."""
        return self.account.delay

    def may(self, role):
        """Return the function that tells whether a role may do something."""
        return lambda action, resource: self.account.permissions.role_may(role, action, resource)

    # Calls: each returns the answer's document, or None where moto answers ------------------------

    def answer(self, request):
        """Answer a call of ECS, with the lock held."""
        method = getattr(self, f"on_{request.operation}", None)
        return method(request) if method else None

    def on_RegisterTaskDefinition(self, request):
        check_definition(request.parameters, self.account)

    def on_CreateCluster(self, request):
        check_tags(request.parameters.get("tags") or [])

    def on_TagResource(self, request):
        check_tags(request.parameters["tags"])
        run = self.find(request.region, request.parameters["resourceArn"])
        if run is None:
            return None
        kept = {tag["key"]: tag for tag in run.moto_task.tags}
        kept |= {tag["key"]: tag for tag in request.parameters["tags"]}
        check_tags(list(kept.values()))
        run.moto_task.tags = list(kept.values())
        return {}

    def on_DeleteCluster(self, request):
        backend = ecs_backends[ACCOUNT][request.region]
        cluster = find_cluster(backend, request.parameters["cluster"])
        if any(
            r.order.cluster is cluster and r.status != "STOPPED"
            for r in self.visible(request.region)
        ):
            text = "The Cluster cannot be deleted while Tasks are active."
            raise AwsError("ClusterContainsTasksException", text)

    def on_RunTask(self, request):
        token = request.parameters.get("clientToken")
        asked = json.dumps(request.parameters, sort_keys=True)
        if token and len(token) > 64:
            raise invalid("clientToken may have 64 characters at most.")
        known = self.tokens.get((request.region, token)) if token else None
        if known:
            if known[0] != asked:
                text = "The RunTask request could not be processed due to conflicts. The provided clientToken is already being used with a different RunTask request."
                raise AwsError("ConflictException", text, resourceIds=[r.arn for r in known[1]])
            return self.made(known[1], known[2])
        runs, failures = [], []
        for order in self.reader.read(request):
            rule = self.faults.capacity_rule(
                request.name, zone=order.zone, provider=order.provider or "FARGATE"
            )
            reason = (rule.fields.get("reason") or UNAVAILABLE) if rule else ""
            try:
                if not reason:
                    order.address = self.account.addresses.take()
            except NoAddressError:
                reason = "RESOURCE:ENI"
            if reason:
                failures.append({"reason": reason})
                continue
            runs.append(self.make(order))
        if token and runs:
            self.tokens[request.region, token] = (asked, runs, failures)
        for run in runs:
            self.account.loop.call_soon_threadsafe(run.begin)
        return self.made(runs, failures)

    @staticmethod
    def made(runs, failures):
        return {"tasks": [run.document(tags=True) for run in runs], "failures": failures}

    def make(self, order):
        """Make a task and note it in moto, where tags of resources are asked for."""
        backend = ecs_backends[ACCOUNT][order.region]
        light = SimpleNamespace(
            network_mode="bridge",
            arn=order.definition.arn,
            container_definitions=order.definition.container_definitions,
        )
        noted = Task(
            cluster=order.cluster,
            task_definition=light,
            container_instance_arn=None,
            resource_requirements={},
            backend=backend,
            group=order.group,
            launch_type="FARGATE",
            started_by=order.started_by,
            tags=order.tags,
        )
        run = TaskRun(self, order, noted)
        backend.tasks.setdefault(order.cluster.name, {})[run.arn] = noted
        self.tasks.setdefault(order.region, {})[run.arn] = run
        return run

    def on_DescribeTasks(self, request):
        p = request.parameters
        if not 1 <= len(p["tasks"]) <= PAGE:
            raise invalid(f"Tasks must have between 1 and {PAGE} entries.")
        cluster = find_cluster(ecs_backends[ACCOUNT][request.region], p.get("cluster"))
        tasks, failures = [], []
        for wanted in dict.fromkeys(p["tasks"]):
            run = self.find(request.region, wanted)
            if run is None or run.order.cluster is not cluster:
                arn = f"arn:aws:ecs:{request.region}:{ACCOUNT}:task/{cluster.name}/{wanted.rpartition('/')[2]}"
                failures.append({"arn": arn, "reason": "MISSING"})
            else:
                tasks.append(run.document("TAGS" in (p.get("include") or ())))
        return {"tasks": tasks, "failures": failures}

    def on_ListTasks(self, request):
        p = request.parameters
        cluster = find_cluster(ecs_backends[ACCOUNT][request.region], p.get("cluster"))
        size = p.get("maxResults", PAGE)
        if not 1 <= size <= PAGE:
            raise invalid(f"maxResults must be between 1 and {PAGE}.")
        desired = p.get("desiredStatus", "RUNNING")
        found = sorted(
            run.arn
            for run in self.visible(request.region)
            if run.order.cluster is cluster
            and run.desired == desired
            and p.get("startedBy") in {None, run.order.started_by}
            and p.get("family") in {None, run.order.definition.family}
            and p.get("launchType") in {None, "FARGATE"}
            and not p.get("containerInstance")
        )
        after = p.get("nextToken", "")
        if after and after not in found and not after.startswith("arn:"):
            raise invalid("Invalid token.")
        rest = [arn for arn in found if arn > after]
        answer = {"taskArns": rest[:size]}
        if len(rest) > size:
            answer["nextToken"] = rest[size - 1]
        return answer

    def on_StopTask(self, request):
        p = request.parameters
        find_cluster(ecs_backends[ACCOUNT][request.region], p.get("cluster"))
        run = self.find(request.region, p["task"])
        if run is None:
            raise invalid("The referenced task was not found.")
        if len(p.get("reason", "")) > REASON:
            raise invalid(f"The reason may have {REASON} characters at most.")
        if run.desired != "STOPPED":
            run.stop_code, run.desired = "UserInitiated", "STOPPED"
            run.stopped_reason = p.get("reason") or "Task stopped by user"
            run.version += 1
            self.account.loop.call_soon_threadsafe(run.halt.set)
        return {"task": run.document(tags=True)}

    # Tasks ----------------------------------------------------------------------------------------

    def find(self, region, wanted):
        """Return a task by its ARN or its id."""
        identity = wanted.rpartition("/")[2]
        for run in self.visible(region):
            if wanted == run.arn or identity == run.id:
                return run
        return None

    def visible(self, region):
        """Return the tasks that calls find already."""
        now = time.monotonic()
        return [run for run in self.tasks.get(region, {}).values() if run.seen_at <= now]

    def every(self):
        """Return all tasks of all regions."""
        return [run for own in self.tasks.values() for run in own.values()]

    def attach(self, run):
        """Make the network interface of a task."""
        order = run.order
        with self.lock:
            backend = ec2_backends[ACCOUNT][order.region]
            interface = backend.create_network_interface(
                subnet=order.subnet,
                private_ip_address=order.address,
                group_ids=order.groups,
                description=f"{run.arn}",
            )
            interface.status = "in-use"
            interface.device_index = 1
            if order.public:
                interface.public_ip = order.address
            run.interface = interface

    def detach(self, run):
        """Remove the network interface of a task and free its address."""
        with self.lock:
            if run.interface is not None:
                backend = ec2_backends[ACCOUNT][run.order.region]
                backend.enis.pop(run.interface.id, None)
            self.account.addresses.give_back(run.address)

    def close(self):
        """End every task; return what is to be waited for."""
        going = [run for run in self.every() if run.task is not None and not run.task.done()]
        for run in going:
            run.halt.set()
            run.kill()
        return [run.task for run in going]
