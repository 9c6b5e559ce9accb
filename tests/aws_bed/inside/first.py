"""The first process of an instance: does what its user data says, and shuts down.

Cloud-init's part: scripts (`#!`), `#cloud-config` with `write_files`, `bootcmd`, `runcmd` and
`power_state`, several parts as MIME, all of them also compressed. Runs with `python -I`.
"""

import base64
import email
import gzip
import json
import os
import pwd
import signal
import subprocess
import sys
import threading
import time
import traceback

CONFIGURATION = "/.aws-bed/instance.json"
PLACE = "/var/lib/cloud/instance"
#: Seconds that processes have at a shutdown.
PATIENCE = 15.0
MESSAGE = "cloud-init: {}"
#: Set by the signal that shuts the instance down.
stopping = threading.Event()


def say(text):
    print(MESSAGE.format(text), flush=True)


# User data ----------------------------------------------------------------------------------------


def run(command, name):
    """Run one command; cloud-init goes on after a failure."""
    code = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, check=False).returncode
    if code:
        say(f"Failed to run {name}: exit code {code}")


def script(text, name):
    """Run a script as cloud-init does, as a file."""
    os.makedirs(f"{PLACE}/scripts", exist_ok=True)
    path = f"{PLACE}/scripts/{name}"
    with open(path, "wb") as file:
        file.write(text)
    os.chmod(path, 0o700)
    run([path], path)


def decoded(entry):
    """Return the bytes of an entry of `write_files`."""
    content = entry.get("content") or ""
    data = content if isinstance(content, bytes) else str(content).encode()
    encoding = entry.get("encoding") or "text/plain"
    if "b64" in encoding or "base64" in encoding:
        data = base64.b64decode(data)
    if encoding.startswith(("gz", "gzip")):
        data = gzip.decompress(data)
    return data


def write(entry):
    """Write a file of `write_files`."""
    path = entry["path"]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    mode = int(str(entry.get("permissions") or "0644"), 8)
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if entry.get("append") else os.O_TRUNC)
    with open(os.open(path, flags, 0o600), "wb") as file:
        file.write(decoded(entry))
        os.fchmod(file.fileno(), mode)
    owner = str(entry.get("owner") or "root").partition(":")[0]
    if owner != "root":
        os.chown(path, pwd.getpwnam(owner).pw_uid, -1)


def shell(commands):
    """Return a script of a list of commands, each a text or a list of words."""
    lines = ["#!/bin/sh"]
    for command in commands:
        words = [command] if isinstance(command, str) else None
        if words is None:
            quoted = ("'" + str(word).replace("'", "'\\''") + "'" for word in command)
            lines.append(" ".join(quoted))
        else:
            lines.append(command)
    return ("\n".join(lines) + "\n").encode()


def configuration(text, late):
    """Do what a `#cloud-config` says; what comes last is put into the list `late`."""
    import yaml

    found = yaml.safe_load(text) or {}
    known = {"write_files", "bootcmd", "runcmd", "power_state", "packages", "package_update"}
    for key in set(found) - known:
        say(f"the test bed does not know the key {key} of cloud-config")
    if found.get("bootcmd"):
        script(shell(found["bootcmd"]), "bootcmd")
    for entry in found.get("write_files") or ():
        write(entry)
    if found.get("runcmd"):
        late.append((shell(found["runcmd"]), "runcmd"))
    if found.get("power_state"):
        late.append((b"#!/bin/sh\npoweroff\n", "zz-power-state"))


def parts(data):
    """Yield the parts of user data, each as bytes."""
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    if not data.lstrip().lower().startswith((b"content-type: multipart", b"mime-version:")):
        yield data
        return
    for part in email.message_from_bytes(data).walk():
        if part.get_content_maintype() != "multipart":
            yield part.get_payload(decode=True)


def user_data(data):
    """Do what the user data says."""
    late = []
    for number, part in enumerate(parts(data), 1):
        if part.startswith(b"#cloud-config"):
            configuration(part, late)
        elif part.startswith(b"#!"):
            late.append((part, f"part-{number:03}"))
        elif part.strip():
            say(f"Unhandled non-multipart (text/x-not-multipart) userdata: {part[:40]!r}")
    for text, name in sorted(late, key=lambda entry: entry[1]):
        script(text, name)
    say("Cloud-init finished")


# The first process --------------------------------------------------------------------------------


def told(*_):
    stopping.set()


def shut_down(patience):
    """End all processes: first politely, then not."""
    say("shutting down")
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
        try:
            os.kill(-1, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.02)
            except ChildProcessError:
                return


def main():
    signal.signal(signal.SIGTERM, told)
    with open(CONFIGURATION) as file:
        instance = json.load(file)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        try:
            if instance["never"]:
                say("the test bed lets this instance hang")
                signal.pause()
            if instance["user_data"]:
                user_data(base64.b64decode(instance["user_data"]))
        except Exception:  # noqa: BLE001 - cloud-init goes on
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(0)
    while not stopping.is_set():
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.05)
        except ChildProcessError:
            time.sleep(0.05)
    shut_down(instance.get("patience", PATIENCE))
    say("Power down")


if __name__ == "__main__":
    main()
