"""`docker` on a machine of the test bed: containers as local processes.

A container has a mount and a process namespace of its own. Its image is the machine's system with
the Python of the test bed, whatever its name; the home and temporary directories are its own, and
volumes are where `-v` puts them. Its network is the machine's. The state of containers is in
/var/lib/docker.
"""

import fnmatch
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from run_options import BED, fail, parse_run
from supervisor import STATE, Supervisor


def do_run(words):
    wanted = parse_run(words)
    number = os.urandom(32).hex()
    wanted["name"] = wanted["name"] or f"c-{number[:12]}"
    find_image(wanted["image"], 125)
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


def value_of(words, *options):
    """Return the value of an option, None without it."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if option in options:
            return value if equals else following
    return None


def do_stop(words):
    timeout = value_of(words, "-t", "--time", "--timeout")
    for name in names(words):
        path, known = container(name)
        if known["status"] == "running":
            if timeout is not None:
                (path / "stop-timeout").write_text(timeout)
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
    tail = value_of(words, "-n", "--tail")
    with (path / "log").open("rb") as log:
        while True:
            data = log.read()
            if tail not in {None, "all"}:
                data, tail = b"".join(data.splitlines(keepends=True)[-int(tail) :]), None
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
            "{{.State.OOMKilled}}": str(known.get("oom_killed", False)).lower(),
            "{{.Id}}": known["id"],
        }
        if form not in values:
            fail(f"the test bed can inspect only {', '.join(values)}, not {form!r}")
        print(values[form])
    return 0


def find_image(image, code):
    """End with an error if the registry does not have an image."""
    if any(fnmatch.fnmatch(image, pattern) for pattern in BED["missing_images"]):
        fail(f"Error response from daemon: manifest for {image} not found: manifest unknown", code)


def do_pull(words):
    for image in names(words):
        find_image(image, 1)
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
