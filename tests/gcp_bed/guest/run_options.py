"""The options of `docker run` on a machine of the test bed."""

import json
import os
import re
import sys
from pathlib import Path

#: What the test bed tells the machine's `docker`.
BED = json.loads(Path("/.gcp-bed/run/machine.json").read_text())
#: Options of `docker run` that take a value and have no effect here.
IGNORED = {
    "--memory-swap", "--memory-reservation", "--cpus", "--cpu-shares", "-c",
    "--cpuset-cpus", "--shm-size", "--gpus", "--log-driver", "--log-opt", "--pull", "--ulimit",
    "--cap-add", "--cap-drop", "--security-opt", "--device", "--pid", "--ipc", "--label", "-l",
    "--user", "-u", "--oom-score-adj", "--tmpfs", "--platform", "--runtime", "--uts", "--hostname",
    "-h", "--pids-limit", "--cgroup-parent", "--add-host", "--dns", "--label-file",
}  # fmt: skip
FLAGS = {
    "-d": "detach", "--detach": "detach", "--rm": "remove", "-i": "", "--interactive": "",
    "-t": "", "--tty": "", "-it": "", "--init": "init", "--privileged": "", "-q": "", "--quiet": "",
    "--read-only": "", "--no-healthcheck": "", "--oom-kill-disable": "", "--sig-proxy": "",
}  # fmt: skip
NETWORKS = {"host", "default", "bridge"}


def fail(text, code=125):
    print(f"docker: {text}", file=sys.stderr)
    sys.exit(code)


def parse_run(words):
    """Return what the arguments of `docker run` ask for."""
    wanted = {
        "detach": False,
        "remove": False,
        "init": False,
        "memory": BED["memory"],
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
    elif option in {"--memory", "-m"}:
        wanted["memory"] = min(BED["memory"], size(value))
    elif option == "--stop-timeout":
        wanted["stop_timeout"] = int(value)
    elif option not in IGNORED:
        fail(f"unknown flag: {option}\nSee 'docker run --help'.")


def size(text):
    """Return the bytes of a size such as 512m."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([bkmg]?)b?", text.lower())
    if not found:
        fail(f"invalid argument {text!r} for --memory: invalid size")
    return int(float(found[1]) * 1024 ** "bkmg".index(found[2] or "b"))


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
