"""Other machines for tests: namespaces that share the files of this machine.

A host has a name, processes, a boot id and, if asked for, a network of its own. Two hosts with a
network of their own reach each other through their interface ``eth0``, and nothing else.
"""

import contextlib
import ipaddress
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

#: The first process of a host: it waits, and reaps the processes whose parents have ended.
INIT = """
hostname "$1" && mount --bind "$2" /proc/sys/kernel/random/boot_id || exit 1
[ -z "$3" ] || ip link set lo up || exit 1
echo started
sleep 2147483647 &
while :; do wait; done
"""
#: Addresses of two hosts; only these two are in their network.
NETWORK = ipaddress.ip_network("10.213.0.0/30")


class Host:
    """Another machine, whose processes end with :meth:`crash`."""

    def __init__(self, name, directory, *, network):
        self.name = name
        boot_id = Path(directory) / f"boot-id-of-{name}"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        self._own = ["--uts", "--pid", "--mount", *(["--net"] if network else [])]
        options = ["--fork", "--mount-proc", "--kill-child", *self._own]
        init = ["sh", "-c", INIT, "init", name, str(boot_id), "network" if network else ""]
        self._process = subprocess.Popen(
            ["unshare", *options, *init],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self._process.stdout.readline() != "started\n":
            error = self._process.communicate(timeout=30)[1]
            pytest.skip(f"NOT TESTED: this system does not allow namespaces: {error.strip()}")
        (init,) = psutil.Process(self._process.pid).children()
        self.pid = init.pid

    def command(self, *words):
        """Return the command line that runs words on this host, in the present directory."""
        return ["nsenter", f"--target={self.pid}", *self._own, f"--wd={Path.cwd()}", *words]

    def run(self, *words, **options):
        """Run a command on this host, to its end."""
        given = {"capture_output": True, "text": True, "timeout": 150} | options
        return subprocess.run(self.command(*words), stdin=subprocess.DEVNULL, check=False, **given)

    def verb(self, *arguments, **options):
        """Run a verb of the command line on this host, to its end."""
        return self.run(sys.executable, "-m", "scalable", *arguments, **options)

    def start(self, *words, **options):
        """Start a command on this host."""
        return subprocess.Popen(self.command(*words), stdin=subprocess.DEVNULL, **options)

    def crash(self):
        """End every process of this host at once."""
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(self.pid).kill()
        self._process.kill()
        self._process.communicate(timeout=30)


@contextlib.contextmanager
def two_hosts(directory, *, network=False):
    """Run two hosts, ``login1`` and ``login2``; the files of all hosts are the same."""
    needed = ("unshare", "nsenter", *(["ip"] if network else []))
    if os.geteuid() or not all(map(shutil.which, needed)):
        pytest.skip(f"NOT TESTED: other hosts need root and {', '.join(needed)}")
    with contextlib.ExitStack() as running:

        def host(name):
            made = Host(name, directory, network=network)
            running.callback(made.crash)
            return made

        hosts = host("login1"), host("login2")
        if network:
            _connect(host("switch"), hosts)
        yield hosts


def _connect(switch, hosts):
    """Connect hosts through a host of its own, so that the end of one is not that of a network."""
    _ip(switch, "link", "add", "bridge", "type", "bridge")
    _ip(switch, "link", "set", "bridge", "up")
    for number, (host, address) in enumerate(zip(hosts, NETWORK.hosts(), strict=True)):
        port = f"port{number}"
        words = ["ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns"]
        # Only outside do the numbers of the others' processes have a meaning.
        outside = ["nsenter", f"--target={switch.pid}", "--net", *words, str(host.pid)]
        subprocess.run(outside, check=True, timeout=30)
        _ip(switch, "link", "set", port, "master", "bridge", "up")
        _ip(host, "addr", "add", f"{address}/{NETWORK.prefixlen}", "dev", "eth0")
        _ip(host, "link", "set", "eth0", "up")


def _ip(host, *words):
    done = host.run("ip", *words)
    assert done.returncode == 0, done.stderr
