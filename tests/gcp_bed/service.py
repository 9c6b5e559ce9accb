"""The test bed's own process: the APIs, the machines, and commands for tests."""

import asyncio
import json
import time
from pathlib import Path

from aiohttp import web

from bed_program import serve

from .catalogue import Catalogue
from .discovery import Discovery
from .faults import Faults
from .identities import USERS, Identities, email_of
from .instances import Instances
from .machine import Addresses, all_parents, write_commands
from .networks import Networks
from .operations import Operations
from .secret_manager import ResourceManager, SecretManager
from .serving import Server

#: Seconds of an instance's life, and of its end. `run_scale` is multiplied with `maxRunDuration`;
#: `policy` seconds pass before the new policy of a secret is known.
SETTINGS = {
    "pending": 0.02,
    "provisioning": 0.03,
    "staging": 0.03,
    "notice": 30.0,
    "shutdown": 90.0,
    "run_scale": 1.0,
    "policy": 0.0,
}


class Service:
    """Everything that the test bed consists of."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.settings = dict(SETTINGS)
        self.tasks = set()
        self.discovery = Discovery()
        self.identities = Identities()
        self.catalogue = Catalogue()
        self.operations = Operations()
        self.faults = Faults()
        self.networks = Networks(self.operations)
        self.instances = Instances(self)
        self.secrets = SecretManager(self.identities, self.settings)
        self.server = Server(self)
        parts = (self.catalogue, self.operations, self.networks, self.instances, self.secrets)
        for part in (*parts, ResourceManager(self.identities)):
            self.server.handlers |= part.handlers()
        unknown = self.server.handlers.keys() - self.discovery.known
        assert not unknown, f"no document describes {unknown}"
        self.runner = None
        self.endpoint = ""
        self.addresses = None

    async def start(self):
        """Listen."""
        app = self.server.application()
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{port}"
        self.addresses = Addresses(port)
        write_commands(self.directory / "bin")
        (self.directory / "endpoint").write_text(self.endpoint)

    # Commands -------------------------------------------------------------------------------------

    def do_calls(self, reset=False):
        found = dict(self.faults.calls)
        if reset:
            self.faults.calls.clear()
        return found

    def do_key(self, user):
        """Write the key of a user, at the first time; return its path."""
        if user not in USERS:
            raise ValueError(f"no user {user}; there are {list(USERS)}")
        path = self.directory / f"key-{user}.json"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(json.dumps(self.identities.key_file(user, f"{self.endpoint}/token")))
        return str(path)

    def do_machines(self):
        parents = all_parents()
        return {
            instance.resource["name"]: {
                "zone": instance.zone,
                "type": instance.shape["name"],
                "status": instance.status,
                "spot": instance.spot,
                "address": instance.address,
                "labels": instance.resource.get("labels") or {},
                "pids": instance.machine.processes(parents) if instance.machine else [],
            }
            for instance in self.instances.found.values()
        }

    def do_things(self):
        rules = (
            path for path in self.networks.found if path.startswith("global/firewalls/scalable")
        )
        secrets = (f"secret {name}" for name in self.secrets.found)
        machines = (f"machine {name} {i.status}" for name, i in self.instances.found.items())
        return sorted([*rules, *secrets, *machines])

    def do_kill_at(self, pid, call):
        self.faults.doomed = (pid, call)

    def do_console(self, name):
        machine = self.instances.named(name).machine
        return machine.console.read_text(errors="replace") if machine else ""

    def do_set(self, **settings):
        unknown = settings.keys() - self.settings.keys()
        if unknown:
            raise ValueError(f"no settings: {unknown}; there are {list(self.settings)}")
        before = {key: self.settings[key] for key in settings}
        self.settings |= settings
        return before

    def do_preempt(self, name):
        self.instances.named(name).preempt()

    def do_kill(self, name):
        self.instances.named(name).machine.kill_containers()

    def do_lose(self, name):
        """Let the host of a machine break: it ends without a notice."""
        instance = self.instances.named(name)
        if instance.stopping is None:
            ending = instance.stop("compute.instances.hostError", grace=0)
            instance.stopping = asyncio.create_task(ending)

    def do_throttle(self, method, every, status):
        self.faults.throttled[method] = {"every": every, "status": status, "calls": 0}

    def do_break_calls(self, method, count, status):
        self.faults.broken[method] = {"count": count, "status": status}

    def do_lose_answers(self, method, count):
        self.faults.lost[method] = count

    def do_exhaust(self, zone, machine_type, code):
        if code:
            self.faults.exhaustion[zone, machine_type] = code
        else:
            self.faults.exhaustion.pop((zone, machine_type), None)

    def do_without_type(self, zone, machine_type, missing):
        change = self.catalogue.missing.add if missing else self.catalogue.missing.discard
        change((zone, machine_type))

    def do_quota(self, metric, limit, region):
        before = self.catalogue.limits[region].get(metric)
        self.catalogue.limits[region][metric] = float(limit)
        return before

    def do_without_image(self, pattern):
        self.faults.missing_images.add(pattern)

    def do_disable(self, service, disabled):
        change = self.faults.disabled.add if disabled else self.faults.disabled.discard
        change(service)

    def do_never_boot(self, pattern, count):
        self.faults.dead[pattern] = count

    def do_deny(self, user, permission, denied):
        change = self.identities.denied.add if denied else self.identities.denied.discard
        change((email_of(user), permission))

    async def do_expire_tokens(self):
        """Let all tokens be invalid, and return when new ones can be had."""
        since = self.identities.expire()
        await asyncio.sleep(max(since - time.time(), 0))

    def do_clear_faults(self):
        calls = self.faults.calls
        self.faults.__init__()
        self.faults.calls = calls
        self.catalogue.missing.clear()
        self.identities.denied.clear()
        self.identities.lifetime = 3600.0
        fresh = Catalogue()
        self.catalogue.limits = fresh.limits
        self.settings |= SETTINGS

    async def do_clear(self):
        """End and forget all instances, and what else clients have made."""
        self.secrets.found.clear()
        self.networks.reset()
        for instance in list(self.instances.found.values()):
            for task in (instance.life, instance.stopping):
                if task is not None:
                    task.cancel()
            if instance.machine is not None:
                instance.machine.kill()
                await instance.machine.stop(0)
            instance.remove()

    # End ------------------------------------------------------------------------------------------

    async def close(self):
        """End everything."""
        for task in self.tasks:
            task.cancel()
        await self.do_clear()
        await self.runner.cleanup()


def main(directory):
    """Run as the child of a `GcpBed`."""
    serve(Service, directory)
