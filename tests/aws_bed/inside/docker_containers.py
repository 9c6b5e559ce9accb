"""Containers of an instance: what they see, how they are kept, and the one who looks after them."""

import fcntl
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

HERE = "/.aws-bed"
sys.path.insert(0, f"{HERE}/kubernetes_bed")
import container as containers  # noqa: E402

#: File by which the test bed says that the memory of the instance is used up.
OOM = "memory-used-up"
STATE = Path("/var/lib/docker/containers")
#: Directories of the instance that no container sees.
PRIVATE = ("/opt", "/run", "/srv", "/mnt", "/var", "/media")


def fail(text, code=125):
    print(f"docker: {text}", file=sys.stderr, flush=True)
    raise SystemExit(code)


def volumes(options):
    """Return the mounts of the options `-v`."""
    found = {}
    for text in options.volume:
        source, _, rest = text.partition(":")
        path, _, mode = rest.partition(":")
        if not source.startswith("/") or not path.startswith("/"):
            fail(f"invalid volume specification: {text!r} (the test bed has paths only)")
        if not os.path.exists(source):
            os.makedirs(source)
        found[path.rstrip("/")] = {"source": source, "read_only": "ro" in mode.split(",")}
    return found


def mounts(folder, options):
    """Return what a container sees beside its image."""
    found = {"/etc": {"source": f"{HERE}/image/etc", "read_only": True}}
    for path in (*PRIVATE, HERE):
        own = folder / "private" / path.strip("/").replace("/", "_")
        own.mkdir(parents=True, exist_ok=True)
        found[path] = {"source": str(own)}
    for path in containers.image():
        if any(path.startswith(f"{other}/") for other in found):
            found[path] = {"source": path}
    if os.path.isdir("/opt/venv"):
        found["/opt/venv"] = {"source": "/opt/venv"}
    found["/etc/hosts"] = {"source": "/etc/hosts", "read_only": True}
    return found | volumes(options)


class Kept:
    """The file that says what a container is and how it goes."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.path = self.folder / "state.json"

    def read(self):
        return json.loads(self.path.read_text())

    def write(self, **fields):
        now = self.read() if self.path.exists() else {}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(now | fields))
        new.replace(self.path)


def known(folder):
    """Whether a container was not removed."""
    kept = Kept(folder)
    return kept.path.exists() and kept.read()["status"] != "removed"


def find(name):
    """Return a container by its name or the beginning of its id."""
    for folder in sorted(STATE.iterdir()) if STATE.exists() else ():
        if known(folder) and (Kept(folder).read()["name"] == name or folder.name.startswith(name)):
            return Kept(folder)
    print(f"Error response from daemon: No such container: {name}", file=sys.stderr)
    raise SystemExit(1)


def take_name(identity, name):
    """Make the folder of a container, whose name no other has."""
    STATE.mkdir(parents=True, exist_ok=True)
    with open(STATE.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for folder in STATE.iterdir():
            if known(folder) and Kept(folder).read()["name"] == name:
                fail(
                    f'Error response from daemon: Conflict. The container name "/{name}" is already in use by container "{folder.name}".'
                )
        folder = STATE / identity
        folder.mkdir()
        kept = Kept(folder)
        kept.write(id=identity, name=name, status="created")
        return kept


class Monitor:
    """Runs a container, again where its restart policy says so, and notes how it goes."""

    def __init__(self, kept, options, command, variables):
        self.kept = kept
        self.options = options
        self.command = command
        self.variables = variables
        self.stopping = False
        self.process = None
        self.number = 0

    def start(self):
        folder = self.kept.folder
        log = folder / "log"
        self.process = containers.Container(folder / f"run-{self.number}", log)
        self.number += 1
        places = mounts(folder, self.options)
        self.process.start(
            self.command, self.variables, places, socket.gethostname(), self.options.workdir
        )
        self.kept.write(status="running", pid=self.process.process.pid)

    def signalled(self, number, _):
        """Pass a signal on; after one that ends, the container is not started again."""
        self.stopping = True
        deadline = time.monotonic() + 5
        while not self.process.terminate() and time.monotonic() < deadline:
            time.sleep(0.02)

    def again(self, code):
        policy, _, most = self.options.restart.partition(":")
        if self.stopping or policy == "no" or (policy == "on-failure" and not code):
            return False
        return not most or self.number <= int(most)

    def run(self, follow=False):
        """Run until the end; with `follow`, copy the output; return the exit code."""
        signal.signal(signal.SIGTERM, self.signalled)
        signal.signal(signal.SIGINT, self.signalled)
        while True:
            self.start()
            code = self.wait(follow)
            self.kept.write(status="exited", exit_code=code)
            if not self.again(code):
                break
            time.sleep(min(0.1 * 2**self.number, 10))
        if self.options.rm:
            self.kept.write(status="removed")  # its log is still read by the test bed
        return code

    def wait(self, follow):
        position = 0
        while True:
            ended = self.process.process.poll() is not None
            if follow:
                with open(self.process.log, "rb") as file:
                    file.seek(position)
                    data = file.read()
                position += len(data)
                os.write(1, data) if data else None
            if not ended and (self.kept.folder / OOM).exists():
                self.kept.write(oom_killed=True)
                self.process.kill()
            if ended:
                self.process.ended = time.time()
                # A signal from outside ends unshare with 1.
                return self.process.exit_code()
            time.sleep(0.05)
