"""The life of one ECS task on Fargate."""

import asyncio
import logging
import secrets
import time
import uuid

from moto.logs.models import logs_backends

from .identities import ACCOUNT
from .logging_driver import LogStream
from .machines import Process, base_environment, hosts_mount
from .secret_values import SecretError, secret_value
from .task_definitions import number

#: Seconds until SIGKILL where the container definition does not say.
STOP_TIMEOUT = 30
#: Seconds of the notice of a spot interruption.
NOTICE = 120.0
#: What runs in place of the command of a hollow task.
HOLLOW = ["sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"]
logger = logging.getLogger("aws_bed")


class NotStartedError(Exception):
    """A task cannot start."""


class ContainerRun:
    """One container of a task."""

    def __init__(self, task, definition, override):
        self.definition = definition
        self.override = override
        self.name = definition["name"]
        self.arn = f"{task.arn.replace(':task/', ':container/')}/{uuid.uuid4()}"
        self.runtime = secrets.token_hex(16)
        self.status = "PENDING"
        self.exit_code = None
        self.reason = ""
        self.process = None
        self.logs = None

    @property
    def command(self):
        words = self.override.get("command") or self.definition.get("command") or []
        return [*(self.definition.get("entryPoint") or ()), *words] or ["python"]

    @property
    def stop_timeout(self):
        return self.definition.get("stopTimeout", STOP_TIMEOUT)

    def document(self, task):
        """Return what DescribeTasks says."""
        found = {
            "containerArn": self.arn,
            "taskArn": task.arn,
            "name": self.name,
            "image": self.definition["image"],
            "lastStatus": self.status,
            "networkInterfaces": [],
            "healthStatus": "UNKNOWN",
            "cpu": str(self.override.get("cpu", self.definition.get("cpu", 0))),
        }
        memory = self.override.get("memory", self.definition.get("memory"))
        if memory:
            found["memory"] = str(memory)
        if task.interface:
            address = {"attachmentId": task.attachment, "privateIpv4Address": task.address}
            found["networkInterfaces"] = [address]
        if self.process:
            found["runtimeId"] = f"{task.id}-{self.runtime}"
        if self.exit_code is not None:
            found["exitCode"] = self.exit_code
        if self.reason:
            found["reason"] = self.reason
        return found


class TaskRun:
    """One task; lives in the executor's loop, read from other threads."""

    def __init__(self, fargate, order, moto_task):
        self.fargate = fargate
        self.order = order
        self.moto_task = moto_task
        self.id = moto_task.id.replace("-", "")
        moto_task.id = self.id
        self.arn = moto_task.task_arn
        self.subnet = order.subnet
        self.attachment = str(uuid.uuid4())
        self.interface = None
        self.address = order.address
        self.status = "PROVISIONING"
        self.desired = "RUNNING"
        self.stop_code = ""
        self.stopped_reason = ""
        self.times = {"createdAt": time.time()}
        self.version = 1
        overrides = {
            entry["name"]: entry for entry in order.overrides.get("containerOverrides") or ()
        }
        self.containers = [
            ContainerRun(self, definition, overrides.get(definition["name"], {}))
            for definition in order.definition.container_definitions
        ]
        self.halt = asyncio.Event()
        #: Time at which calls that describe tasks begin to find it.
        self.seen_at = time.monotonic() + fargate.account.eventual
        #: Seconds for the containers to end once they have SIGTERM; None: as they say.
        self.grace = None
        self.task = None

    # Life -----------------------------------------------------------------------------------------

    def begin(self):
        self.task = asyncio.create_task(self.run())

    async def pause(self, seconds):
        """Wait some seconds, or until the task is told to stop."""
        try:
            await asyncio.wait_for(self.halt.wait(), seconds)
        except TimeoutError:
            return

    async def run(self):
        folder = self.fargate.directory / "tasks" / self.id
        try:
            await self.start(folder)
            if not self.halt.is_set():
                await self.live()
        except NotStartedError as error:
            self.ask("TaskFailedToStart", str(error))
        except OSError as error:
            self.ask("TaskFailedToStart", f"CannotStartContainerError: {error}")
        except Exception:
            logger.exception("task %s", self.id)
            self.ask("TaskFailedToStart", "InternalError: see the errors of the test bed")
        await self.finish()

    async def start(self, folder):
        """Go from PROVISIONING to RUNNING."""
        fault = self.fargate.faults.startup(self.order)
        await self.pause(fault.get("delay", self.fargate.delay))
        if fault.get("never"):
            await self.halt.wait()
        if self.halt.is_set():
            return
        self.fargate.attach(self)
        self.status = "PENDING"
        self.mark("connectivityAt", "pullStartedAt")
        await self.pause(self.fargate.delay)
        if self.halt.is_set():
            return
        if fault.get("error"):
            raise NotStartedError(fault["error"])
        self.mark("pullStoppedAt")
        environments = [self.environment(entry) for entry in self.containers]
        for entry, environment in zip(self.containers, environments, strict=True):
            self.open_logs(entry, folder)
            name = f"ip-{self.address.replace('.', '-')}"
            place = folder / entry.name
            mounts = hosts_mount(place, self.address, name)
            entry.process = Process(place, place / "log")
            directory = entry.definition.get("workingDirectory") or "/"
            command = HOLLOW if fault.get("hollow") else entry.command
            entry.process.start(command, environment, mounts, name, directory)
            entry.status = "RUNNING"
        self.status = "RUNNING"
        self.mark("startedAt")

    def open_logs(self, entry, folder):
        """Make the log stream of a container that has the driver awslogs."""
        configuration = entry.definition.get("logConfiguration") or {}
        if configuration.get("logDriver") != "awslogs":
            return
        options = configuration["options"]
        prefix = options.get("awslogs-stream-prefix")
        stream = f"{prefix}/{entry.name}/{self.id}" if prefix else entry.runtime
        backend = logs_backends[ACCOUNT][options["awslogs-region"]]
        entry.logs = LogStream(
            backend,
            self.fargate.lock,
            options["awslogs-group"],
            stream,
            folder / entry.name / "log",
        )
        may = self.fargate.may(self.order.execution_role)
        arn = f"arn:aws:logs:{options['awslogs-region']}:{ACCOUNT}:log-group:{options['awslogs-group']}"
        if not may("logs:CreateLogStream", f"{arn}:log-stream:{stream}"):
            text = (
                f"AccessDeniedException: the execution role may not logs:CreateLogStream on {arn}"
            )
            raise NotStartedError(
                f"ResourceInitializationError: failed to validate logger args: {text}"
            )
        try:
            entry.logs.open(options.get("awslogs-create-group") == "true")
        except LookupError as error:
            text = f"ResourceInitializationError: failed to validate logger args: create stream has been retried 1 times: failed to create Cloudwatch log stream: ResourceNotFoundException: {error}"
            raise NotStartedError(text) from error

    def environment(self, entry):
        """Return the environment of a container."""
        order = self.order
        name = f"ip-{self.address.replace('.', '-')}.ec2.internal"
        found = base_environment(self.address, name, self.fargate.endpoint)
        found |= {
            "AWS_DEFAULT_REGION": order.region,
            "AWS_REGION": order.region,
            "AWS_EXECUTION_ENV": "AWS_ECS_FARGATE",
            "ECS_CONTAINER_METADATA_URI": f"{self.fargate.metadata_url}/v3/{entry.runtime}",
            "ECS_CONTAINER_METADATA_URI_V4": f"{self.fargate.metadata_url}/v4/{entry.runtime}",
        }
        if order.task_role:
            found["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = (
                f"{self.fargate.metadata_url}/v2/credentials/{self.runtime_secret(entry)}"
            )
        for pair in [*(entry.definition.get("environment") or ())]:
            found[pair["name"]] = pair.get("value", "")
        may = self.fargate.may(order.execution_role)
        for secret in entry.definition.get("secrets") or ():
            try:
                with self.fargate.lock:
                    found[secret["name"]] = secret_value(secret["valueFrom"], order.region, may)
            except SecretError as error:
                raise NotStartedError(f"ResourceInitializationError: {error}") from error
        for pair in entry.override.get("environment") or ():
            found[pair["name"]] = pair.get("value", "")
        return found

    @staticmethod
    def runtime_secret(entry):
        """Return the part of the credentials' address that other containers do not know."""
        return f"{entry.runtime}-credentials"

    async def live(self):
        """Wait until an essential container ends or the task is told to stop, then end all."""
        waits = {asyncio.create_task(self.exited(entry)): entry for entry in self.containers}
        followers = [asyncio.create_task(e.logs.follow()) for e in self.containers if e.logs]
        halted = asyncio.create_task(self.halt.wait())
        pending = set(waits)
        while pending and not self.halt.is_set():
            done, _ = await asyncio.wait({*pending, halted}, return_when=asyncio.FIRST_COMPLETED)
            pending -= done
            ended = [waits[task] for task in done if task in waits]
            if not pending or any(e.definition.get("essential", True) for e in ended):
                self.ask("EssentialContainerExited", "Essential container in task exited")
        halted.cancel()
        self.status = "DEACTIVATING"
        self.mark("stoppingAt")
        self.status = "STOPPING"
        for entry in self.containers:
            if entry.process.running:
                entry.process.terminate()
                grace = entry.stop_timeout if self.grace is None else self.grace
                delay = min(grace, entry.stop_timeout)
                asyncio.get_running_loop().call_later(delay, entry.process.kill)
        if pending:
            await asyncio.wait(pending)
        for follower in followers:
            follower.cancel()
        for entry in self.containers:
            if entry.logs:
                entry.logs.copy(last=True)

    async def exited(self, entry):
        entry.exit_code = await entry.process.exited()
        entry.reason = entry.process.container.reason or entry.reason
        entry.status = "STOPPED"
        self.version += 1

    async def finish(self):
        """Go to STOPPED; the network interface is gone then."""
        self.mark("executionStoppedAt")
        self.status = "DEPROVISIONING"
        for entry in self.containers:
            if entry.process and entry.process.running:
                entry.process.kill()
                entry.exit_code = await entry.process.exited()
            entry.status = "STOPPED"
        self.desired = "STOPPED"
        self.fargate.detach(self)
        self.mark("stoppedAt")
        self.status = "STOPPED"

    # Ends -----------------------------------------------------------------------------------------

    def ask(self, code, reason):
        """Ask the task to stop, for the first reason that comes."""
        if not self.stop_code:
            self.stop_code, self.stopped_reason = code, reason
            self.desired = "STOPPED"
            self.version += 1
        self.halt.set()

    def interrupt(self, notice_s=None):
        """Take back a task of FARGATE_SPOT: SIGTERM, and SIGKILL at the end of the notice."""
        self.grace = NOTICE if notice_s is None else notice_s
        self.ask("SpotInterruption", "Your Spot Task was interrupted.")

    def kill(self):
        for entry in self.containers:
            if entry.process:
                entry.process.kill()

    def mark(self, *names):
        """Note that something happened now."""
        self.version += 1
        for name in names:
            self.times.setdefault(name, time.time())

    # Status ---------------------------------------------------------------------------------------

    @property
    def memory_limit(self):
        """Bytes that the task may use."""
        return number(self.order.memory) * 2**20

    def document(self, tags=False):
        """Return what DescribeTasks says."""
        order = self.order
        details = [{"name": "subnetId", "value": self.subnet}]
        state = "PRECREATED"
        if self.interface:
            state = "DELETED" if self.status == "STOPPED" else "ATTACHED"
            details += [
                {"name": "networkInterfaceId", "value": self.interface.id},
                {"name": "macAddress", "value": self.interface.mac_address},
                {"name": "privateDnsName", "value": order.private_name},
                {"name": "privateIPv4Address", "value": self.address},
            ]
        elif self.status == "STOPPED":
            state = "DELETED"
        found = {
            "taskArn": self.arn,
            "clusterArn": order.cluster.arn,
            "taskDefinitionArn": order.definition.arn,
            "availabilityZone": order.zone,
            "lastStatus": self.status,
            "desiredStatus": self.desired,
            "containers": [entry.document(self) for entry in self.containers],
            "attachments": [
                {
                    "id": self.attachment,
                    "type": "ElasticNetworkInterface",
                    "status": state,
                    "details": details,
                }
            ],
            "attributes": [{"name": "ecs.cpu-architecture", "value": "x86_64"}],
            "cpu": str(number(order.cpu)),
            "memory": str(number(order.memory)),
            "group": order.group,
            "overrides": order.overrides
            or {"containerOverrides": [], "inferenceAcceleratorOverrides": []},
            "launchType": "FARGATE",
            "platformVersion": "1.4.0",
            "platformFamily": "Linux",
            "healthStatus": "UNKNOWN",
            "enableExecuteCommand": False,
            "ephemeralStorage": {"sizeInGiB": 20},
            "version": self.version,
            "tags": self.moto_task.tags if tags else [],
            **self.times,
        }
        if order.provider:
            found["capacityProviderName"] = order.provider
        if order.started_by:
            found["startedBy"] = order.started_by
        if "connectivityAt" in self.times:
            found["connectivity"] = "CONNECTED"
        if self.stop_code:
            found |= {"stopCode": self.stop_code, "stoppedReason": self.stopped_reason}
        return found
