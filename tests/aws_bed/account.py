"""The account in one process: moto, the gate, the machines, commands of tests."""

import asyncio
import datetime as dt
import json
import os
import threading
from pathlib import Path

os.environ.setdefault("MOTO_IAM_LOAD_MANAGED_POLICIES", "true")

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

from bed_program import serve

from .connections import connections
from .errors import AwsError
from .fargate import Fargate
from .faults import Faults
from .gate import Gate
from .identities import ACCOUNT, Identities
from .instances import Instances
from .machines import Addresses
from .memory import watch_memory
from .metadata import Metadata
from .permissions import Permissions
from .security import reaches
from .things import things


class Handler(MotoRequestHandler):
    """Writes nothing for each request."""

    protocol_version = "HTTP/1.1"

    def log_request(self, *_):
        return


class Account:
    """Everything that the test bed consists of."""

    def __init__(self, directory):
        self.directory = Path(directory)
        #: Held while moto or what it knows is used; the loop's thread never waits for another's answer.
        self.lock = threading.RLock()
        self.faults = Faults()
        self.identities = Identities()
        self.permissions = Permissions()
        self.tasks = []
        #: Seconds of each step of a machine's start.
        self.delay = 0.1
        #: Seconds until calls find a new machine, and until services know a new role.
        self.eventual = 0.0

    async def start(self):
        """Listen."""
        self.loop = asyncio.get_running_loop()
        gate = Gate(self, DomainDispatcherApplication(create_backend_app))
        self.server = make_server("127.0.0.1", 0, gate, threaded=True, request_handler=Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        self.addresses = Addresses(self.server.server_port)
        self.metadata = Metadata(self)
        self.metadata_url = await self.metadata.start()
        self.fargate = Fargate(self)
        self.instances = Instances(self)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.tasks.append(asyncio.create_task(watch_memory(self.fargate, self.instances)))
        told = {"endpoint": self.endpoint, "secrets": self.identities.secrets}
        file = self.directory / "account.json"
        file.write_text(json.dumps(told))
        file.chmod(0o600)

    async def close(self):
        """End all machines and stop listening."""
        for task in self.tasks:
            task.cancel()
        ends = self.fargate.close() + self.instances.close()
        if ends:
            await asyncio.wait(ends, timeout=10)
        await self.metadata.close()

    # Asked by the gate, in its threads, with the lock held ----------------------------------------

    def answer(self, request):
        """Return the body of the answer to a call that moto does not answer, None otherwise."""
        if request.service == "ecs":
            document = self.fargate.answer(request)
            return None if document is None else json.dumps(document).encode()
        return self.instances.answer(request) if request.service == "ec2" else None

    def done(self, request):
        """Make real what moto has answered."""
        if request.service == "ec2":
            self.instances.done(request)

    def check_role(self, arn, code, text, service="ecs-tasks.amazonaws.com"):
        """Raise an error if a role does not exist or does not trust a service."""
        role = self.permissions.role(arn)
        if role is None or self.is_new(role) or not self.permissions.trusts(arn, service):
            raise AwsError(code, text)

    def is_new(self, thing):
        """Whether a role or profile was made so lately that other services do not know it."""
        age = dt.datetime.now(dt.UTC).replace(tzinfo=None) - thing.create_date
        return age.total_seconds() < self.eventual

    def check_pass(self, request, arn):
        """Raise an error if the caller may not pass a role."""
        self.permissions.check(request, "iam:PassRole", arn)

    # Commands -------------------------------------------------------------------------------------

    def do_calls(self, reset=False):
        found = dict(self.faults.calls)
        if reset:
            self.faults.calls.clear()
        return found

    def do_fault(self, kind, operations, times=None, every=1, **fields):
        return self.faults.add(kind, operations, times, every, **fields)

    def do_clear(self, number=None):
        self.faults.clear(number)

    def do_deny(self, user, pattern, allow=False):
        change = self.permissions.denied.discard if allow else self.permissions.denied.add
        change((user, pattern))

    def do_session(self, user, seconds):
        return self.identities.of_user(user, seconds).document()

    def do_settings(self, delay=None, validity=None, eventual=None):
        if delay is not None:
            self.delay = delay
        if validity is not None:
            self.identities.validity = validity
        if eventual is not None:
            self.eventual = eventual

    def do_machines(self):
        tasks = [
            {
                "id": run.arn,
                "kind": "task",
                "state": run.status,
                "address": run.address,
                "pids": [e.process.pid for e in run.containers if e.process and e.process.running],
            }
            for run in self.fargate.every()
            if run.status != "STOPPED"
        ]
        return tasks + [
            {
                "id": run.id,
                "kind": "instance",
                "state": run.state,
                "address": run.address,
                "pids": [run.process.pid] if run.process and run.process.running else [],
            }
            for run in self.instances.runs.values()
            if not run.ended
        ]

    def do_things(self):
        with self.lock:
            return sorted([*things(), *(f"machine {each['id']}" for each in self.do_machines())])

    def machine(self, identity):
        """Return a task by its ARN or id, or an instance by its id."""
        for run in self.fargate.every():
            if identity in {run.arn, run.id}:
                return run
        if identity in self.instances.runs:
            return self.instances.runs[identity]
        raise LookupError(f"the test bed has no machine {identity}")

    def do_reaches(self, source, target, port):
        with self.lock:
            inner = self.machine(source).interface if source else None
            return reaches(inner, self.machine(target).interface, port)

    def do_connections(self):
        """Return all connections to machines, with whether security groups let them through."""
        machines = self.do_machines()
        found = connections(
            {machine["address"]: machine["id"] for machine in machines},
            {pid: machine["id"] for machine in machines for pid in machine["pids"]},
        )
        return [
            {
                "source": source,
                "target": target,
                "port": port,
                "allowed": self.do_reaches(source, target, port),
            }
            for source, target, port in found
        ]

    def do_interrupt(self, identity, notice_s=None):
        self.machine(identity).interrupt(notice_s)

    def do_kill(self, identity):
        self.machine(identity).kill()

    def do_output(self, identity):
        """Return the output of each container of a task, or of the console of an instance."""
        run = self.machine(identity)
        if identity in self.instances.runs:
            paths = {"console": run.console}
        else:
            paths = {e.name: e.process.container.log for e in run.containers if e.process}
        return {
            name: path.read_text(errors="replace") for name, path in paths.items() if path.exists()
        }


def main(directory):
    """Run as the child of an `AwsBed`."""
    assert os.environ.get("MOTO_ACCOUNT_ID", ACCOUNT) == ACCOUNT
    serve(Account, directory)
    os._exit(0)  # threads of the server may wait for a caller
