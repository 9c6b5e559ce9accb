"""One container on a machine of the test bed, from its start to its end."""

import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

from run_options import BED

STATE = Path("/var/lib/docker/containers")
#: Seconds between two looks at the memory of a container.
MEMORY_PERIOD = 1.0


def environment(wanted):
    """Return the variables of a container: the image's, the test bed's, those asked for."""
    found = {
        "PATH": f"{BED['python_folder']}:/usr/local/bin:/usr/bin:/bin",
        "HOME": BED["home"],
        "LANG": "C.UTF-8",
        "HOSTNAME": os.uname().nodename,
    }
    found |= BED["environment"] | wanted["environment"]
    hook = BED["environment"]["PYTHONPATH"]
    if found["PYTHONPATH"] != hook:
        found["PYTHONPATH"] = f"{hook}:{found['PYTHONPATH']}"
    return found


def plan(wanted, folder):
    """Return what `pod_root.py` needs to make the container."""
    mounts = {}
    for path in BED["hidden"]:
        own = folder / "private" / path.strip("/").replace("/", "_")
        own.mkdir(parents=True, exist_ok=True)
        own.chmod(0o1777)
        mounts[path] = {"source": str(own)}
    for path in BED["image"]:
        if any(path.startswith(f"{other}/") for other in mounts):
            mounts[path] = {"source": path}
    mounts["/var"] = {"source": str(folder / "private" / "var")}
    (folder / "private" / "var").mkdir(exist_ok=True)
    for path in BED["image"]:
        if path.startswith("/var/"):
            mounts[path] = {"source": path}
    for target, entry in wanted["volumes"].items():
        Path(entry["source"]).exists() or Path(entry["source"]).mkdir(parents=True)
        mounts[target] = entry
    words = list(wanted["command"])
    if wanted["entrypoint"]:
        words.insert(0, wanted["entrypoint"])
    words = words or ["python"]
    if words[0] in {"python", "python3"}:
        words[0] = BED["python"]
    if wanted["init"]:
        words = [BED["python"], "-S", "-E", "/.gcp-bed/guest/tini.py", *words]
    root = folder / "root"
    root.mkdir(exist_ok=True)
    return {
        "root": str(root),
        "mounts": mounts,
        "hostname": os.uname().nodename,
        "environment": environment(wanted),
        "directory": wanted["directory"],
        "command": words,
    }


class Supervisor:
    """Runs a container and restarts it as its policy says."""

    def __init__(self, wanted):
        self.wanted = wanted
        self.folder = STATE / wanted["name"]
        self.process = None
        self.stopping = False
        #: Whether the command is being told to end.
        self.told = False

    def note(self, **entries):
        path = self.folder / "state.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        new = self.folder / "state.new"
        new.write_text(json.dumps(known | entries))
        new.replace(path)

    def run(self):
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)
        file = self.folder / "plan.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps(plan(self.wanted, self.folder)))
        while True:
            code = self.once(file)
            policy, _, most = self.wanted["restart"].partition(":")
            again = policy in {"always", "unless-stopped"} or (policy == "on-failure" and code)
            restarts = self.wanted.setdefault("restarts", 0)
            if not again or self.stopping or (most and restarts >= int(most)):
                break
            self.wanted["restarts"] += 1
            time.sleep(min(0.1 * 2**restarts, 10))
        self.note(status="exited", exit_code=code, finished=time.time())
        if self.wanted["remove"]:
            shutil.rmtree(self.folder, ignore_errors=True)
        return code

    def once(self, file):
        log = (self.folder / "log").open("ab")
        spaces = ["--mount", "--pid", "--fork", "--uts", "--kill-child=SIGKILL"]
        starter = [BED["python"], "-S", "-E", "/.gcp-bed/pods/pod_root.py", str(file)]
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", "unshare", *spaces, "--", *starter],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.note(status="running", supervisor=os.getpid(), started=time.time())
        if self.stopping:
            self.stop()
        output = self.process.stdout.fileno()
        while True:
            if not select.select([output], [], [], MEMORY_PERIOD)[0]:
                self.watch_memory()
                continue
            data = os.read(output, 65536)
            if not data:
                break
            log.write(data)
            log.flush()
            if not self.wanted["detach"]:
                os.write(1, data)
        code = self.process.wait()
        killed = (self.folder / "killed").exists()  # unshare cannot end by SIGKILL as its child did
        return 137 if killed and code == 1 else 128 - code if code < 0 else code

    def watch_memory(self):
        """Kill the container if its processes use more memory than its limit."""
        if memory_below(self.process.pid) > self.wanted["memory"] and (pid := self.inner()):
            self.note(oom_killed=True)
            (self.folder / "killed").touch()
            os.kill(pid, signal.SIGKILL)

    def inner(self):
        pid = self.process.pid
        try:
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        except (OSError, IndexError, ValueError):
            return None

    def stop(self, *_):
        """Send SIGTERM to the command as soon as it is there, SIGKILL when its time is over."""
        if self.told:
            return
        self.stopping = True
        if self.process is None or self.process.poll() is not None:
            return
        self.told = True
        if os.fork() == 0:
            self.terminate(self.process.pid)
            os._exit(0)

    def patience(self):
        """Return the seconds between SIGTERM and SIGKILL; `docker stop -t` may have set them."""
        ordered = self.folder / "stop-timeout"
        return float(ordered.read_text() if ordered.exists() else self.wanted["stop_timeout"])

    def terminate(self, outer):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        started = time.monotonic()
        told = False
        while time.monotonic() < started + self.patience() and os.path.exists(f"/proc/{outer}"):
            pid = self.inner()
            try:
                if (
                    pid
                    and not told
                    and b"pod_root" not in Path(f"/proc/{pid}/cmdline").read_bytes()
                ):
                    os.kill(pid, signal.SIGTERM)
                    told = True
            except OSError:
                return
            time.sleep(0.02)
        if pid := self.inner():
            (self.folder / "killed").touch()
            os.kill(pid, signal.SIGKILL)


def memory_below(root):
    """Return the bytes of memory that a process and its descendants have for themselves."""
    page = os.sysconf("SC_PAGE_SIZE")
    parents, sizes = {}, {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                _, resident, shared = Path(f"/proc/{name}/statm").read_text().split()[:3]
            except (OSError, ValueError):
                continue
            parents[int(name)] = int(fields[1])
            sizes[int(name)] = (int(resident) - int(shared)) * page
    found = 0
    for pid, own in sizes.items():
        above = pid
        while above and above != root:
            above = parents.get(above, 0)
        found += own if above else 0
    return found
