"""Small programs of an instance, each by its name: `shutdown`, `systemctl`, `dnf`, `curl`, `aws`.

Runs with `python -I -S programs.py NAME ARGUMENTS`.
"""

import os
import signal
import sys
import time

METADATA = "169.254.169.254"
#: The place of the program that an instance's own one stands before.
CURL = "/usr/bin/curl"
PACKAGES = {"docker", "awscli", "amazon-cloudwatch-agent", "jq", "docker.io", "curl"}


def refuse(name, words):
    print(f"{name}: the test bed does not know: {' '.join([name, *words])}", file=sys.stderr)
    raise SystemExit(1)


def shutdown(words):
    """Power off now, or after some minutes."""
    if "-r" in words or "--reboot" in words:
        refuse("shutdown", words)
    times = [word for word in words if not word.startswith("-")]
    moment = times[0] if times else "+1"
    minutes = 0.0 if moment == "now" else float(moment.lstrip("+"))
    if minutes:
        if os.fork():
            return
        os.setsid()
        time.sleep(60 * minutes)
    poweroff(())


def poweroff(_):
    os.kill(1, signal.SIGTERM)


def systemctl(words):
    names = [word for word in words if not word.startswith("-")]
    if names[:1] in (["poweroff"], ["halt"]):
        poweroff(())
    elif names[:1] in (["stop"], ["disable"]):
        return
    elif (
        not names
        or names[0] not in {"start", "enable", "daemon-reload", "is-active", "restart"}
        or not set(names[1:]) <= {"docker", "docker.service"}
    ):
        refuse("systemctl", words)


def packages(words):
    """Install nothing: what the image has is there."""
    names = [word for word in words if not word.startswith("-")]
    if names[:1] not in (["install"], ["update"], ["upgrade"], ["makecache"]):
        refuse("package manager", words)
    if not set(names[1:]) <= PACKAGES:
        refuse("package manager", words)


def curl(words):
    """Let the address of the metadata service lead to the test bed's."""
    own = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "").removeprefix("http://")
    words = [word.replace(METADATA, own) for word in words]
    os.execv(CURL, ["curl", *words])


def aws(words):
    if words[:2] == ["ecr", "get-login-password"]:
        print("password")
        return
    refuse("aws", words)


PROGRAMS = {
    "shutdown": shutdown,
    "poweroff": poweroff,
    "halt": poweroff,
    "systemctl": systemctl,
    "dnf": packages,
    "yum": packages,
    "apt-get": packages,
    "amazon-linux-extras": packages,
    "curl": curl,
    "aws": aws,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](sys.argv[2:])
