"""`docker` on a machine of the test bed: containers as local processes.

A container has a mount and a process namespace of its own. Its image is the machine's system with
the Python of the test bed, whatever its name; the home and temporary directories are its own, and
volumes are where `-v` puts them. Its network is the machine's. The state of containers is in
/var/lib/docker.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path("/var/lib/docker/containers")
BED = json.loads(Path("/.gcp-bed/run/machine.json").read_text())
#: Options of `docker run` that take a value and have no effect here.
IGNORED = {
    "--memory", "-m", "--memory-swap", "--memory-reservation", "--cpus", "--cpu-shares", "-c",
    "--cpuset-cpus", "--shm-size", "--gpus", "--log-driver", "--log-opt", "--pull", "--ulimit",
    "--cap-add", "--cap-drop", "--security-opt", "--device", "--pid", "--ipc", "--label", "-l",
    "--user", "-u", "--oom-score-adj", "--tmpfs", "--platform", "--runtime", "--uts", "--hostname",
    "-h", "--pids-limit", "--cgroup-parent", "--add-host", "--dns", "--label-file",
}  # fmt: skip
FLAGS = {
    "-d": "detach", "--detach": "detach", "--rm": "remove", "-i": "", "--interactive": "",
    "-t": "", "--tty": "", "-it": "", "--init": "", "--privileged": "", "-q": "", "--quiet": "",
    "--read-only": "", "--no-healthcheck": "", "--oom-kill-disable": "", "--sig-proxy": "",
}  # fmt: skip
NETWORKS = {"host", "default", "bridge"}


def fail(text, code=125):
    print(f"docker: {text}", file=sys.stderr)
    sys.exit(code)


# run ----------------------------------------------------------------------------------------------


def parse_run(words):
    """Return what the arguments of `docker run` ask for."""
    wanted = {
        "detach": False,
        "remove": False,
        "environment": {},
        "volumes": {},
        "directory": "/",
        "entrypoint": None,
        "restart": "no",
        "stop_timeout": 10,
        "network": "default",
        "name": "",
    }
    words = list(words)
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word in FLAGS:
            if FLAGS[word]:
                wanted[FLAGS[word]] = True
            continue
        option, equals, value = word.partition("=")
        if not equals or not option.startswith("--"):
            option = word
            if not words:
                fail(f"flag needs an argument: {word}")
            value = words.pop(0)
        take(wanted, option, value)
    if not words:
        fail('"docker run" requires at least 1 argument.')
    wanted["image"], *wanted["command"] = words
    if wanted["network"] not in NETWORKS:
        fail(f"Error response from daemon: network {wanted['network']} not found.")
    return wanted


def take(wanted, option, value):
    """Note one option of `docker run`."""
    if option in {"-e", "--env"}:
        wanted["environment"] |= variable(value)
    elif option == "--env-file":
        wanted["environment"] |= env_file(value)
    elif option in {"-v", "--volume"}:
        source, _, rest = value.partition(":")
        target, _, mode = rest.partition(":")
        volume(wanted, source, target, "ro" in mode.split(","))
    elif option == "--mount":
        mount(wanted, value)
    elif option in {"-w", "--workdir"}:
        wanted["directory"] = value
    elif option in {"--network", "--net"}:
        wanted["network"] = value
    elif option in {"--name", "--entrypoint", "--restart"}:
        wanted[option.strip("-")] = value
    elif option == "--stop-timeout":
        wanted["stop_timeout"] = int(value)
    elif option not in IGNORED:
        fail(f"unknown flag: {option}\nSee 'docker run --help'.")


def variable(text):
    """Return a variable `KEY=VALUE`, or `KEY` with the value that it has here."""
    key, equals, value = text.partition("=")
    if equals:
        return {key: value}
    return {key: os.environ[key]} if key in os.environ else {}


def mount(wanted, text):
    """Note a mount `type=bind,source=...,target=...`."""
    entries = dict(part.partition("=")[::2] for part in text.split(","))
    if entries.get("type") == "tmpfs":
        return
    if entries.get("type") != "bind":
        fail(f"invalid argument {text!r} for --mount: the test bed has bind mounts only")
    source = entries.get("source") or entries.get("src", "")
    if not os.path.exists(source):
        fail(f"bind source path does not exist: {source}")
    target = entries.get("target") or entries.get("destination") or entries.get("dst", "")
    volume(wanted, source, target, bool({"readonly", "ro"} & entries.keys()))


def volume(wanted, source, target, read_only):
    if not source.startswith("/") or not target.startswith("/"):
        fail(f"the test bed has volumes with absolute paths only: {source}:{target}")
    wanted["volumes"][os.path.normpath(target)] = {
        "source": os.path.normpath(source),
        "read_only": read_only,
    }


def env_file(path):
    """Return the variables of a file: lines `KEY=VALUE` taken as they are, or `KEY`."""
    found = {}
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        fail(f"open {path}: {error.strerror}")
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if " " in line.lstrip().partition("=")[0]:
            fail(f"poorly formatted environment: variable '{line}' contains whitespaces")
        found |= variable(line.lstrip())
    return found


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
        while data := os.read(self.process.stdout.fileno(), 65536):
            log.write(data)
            log.flush()
            if not self.wanted["detach"]:
                os.write(1, data)
        code = self.process.wait()
        killed = (self.folder / "killed").exists()  # unshare cannot end by SIGKILL as its child did
        return 137 if killed and code == 1 else 128 - code if code < 0 else code

    def inner(self):
        pid = self.process.pid
        try:
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        except (OSError, IndexError, ValueError):
            return None

    def stop(self, *_):
        """Send SIGTERM to the command as soon as it is there, SIGKILL when its time is over."""
        self.stopping = True
        if self.process is None or self.process.poll() is not None:
            return
        if os.fork() == 0:
            self.terminate(self.process.pid)
            os._exit(0)

    def terminate(self, outer):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        deadline = time.monotonic() + self.wanted["stop_timeout"]
        told = False
        while time.monotonic() < deadline and os.path.exists(f"/proc/{outer}"):
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


def do_run(words):
    wanted = parse_run(words)
    number = os.urandom(32).hex()
    wanted["name"] = wanted["name"] or f"c-{number[:12]}"
    if BED["environment"].get("GCP_BED_NO_IMAGES"):
        fail(f"Error response from daemon: manifest for {wanted['image']} not found", 125)
    folder = STATE / wanted["name"]
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        fail(
            f'Error response from daemon: Conflict. The container name "/{wanted["name"]}" is already in use.'
        )
    supervisor = Supervisor(wanted)
    supervisor.note(id=number, name=wanted["name"], image=wanted["image"], status="created")
    (folder / "log").touch()
    if not wanted["detach"]:
        return supervisor.run()
    if os.fork():
        print(number)
        return 0
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    supervisor.run()
    os._exit(0)


# Other commands -----------------------------------------------------------------------------------


def container(name):
    for path in [STATE / name, *sorted(STATE.glob("*"))]:
        try:
            known = json.loads((path / "state.json").read_text())
        except (OSError, ValueError):
            continue
        if path.name == name or (len(name) >= 3 and known["id"].startswith(name)):
            return path, known
    fail(f"Error response from daemon: No such container: {name}", 1)
    return None


def names(words, values=("-t", "--time", "--timeout", "-s", "--signal", "-n", "--tail", "--since")):
    words = iter(words)
    found = []
    for word in words:
        if word in values:
            next(words, None)
        elif not word.startswith("-"):
            found.append(word)
    return found


def do_stop(words):
    for name in names(words):
        path, known = container(name)
        if known["status"] == "running":
            os.kill(known["supervisor"], signal.SIGTERM)
            while os.path.exists(f"/proc/{known['supervisor']}") and path.exists():
                if json.loads((path / "state.json").read_text())["status"] != "running":
                    break
                time.sleep(0.05)
        print(name)
    return 0


def do_kill(words):
    for name in names(words):
        path, known = container(name)
        (path / "killed").touch()
        children = Path(f"/proc/{known['supervisor']}/task/{known['supervisor']}/children")
        for outer in children.read_text().split():
            inner = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
            for pid in inner:
                os.kill(int(pid), signal.SIGKILL)
        print(name)
    return 0


def do_rm(words):
    for name in names(words):
        path, known = container(name)
        if known["status"] == "running":
            if not {"-f", "--force"} & set(words):
                fail(f"Error response from daemon: cannot remove a running container {name}", 1)
            do_kill([name])
        shutil.rmtree(path, ignore_errors=True)
        print(name)
    return 0


def do_logs(words):
    (name,) = names(words)
    path, _ = container(name)
    follow = {"-f", "--follow"} & set(words)
    with (path / "log").open("rb") as log:
        while True:
            data = log.read()
            os.write(1, data)
            if not follow or (not data and container(name)[1]["status"] != "running"):
                return 0
            time.sleep(0.1)


def do_wait(words):
    for name in names(words):
        while True:
            _, known = container(name)
            if known["status"] == "exited":
                break
            time.sleep(0.05)
        print(known["exit_code"])
    return 0


def do_ps(words):
    for path in sorted(STATE.glob("*")):
        known = json.loads((path / "state.json").read_text())
        if known["status"] == "running" or {"-a", "--all", "-aq"} & set(words):
            quiet = {"-q", "--quiet", "-aq"} & set(words)
            print(known["id"][:12] if quiet else f"{known['id'][:12]} {known['image']} {path.name}")
    return 0


def do_inspect(words):
    words = list(words)
    form = ""
    while words and words[0].startswith("-"):
        option, equals, value = words.pop(0).partition("=")
        if option not in {"-f", "--format"}:
            fail(f"unknown flag: {option}")
        form = value if equals else words.pop(0)
    for name in words:
        _, known = container(name)
        values = {
            "{{.State.ExitCode}}": known.get("exit_code", 0),
            "{{.State.Status}}": known["status"],
            "{{.State.Running}}": str(known["status"] == "running").lower(),
            "{{.State.OOMKilled}}": "false",
            "{{.Id}}": known["id"],
        }
        if form not in values:
            fail(f"the test bed can inspect only {', '.join(values)}, not {form!r}")
        print(values[form])
    return 0


def do_pull(words):
    for image in names(words):
        if BED["environment"].get("GCP_BED_NO_IMAGES"):
            fail(f"Error response from daemon: manifest for {image} not found: manifest unknown", 1)
        print(f"Status: Image is up to date for {image}")
    return 0


def do_nothing(words):
    return 0


COMMANDS = {
    "run": do_run, "stop": do_stop, "kill": do_kill, "rm": do_rm, "logs": do_logs, "wait": do_wait,
    "ps": do_ps, "inspect": do_inspect, "pull": do_pull, "login": do_nothing, "info": do_nothing,
    "version": do_nothing,
}  # fmt: skip


def main():
    words = sys.argv[1:]
    while len(words) > 1 and words[0] == "--config":
        words = words[2:]
    if words[:1] == ["container"]:
        words = words[1:]
    if not words or words[0] not in COMMANDS:
        fail(f"'{' '.join(words[:1])}' is not a docker command that the test bed has.", 1)
    sys.exit(COMMANDS[words[0]](words[1:]))


if __name__ == "__main__":
    main()
