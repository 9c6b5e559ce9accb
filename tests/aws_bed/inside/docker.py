"""The `docker` of an instance: containers as local processes with a file system of their own.

`run` (`-d`, `--rm`, `--name`, `-e`, `--env-file`, `-v`, `-w`, `--entrypoint`, `--restart`,
`--stop-timeout`, `--log-driver`, `--log-opt`; `--network host` only), `pull`, `login`, `ps`,
`inspect -f`, `logs`, `stop`, `kill`, `wait`, `rm`, `info`, `version`. Others are refused. Runs with
`python -I -S`.
"""

import argparse
import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, "/.aws-bed/inside")
from docker_containers import HERE, STATE, Kept, Monitor, fail, find, known, take_name

#: Options that change nothing here.
IGNORED_WITH_VALUE = [
    "--cpus",
    "-c",
    "--cpu-shares",
    "-m",
    "--memory",
    "--memory-swap",
    "--shm-size",
    "--gpus",
    "--ulimit",
    "--label",
    "-l",
    "--pull",
    "--hostname",
    "-h",
    "--user",
    "-u",
    "--log-level",
    "--platform",
    "--cpuset-cpus",
    "--runtime",
    "--ipc",
    "--pid",
    "--security-opt",
    "--cap-add",
    "--cap-drop",
    "--add-host",
    "--tmpfs",
    "--stop-signal",
    "--device",
    "--uts",
]
IGNORED = (
    "--init",
    "-t",
    "--tty",
    "-i",
    "--interactive",
    "-q",
    "--quiet",
    "--privileged",
    "--read-only",
    "--oom-kill-disable",
)
PASSED = (
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "PYTHONPATH",
    "KUBERNETES_BED_ADDRESS",
)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        fail(f"{message}.\nSee 'docker --help'. (the test bed's docker)")


def run_options(words):
    """Read the words after `docker run`."""
    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("-d", "--detach", action="store_true")
    parser.add_argument("--rm", action="store_true")
    parser.add_argument("--name", default="")
    parser.add_argument("-e", "--env", action="append", default=[])
    parser.add_argument("--env-file", action="append", default=[])
    parser.add_argument("-v", "--volume", action="append", default=[])
    parser.add_argument("-w", "--workdir", default="/")
    parser.add_argument("--entrypoint", default="")
    parser.add_argument("--network", "--net", default="bridge")
    parser.add_argument("--restart", default="no")
    parser.add_argument("--stop-timeout", type=int, default=10)
    parser.add_argument("--log-driver", default="json-file")
    parser.add_argument("--log-opt", action="append", default=[])
    parser.add_argument("--cidfile", default="")
    for option in IGNORED_WITH_VALUE:
        parser.add_argument(option, dest="ignored", action="append")
    for option in IGNORED:
        parser.add_argument(option, dest="without", action="store_true")
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args(words)


def environment(options):
    """Return the environment of a container."""
    found = {name: os.environ[name] for name in PASSED if name in os.environ}
    configuration = json.loads(Path(HERE, "instance.json").read_text())
    found |= {"PATH": configuration["path"], "HOME": configuration["home"], "LANG": "C.UTF-8"}
    found["HOSTNAME"] = socket.gethostname()
    pairs = []
    for name in options.env_file:
        if not Path(name).exists():
            fail(f"open {name}: no such file or directory.")
        lines = Path(name).read_text().splitlines()
        pairs += [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    for pair in pairs + options.env:
        name, equals, text = pair.partition("=")
        if equals:
            found[name] = text
        elif name in os.environ:
            found[name] = os.environ[name]
    hook = "/.kubernetes-bed/hook"
    paths = [p for p in found.get("PYTHONPATH", "").split(":") if p and p != hook]
    found["PYTHONPATH"] = ":".join([hook, *paths])
    return found


def do_run(words):
    options = run_options(words)
    if options.network != "host":
        fail("the test bed has --network host only.")
    command = options.command
    if command[:1] == ["--"]:
        command = command[1:]
    if options.entrypoint:
        command = [options.entrypoint, *command]
    if not command:
        command = ["python"]
    if command[0] in {"python", "python3", "/opt/venv/bin/python", "/opt/venv/bin/python3"}:
        command = [json.loads(Path(HERE, "instance.json").read_text())["python"], *command[1:]]
    variables = environment(options)
    identity = secrets.token_hex(32)
    kept = take_name(identity, options.name or f"container_{identity[:8]}")
    logs = dict(pair.partition("=")[::2] for pair in options.log_opt)
    kept.write(image=options.image, log_driver=options.log_driver, log_options=logs)
    if options.log_driver not in {"json-file", "awslogs", "local", "none", "journald"}:
        fail(f"the test bed has no log driver {options.log_driver}.")
    if options.cidfile:
        Path(options.cidfile).write_text(identity)
    monitor = Monitor(kept, options, command, variables)
    if not options.detach:
        raise SystemExit(monitor.run(follow=True))
    if os.fork():
        print(identity, flush=True)
        return
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    monitor.run()
    os._exit(0)


def children(pid):
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def send(kept, number):
    """Send a signal to the first process of a container."""
    pid = kept.read().get("pid")
    for child in children(pid) if pid else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)


def ended(kept, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if kept.read()["status"] not in {"created", "running"}:
            return True
        time.sleep(0.05)
    return False


def do_stop(words):
    parser = Parser(add_help=False)
    parser.add_argument("-t", "--time", "--timeout", type=int, default=10)
    parser.add_argument("names", nargs="+")
    options = parser.parse_args(words)
    for name in options.names:
        kept = find(name)
        send(kept, signal.SIGTERM)
        if not ended(kept, options.time):
            send(kept, signal.SIGKILL)
            ended(kept, 10)
        print(name)


def do_kill(words):
    parser = Parser(add_help=False)
    parser.add_argument("-s", "--signal", default="KILL")
    parser.add_argument("names", nargs="+")
    options = parser.parse_args(words)
    for name in options.names:
        send(find(name), getattr(signal, f"SIG{options.signal.removeprefix('SIG')}"))
        print(name)


def do_wait(words):
    for name in words:
        kept = find(name)
        ended(kept, 10**9)
        print(kept.read().get("exit_code", 0))


def do_rm(words):
    force = "-f" in words or "--force" in words
    for name in [word for word in words if not word.startswith("-")]:
        kept = find(name)
        if kept.read()["status"] == "running":
            if not force:
                fail(
                    f"Error response from daemon: cannot remove container {name}: it is running", 1
                )
            send(kept, signal.SIGKILL)
            ended(kept, 10)
        kept.write(status="removed")
        print(name)


def do_ps(words):
    quiet = any(word.startswith("-") and "q" in word for word in words)
    all_ = any(word in {"-a", "--all", "-aq", "-qa"} for word in words)
    if not quiet:
        print("CONTAINER ID   IMAGE   STATUS   NAMES")
    for folder in sorted(STATE.iterdir()) if STATE.exists() else ():
        state = Kept(folder).read()
        if state["status"] == "running" or (all_ and known(folder)):
            line = (
                f"{folder.name[:12]}   {state.get('image')}   {state['status']}   {state['name']}"
            )
            print(folder.name[:12] if quiet else line)


def do_logs(words):
    (name,) = [word for word in words if not word.startswith("-")]
    log = find(name).folder / "log"
    sys.stdout.buffer.write(log.read_bytes() if log.exists() else b"")


def do_inspect(words):
    parser = Parser(add_help=False)
    parser.add_argument("-f", "--format", default="")
    parser.add_argument("name")
    options = parser.parse_args(words)
    state = find(options.name).read()
    known = {
        "{{.State.ExitCode}}": state.get("exit_code", 0),
        "{{.State.OOMKilled}}": str(state.get("oom_killed", False)).lower(),
        "{{.State.Running}}": str(state["status"] == "running").lower(),
        "{{.State.Status}}": state["status"],
        "{{.Id}}": state["id"],
    }
    if options.format and options.format not in known:
        fail(f"the test bed's docker does not know the format {options.format}")
    print(known[options.format] if options.format else json.dumps([state]))


def do_nothing(words):
    return


def do_login(words):
    if "--password-stdin" in words:
        sys.stdin.read()
    print("Login Succeeded")


COMMANDS = {
    "run": do_run,
    "pull": do_nothing,
    "login": do_login,
    "info": do_nothing,
    "version": do_nothing,
    "stop": do_stop,
    "kill": do_kill,
    "wait": do_wait,
    "rm": do_rm,
    "ps": do_ps,
    "logs": do_logs,
    "inspect": do_inspect,
}


def main():
    words = sys.argv[1:]
    if words[:1] == ["container"]:
        words = words[1:]
    if not words or words[0] not in COMMANDS:
        fail(f"'{' '.join(words[:1])}' is not a docker command of the test bed.", 1)
    COMMANDS[words[0]](words[1:])


if __name__ == "__main__":
    main()
