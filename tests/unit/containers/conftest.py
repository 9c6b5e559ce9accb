"""Requests, and stand-ins for the runtimes that write down how they were called."""

import os

import pytest

from scalable.containers import ContainerRequest

# Each call is a file: its arguments, each ended by a zero byte. "run" lasts until "stop" where
# LASTS is set; where IMMUNE is set, nothing but SIGKILL ends it, and there is nothing to stop. The
# file of a call is written last: then signals are handled, and the rest can be read.
STAND_IN = """\
#!/bin/sh
runtime=${0##*/}
set -- "$runtime" "$@"
case $2-${LASTS:+lasts}-${IMMUNE:+immune} in
exec-lasts-*) trap 'exit 9' TERM ;;
run-*-immune) trap '' TERM ;;
esac
if [ "$2" = exec ]; then
    env -0 > "$CALLS/.environment"
    echo "$$" > "$CALLS/.pid"
fi
printf '%s\\0' "$@" > "$CALLS/.new-$$"
mv "$CALLS/.new-$$" "$CALLS/$(date +%s%N)-$2"
case $2 in
exec)
    [ -z "$LASTS" ] || while :; do sleep 0.02; done
    ;;
run)
    [ -z "$IMMUNE" ] || while :; do sleep 0.02; done
    while [ -n "$LASTS" ] && [ ! -e "$CALLS/.stopped" ]; do sleep 0.02; done
    [ -z "$LASTS" ] || exit 9
    ;;
stop)
    [ -z "$IMMUNE" ] || exit 125
    : > "$CALLS/.stopped"
    ;;
image) exit "${INSPECTED:-0}" ;;
pull) echo "Trying to pull $3..." >&2; echo "manifest unknown" >&2 ;;
esac
exit "${CODE:-0}"
"""


class StandIns:
    """A directory for PATH with runtimes that do nothing but keep a record."""

    def __init__(self, directory):
        self._programs = directory / "programs"
        self._calls = directory / "calls"
        self._programs.mkdir()
        self._calls.mkdir()
        for name in ("apptainer", "docker", "podman"):
            path = self._programs / name
            path.write_text(STAND_IN)
            path.chmod(0o755)

    def environment(self, **variables):
        path = f"{self._programs}:{os.environ['PATH']}"
        return {"PATH": path, "CALLS": str(self._calls), **variables}

    def calls(self):
        paths = sorted(path for path in self._calls.iterdir() if path.name[0] != ".")
        return [path.read_text().split("\0")[:-1] for path in paths]

    def verbs(self):
        return [call[1] for call in self.calls()]

    def seen_environment(self):
        entries = (self._calls / ".environment").read_text().split("\0")[:-1]
        return dict(entry.split("=", 1) for entry in entries)

    def pid(self):
        return int((self._calls / ".pid").read_text())


@pytest.fixture
def stand_ins(tmp_path):
    return StandIns(tmp_path)


@pytest.fixture
def request_for():
    def make(runtime, **changes):
        values = {"image": "ghcr.io/site/model:1", "name": "scalable-trial-gcam-0", **changes}
        return ContainerRequest(runtime, **values)

    return make
