"""One machine: the processes that an instance consists of."""

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
from pathlib import Path

from kubernetes_bed.container import Container, hidden, image

from .metadata_server import MetadataServer

HERE = Path(__file__).parent
PODS = HERE.parent / "kubernetes_bed"
#: Where a machine sees what the test bed needs there.
BED = "/.gcp-bed"
#: Commands of Container-Optimized OS that have nothing to do here.
WITHOUT_EFFECT = (
    "docker-credential-gcr",
    "systemctl",
    "iptables",
    "ip6tables",
    "sysctl",
    "modprobe",
    "journalctl",
)
#: Directories that a machine has for itself, on its disk.
OWN = ("/var", "/home", "/mnt", "/run")
SHUT_DOWN = "#!/bin/sh\nkill -PWR 1\n"
#: What the driver of GPUs leaves, which is all that there is of one here.
DRIVER = "#!/bin/sh\nmkdir -p /var/lib/nvidia/lib64 /var/lib/nvidia/bin\n"


def write_commands(folder):
    """Write the commands that machines have and this system has not, or otherwise."""
    folder.mkdir()
    scripts = dict.fromkeys(WITHOUT_EFFECT, "#!/bin/sh\nexit 0\n")
    scripts |= dict.fromkeys(("poweroff", "halt", "shutdown"), SHUT_DOWN)
    scripts["cos-extensions"] = DRIVER
    for name in ("docker", "curl"):
        words = [sys.executable, "-S", "-E", f"{BED}/guest/{name}.py"]
        scripts[name] = f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'
    for name in ("python", "python3", "pip", "jq", "gcloud", "podman"):
        text = f"{name}: command not found: Container-Optimized OS does not have it"
        scripts[name] = f"#!/bin/sh\necho {shlex.quote(text)} >&2\nexit 127\n"
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def all_parents():
    """Return process -> its parent, of all processes of this system."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                found[int(entry.name)] = int(stat[1])
    return found


class Addresses:
    """Addresses of 127.0.0.0/8: one for each machine of this test bed.

    The port of the API, which no other test bed has, chooses 255 of them.
    """

    def __init__(self, port):
        self.free = [f"127.{port >> 8}.{port & 255}.{last}" for last in range(255, 0, -1)]

    def take(self):
        return self.free.pop() if self.free else None

    def give_back(self, address):
        self.free.insert(0, address)


class Machine:
    """The processes, the disk, the console and the metadata server of an instance."""

    def __init__(self, instance, bed):
        self.instance = instance
        self.bed = bed
        self.folder = bed.directory / "machines" / instance.resource["id"]
        self.folder.mkdir(parents=True)
        self.console = self.folder / "serial-port"
        self.console.touch()
        self.container = None
        #: Bytes that the serial port had when the machine was started.
        self.written = 0
        self.metadata = MetadataServer(instance, bed.identities)

    def scripts(self):
        """Write the scripts of the metadata and what the machine's `docker` has to know."""
        run = self.folder / "bed"
        run.mkdir(exist_ok=True)
        items = self.instance.resource["metadata"].get("items") or ()
        values = {item["key"]: item["value"] for item in items}
        for name in ("startup-script", "shutdown-script"):
            (run / name).unlink(missing_ok=True)
            if values.get(name):
                (run / name).write_text(values[name])
                (run / name).chmod(0o755)
        known = {
            "python": sys.executable,
            "python_folder": str(Path(sys.executable).parent),
            "home": str(Path.home()),
            "image": image(),
            "hidden": hidden(),
            "environment": self.environment(),
            "memory": self.instance.shape["memoryMb"] * 2**20,
            "missing_images": sorted(self.bed.faults.missing_images),
        }
        (run / "machine.json").write_text(json.dumps(known))
        return run

    def environment(self):
        """Return the variables that lead processes to the test bed, in the place of a network."""
        return {
            "PYTHONPATH": f"{BED}/hook",
            "KUBERNETES_BED_ADDRESS": self.instance.address,
            "GCE_METADATA_HOST": self.metadata.host,
            "GCE_METADATA_IP": self.metadata.host,
            "SCALABLE_GCP_ENDPOINT": self.bed.endpoint,
        }

    def mounts(self, run):
        found = {}
        for name in sorted(os.listdir("/")):
            path = f"/{name}"
            skipped = {"proc", "sys", "dev", "tmp", "lost+found", *(own[1:] for own in OWN)}
            folder = os.path.isdir(path) and not os.path.islink(path) and name not in skipped
            if folder and not any(place.startswith(path) for place in hidden()):
                found[path] = {"source": path, "read_only": True}
        for path in OWN:
            own = self.folder / "disk" / path[1:]
            own.mkdir(parents=True, exist_ok=True)
            found[path] = {"source": str(own)}
        for path in image():
            found[path] = {"source": path}
        hosts = self.folder / "hosts"
        name, metadata = self.instance.resource["name"], self.metadata.host.partition(":")[0]
        hosts.write_text(
            "127.0.0.1 localhost\n"
            f"{metadata} metadata.google.internal metadata\n"
            f"{self.instance.address} {name}\n"
        )
        found["/etc/hosts"] = {"source": str(hosts)}
        for device in ("ttyS0", "console"):
            pipe = self.folder / device
            if not pipe.exists():
                os.mkfifo(pipe)
            found[f"/dev/{device}"] = {"source": str(pipe)}
        found[f"{BED}/guest"] = {"source": str(HERE / "guest"), "read_only": True}
        found[f"{BED}/pods"] = {"source": str(PODS), "read_only": True}
        found[f"{BED}/hook"] = {"source": str(PODS / "hook"), "read_only": True}
        found[f"{BED}/bin"] = {"source": str(self.bed.directory / "bin"), "read_only": True}
        found[f"{BED}/run"] = {"source": str(run)}
        return found

    async def start(self, boots=True):
        """Start the metadata server and the first process; `boots`: whether there is such."""
        await self.metadata.start()
        if not boots:
            return
        run = self.scripts()
        environment = self.environment() | {
            "PATH": f"{BED}/bin:/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin",
            "HOME": str(Path.home()),
            "LANG": "C.UTF-8",
            "GCP_BED_RUN": f"{BED}/run",
        }
        command = [sys.executable, "-S", "-E", f"{BED}/guest/machine_init.py"]
        self.container = Container(self.folder / "machine", self.console)
        self.written = self.console.stat().st_size
        hostname = self.instance.resource["name"]
        self.container.start(command, environment, self.mounts(run), hostname)

    async def exited(self):
        """Wait for the end of all processes."""
        if self.container is None:
            await asyncio.Event().wait()
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        descriptor = os.pidfd_open(self.container.process.pid)
        loop.add_reader(descriptor, lambda: ended.done() or ended.set_result(None))
        try:
            await ended
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        self.container.process.wait()
        self.container.ended = True

    async def stop(self, grace):
        """Press the power button, and pull the plug after the grace period."""
        container = self.container
        if container is not None and container.running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    # The first process says its first word when it heeds signals.
                    while container.running and self.console.stat().st_size == self.written:
                        await asyncio.sleep(0.02)
                    container.terminate()
                    await self.exited()
            if container.running:
                container.kill()
                await self.exited()
        await self.metadata.close()

    def kill(self):
        if self.container is not None:
            self.container.kill()

    def processes(self, parents=None):
        """Return the ids of the machine's processes, as this system numbers them."""
        if self.container is None or not self.container.running:
            return []
        parents = parents or all_parents()
        outer = self.container.process.pid
        found = []
        for pid in parents:
            above = pid
            while above and above != outer:
                above = parents.get(above, 0)
            if above and pid != outer:
                found.append(pid)
        return sorted(found)

    def kill_containers(self):
        """Kill each process of the machine but its first, as a crash would."""
        inner = self.container.inner()
        for pid in self.processes():
            if pid != inner:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
