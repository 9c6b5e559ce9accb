"""The life of one EC2 instance."""

import asyncio
import base64
import contextlib
import datetime as dt
import json
import logging
import sys
import time
from pathlib import Path

from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import StateReason
from moto.logs.models import logs_backends

from .identities import ACCOUNT
from .instance_image import PLACE
from .instance_metadata import InstanceMetadata
from .logging_driver import PERIOD, LogStream
from .machines import Process, base_environment

#: State of an instance -> its number.
STATES = {
    "pending": 0,
    "running": 16,
    "shutting-down": 32,
    "terminated": 48,
    "stopping": 64,
    "stopped": 80,
}
USER = "Client.UserInitiatedShutdown", "User initiated shutdown"
SELF = "Client.InstanceInitiatedShutdown", "Instance initiated shutdown"
SPOT = "Server.SpotInstanceTermination", "Spot instance termination"
#: Seconds of the notice of a spot interruption.
NOTICE = 120.0
#: Seconds that processes of an instance have at its shutdown.
PATIENCE = 30.0
logger = logging.getLogger("aws_bed")


def moment(seconds=0.0):
    """Return the time in some seconds as AWS writes it."""
    then = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
    return then.strftime("%Y-%m-%dT%H:%M:%SZ")


class InstanceRun:
    """One instance; lives in the executor's loop, its state is moto's."""

    def __init__(self, ec2, region, instance, order):
        self.ec2 = ec2
        self.region = region
        self.instance = instance
        self.order = order
        self.id = instance.id
        self.address = order.address
        self.folder = ec2.account.directory / "instances" / self.id
        self.process = None
        self.metadata = None
        self.task = None
        #: What the instance shall become, and why: set by calls and by itself.
        self.wanted = ""
        self.reason = USER
        self.change = asyncio.Event()
        #: What spot notices the metadata service shows.
        self.notices = {}
        #: Whether it is terminated and what it had is removed.
        self.ended = False
        #: Whether its processes were killed.
        self.dead = False
        #: Time at which calls that describe instances begin to find it.
        self.seen_at = time.monotonic() + ec2.account.eventual
        self.streams = {}

    @property
    def interface(self):
        return self.instance.nics[0]

    @property
    def state(self):
        return self.instance.state

    def set(self, name):
        with self.ec2.account.lock:
            self.instance._state.name = name
            self.instance._state.code = STATES[name]

    # Life -----------------------------------------------------------------------------------------

    def begin(self):
        self.task = asyncio.create_task(self.run())

    async def run(self):
        try:
            await self.live()
        except Exception:
            logger.exception("instance %s", self.id)
            await self.end("terminated", ("Server.InternalError", "Internal error on launch"))

    async def live(self):
        """From pending to terminated, through any number of stops."""
        fault = self.ec2.account.faults.startup(self.order)
        await self.pause(fault.get("delay", self.ec2.account.delay))
        if fault.get("error"):
            await self.end("terminated", ("Server.InternalError", fault["error"]))
            return
        if not self.wanted:
            self.set("running")
            await self.boot(fault.get("never", False))
            await self.work()
        target = self.wanted or self.by_itself()
        await self.end(target, self.reason)

    def by_itself(self):
        """Return what the instance becomes when it shuts itself down."""
        self.reason = SELF
        behavior = self.instance.instance_initiated_shutdown_behavior
        return "terminated" if behavior == "terminate" or self.order.spot else "stopped"

    async def pause(self, seconds):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.change.wait(), seconds)

    async def boot(self, never):
        """Start the metadata service and the processes."""
        self.metadata = InstanceMetadata(self)
        url = await self.metadata.start()
        self.folder.mkdir(parents=True, exist_ok=True)
        name = self.instance.private_dns_name
        environment = base_environment(
            self.address, name.partition(".")[0], self.ec2.account.endpoint
        )
        environment["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = url
        inner = environment["PATH"]
        environment["PATH"] = f"{PLACE}/bin:{inner}"
        configuration = self.folder / "instance.json"
        told = {
            "never": never,
            "user_data": base64.b64encode(self.order.user_data).decode(),
            "patience": PATIENCE,
            "path": inner,
            "home": environment["HOME"],
            "python": sys.executable,
        }
        configuration.write_text(json.dumps(told))
        configuration.chmod(0o600)
        mounts = self.ec2.image.mounts(self.folder, configuration)
        hosts = self.folder / "own" / "etc" / "hosts"
        hosts.unlink(missing_ok=True)
        hosts.write_text(f"127.0.0.1 localhost\n{self.address} {name}\n")
        self.process = Process(self.folder, self.folder / "console")
        first = [sys.executable, "-I", f"{PLACE}/inside/first.py"]
        self.process.start(first, environment, mounts, name.partition(".")[0])

    async def work(self):
        """Wait until the instance shuts down, by itself or because it is told to."""
        exited = asyncio.create_task(self.process.exited())
        told = asyncio.create_task(self.change.wait())
        logs = asyncio.create_task(self.follow_logs())
        await asyncio.wait({exited, told}, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if not exited.done():
            self.set("shutting-down" if self.wanted == "terminated" else "stopping")
            deadline = time.monotonic() + PATIENCE + 5
            while not exited.done():
                if self.dead or time.monotonic() > deadline:
                    self.process.kill()
                else:
                    self.process.terminate()  # lost if the instance is just starting
                await asyncio.wait({exited}, timeout=0.5)
        logs.cancel()
        self.copy_logs(last=True)

    async def end(self, state, reason):
        """Become stopped or terminated."""
        if self.metadata is not None:
            await self.metadata.close()
        code, text = reason
        self.seen_at = 0.0
        with self.ec2.account.lock:
            if state == "terminated" or self.wanted == "terminated":
                self.ec2.remove(self)
                state = "terminated"
            self.instance.state_reason = StateReason(f"{code}: {text}", code)
            when = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M:%S GMT")
            self.instance._reason = (
                f"{'Service' if code.startswith('Server') else 'User'} initiated ({when})"
            )
            self.set(state)

    # Logs -----------------------------------------------------------------------------------------

    async def follow_logs(self):
        while True:
            await asyncio.sleep(PERIOD)
            self.copy_logs()

    def copy_logs(self, last=False):
        """Write what containers with the log driver awslogs said into CloudWatch."""
        for path in self.containers():
            with contextlib.suppress(OSError, ValueError, LookupError):
                state = json.loads(path.read_text())
                if state.get("log_driver") == "awslogs":
                    self.stream(path.parent, state).copy(last)

    def stream(self, folder, state):
        """Return the log stream of a container, made when it is first asked for."""
        if folder.name not in self.streams:
            options = state["log_options"]
            backend = logs_backends[ACCOUNT][options.get("awslogs-region", self.region)]
            group = options["awslogs-group"]
            name = options.get("awslogs-stream", folder.name)
            made = LogStream(backend, self.ec2.account.lock, group, name, folder / "log")
            role = self.order.role
            if not self.ec2.account.permissions.role_may(role, "logs:PutLogEvents", ""):
                raise LookupError(f"{role} may not write logs")
            made.open(options.get("awslogs-create-group") == "true")
            self.streams[folder.name] = made
        return self.streams[folder.name]

    # Memory ---------------------------------------------------------------------------------------

    @property
    def memory_limit(self):
        """Bytes that the type of instance has."""
        found = INSTANCE_TYPES[self.order.type]["MemoryInfo"]["SizeInMiB"]
        return found * 2**20

    def out_of_memory(self, name):
        """Let the running containers be killed."""
        for state in self.containers():
            if json.loads(state.read_text())["status"] == "running":
                (state.parent / name).touch()

    def containers(self):
        """Return the file of each container of the instance that says how it goes."""
        root = self.folder / "own" / "var" / "lib" / "docker" / "containers"
        return list(root.glob("*/state.json"))

    @property
    def console(self):
        """Path of the console's output."""
        return Path(self.folder) / "console"

    # Ends -----------------------------------------------------------------------------------------

    def ask(self, state, reason=USER):
        """Ask the instance to become stopped or terminated."""
        if self.task is None or self.task.done():
            if state == "terminated" and not self.ended:
                self.task = asyncio.create_task(self.end(state, reason))
            elif not self.ended:
                self.set("stopped")
            return
        self.wanted, self.reason = state, reason
        self.change.set()

    def interrupt(self, notice_s=None):
        """Take back a spot instance: the notice, then its end."""
        self.check_spot()
        seconds = NOTICE if notice_s is None else notice_s
        self.notices["rebalance"] = {"noticeTime": moment()}
        self.notices["action"] = {"action": "terminate", "time": moment(seconds)}
        asyncio.get_running_loop().call_later(seconds, self.ask, "terminated", SPOT)

    def check_spot(self):
        if not self.order.spot:
            raise LookupError(f"{self.id} is no spot instance")

    def kill(self):
        """Kill the processes; as after a crash of the system, the instance ends."""
        self.dead = True
        if self.process is not None:
            self.process.kill()
