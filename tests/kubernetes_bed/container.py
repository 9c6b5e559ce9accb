"""One container as a real local process in namespaces of its own."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
#: Where a container sees what the test bed itself needs there.
BED = "/.kubernetes-bed"


def unshare():
    """Return the command that makes the namespaces and ends with the process that runs it."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    spaces = ["--mount", "--pid", "--fork", "--uts", "--kill-child=SIGKILL"]
    return ["setpriv", "--pdeathsig", "KILL", "--", "unshare", *user, *spaces, "--"]


@cache
def image():
    """Return the paths that the image of the bed consists of, beside the system's."""
    code = "import sys; print('\\n'.join([sys.prefix, sys.base_prefix, *sys.path]))"
    found = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    paths = {os.path.abspath(path) for path in found.stdout.split("\n") if path}
    return sorted(p for p in paths | {os.path.realpath(p) for p in paths} if os.path.exists(p))


def hidden():
    """Return the directories of this machine that no container sees."""
    paths = {tempfile.gettempdir(), "/tmp", str(Path.home())}
    return sorted({os.path.realpath(path) for path in paths} - {"/"})


class Container:
    """A process with its own file system, which the kubelet started and ends."""

    def __init__(self, directory, log):
        self.directory = directory
        self.log = log
        self.process = None
        self.started = None
        self.ended = None
        self.reason = ""
        self.killed = False

    def start(self, command, environment, mounts, hostname, directory="/"):
        """Start the command; `mounts` is path in the container -> source and read_only."""
        self.directory.mkdir(parents=True, exist_ok=True)
        root = self.directory / "root"
        root.mkdir(exist_ok=True)
        places = {}
        for path in hidden():
            own = self.directory / "private" / path.strip("/").replace("/", "_")
            own.mkdir(parents=True, exist_ok=True)
            own.chmod(0o1777)
            places[path] = {"source": str(own)}
        for path in image():
            if any(path.startswith(f"{other}/") for other in places):
                places[path] = {"source": path}  # writable for Python's compiled files
        places |= mounts
        plan = {
            "root": str(root),
            "mounts": places,
            "hostname": hostname,
            "environment": environment,
            "directory": directory,
            "command": command,
        }
        file = self.directory / "plan.json"
        file.write_text(json.dumps(plan))
        file.chmod(0o600)
        starter = [sys.executable, "-S", "-E", str(HERE / "pod_root.py"), str(file)]
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [*unshare(), *starter],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd="/",
                start_new_session=True,
            )
        self.started = time.time()

    def inner(self):
        """Return the process id of the command's process as seen from here, None without one."""
        pid = self.process.pid
        with contextlib.suppress(OSError, IndexError, ValueError):
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        return None

    @property
    def running(self):
        return self.process is not None and self.ended is None

    def terminate(self):
        """Send SIGTERM to the command; return False if it is not there yet."""
        pid = self.inner()
        if not self.running:
            return True
        with contextlib.suppress(OSError):
            if not pid or b"pod_root.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return False
            os.kill(pid, signal.SIGTERM)
        return True

    def kill(self, reason=""):
        """End the command and all that it started."""
        if self.running:
            self.killed = True
            self.reason = self.reason or reason
            pid = self.inner()
            for target in [pid] if pid else [self.process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(target, signal.SIGKILL)

    def exit_code(self):
        """Return the exit code as the kubelet reports it."""
        code = self.process.returncode
        if self.killed and code == 1:
            return 137  # unshare cannot end by SIGKILL as its child did
        return 128 - code if code < 0 else code


@cache
def unavailable():
    """Return why containers cannot be run on this machine, "" if they can."""
    for name in ("unshare", "setpriv"):
        if shutil.which(name) is None:
            return f"the command {name} is missing (util-linux)"
    with tempfile.TemporaryDirectory(prefix="kubernetes-bed-") as directory:
        container = Container(Path(directory, "run"), Path(directory, "log"))
        container.start(["true"], {"PATH": os.environ["PATH"]}, {}, "test")
        code = container.process.wait()
        text = container.log.read_text().strip()
    return f"containers cannot be made here: {text}" if code else ""
