"""Machines of the account as local processes: addresses, environment, what their image holds."""

import asyncio
import os
import sys
import time
from pathlib import Path

import kubernetes_bed
from kubernetes_bed.container import BED, Container

from .errors import AwsError

HOOK = Path(kubernetes_bed.__file__).parent / "hook"
#: Where the Python of the image is, beside the paths that it has on this machine.
VENV = "/opt/venv"
PYTHONS = {"python", "python3", f"{VENV}/bin/python", f"{VENV}/bin/python3"}


class NoAddressError(AwsError):
    """The test bed has no address left."""


class Addresses:
    """Addresses of 127.0.0.0/8 for machines, chosen by the port of the account, which is its own."""

    def __init__(self, port):
        self.prefix = f"127.{port >> 8}.{port & 255}"
        self.free = [f"{self.prefix}.{last}" for last in range(254, 0, -1)]

    def take_some(self, count):
        """Return some addresses that no machine has, or none of them."""
        if count > len(self.free):
            text = "There are not enough free addresses in the subnet to satisfy the request."
            raise NoAddressError("InsufficientFreeAddressesInSubnet", text)
        return [self.free.pop() for _ in range(count)]

    def take(self):
        """Return an address that no machine has."""
        return self.take_some(1)[0]

    def give_back(self, address):
        self.free.insert(0, address)


def python_mount(folder):
    """Return the mounts that show the Python of the test bed under `/opt/venv`."""
    if sys.prefix != sys.base_prefix:
        return {VENV: {"source": sys.prefix}} if sys.prefix != VENV else {}
    binaries = folder / "venv" / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3"):
        script = binaries / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        script.chmod(0o755)
    return {VENV: {"source": str(binaries.parent)}}


def hosts_mount(folder, address, name):
    """Return the mount of a container's own /etc/hosts."""
    folder.mkdir(parents=True, exist_ok=True)
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{address} {name}\n")
    return {"/etc/hosts": {"source": str(hosts), "read_only": True}}


def base_environment(address, name, endpoint):
    """Return the variables that each process of a machine has."""
    return {
        "PATH": f"{VENV}/bin:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(Path.home()),
        "HOSTNAME": name,
        "PYTHONPATH": f"{BED}/hook",
        "KUBERNETES_BED_ADDRESS": address,
        "AWS_ENDPOINT_URL": endpoint,
    }


def with_hook(environment):
    """Return an environment whose PYTHONPATH begins with the test bed's hook."""
    hook = f"{BED}/hook"
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if hook not in paths:
        environment["PYTHONPATH"] = os.pathsep.join([hook, *paths])
    return environment


def resolved(command):
    """Return a command whose first word is a program of this machine where it is Python."""
    if command and command[0] in PYTHONS:
        return [sys.executable, *command[1:]]
    return command


class Process:
    """The container of a machine."""

    def __init__(self, folder, log):
        self.folder = folder
        self.container = Container(folder, log)

    def start(self, command, environment, mounts, name, directory="/"):
        """Start a command; the log is a file of this machine."""
        mounts = {
            f"{BED}/hook": {"source": str(HOOK), "read_only": True},
            **python_mount(self.folder),
            **mounts,
        }
        environment = with_hook(environment)
        self.container.start(resolved(command), environment, mounts, name, directory)

    @property
    def pid(self):
        return self.container.process.pid if self.container.process else None

    @property
    def running(self):
        return self.container.running

    async def exited(self):
        """Wait for the end; return the exit code."""
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        descriptor = os.pidfd_open(self.container.process.pid)
        loop.add_reader(descriptor, lambda: ended.done() or ended.set_result(None))
        try:
            await ended
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            if self.container.process.poll() is not None:
                self.container.ended = time.time()
        return self.container.exit_code()

    def terminate(self):
        """Send SIGTERM to the command as soon as it runs."""
        if not self.container.terminate():
            asyncio.get_running_loop().call_later(0.05, self.terminate)

    def kill(self, reason=""):
        self.container.kill(reason)
