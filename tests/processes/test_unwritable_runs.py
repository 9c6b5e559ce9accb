"""Sessions where runs cannot be recorded, and next to damaged runs."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
from scalable import ScalableSession
with ScalableSession.local({"a": 1}) as client:
    print(client.submit(abs, -2, tag="a").result())
"""
#: Options of small file systems on which a run's files cannot be created.
MOUNTS = {"read-only": "ro", "full": "size=4k"}


REMOVED = pytest.param(
    "removed",
    marks=pytest.mark.skipif(
        sys.version_info[:3] == (3, 13, 0),
        reason="Python 3.13.0 cannot import modules in a removed directory",
    ),
)


@pytest.fixture(params=["a file", REMOVED, *MOUNTS])
def place(request, tmp_path):
    """Return a working directory in which no run can be recorded."""
    here = tmp_path / "here"
    here.mkdir()
    if request.param == "a file":
        (here / ".scalable").touch()
    if request.param not in MOUNTS:
        yield here
        return
    options = MOUNTS[request.param]
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(here)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("mounting needs root's rights")
    try:
        yield here
    finally:
        subprocess.run(["umount", "-l", str(here)], check=True)


def run(place, **variables):
    command = [sys.executable, "-c", SCRIPT]
    if not list(place.iterdir()) and not place.is_mount():
        command = ["sh", "-c", 'rmdir "$PWD" && exec "$0" "$@"', *command]
    return subprocess.run(
        command,
        cwd=place,
        env={**os.environ, "SCALABLE_TELEMETRY": "1", **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_session_starts_and_warns_once_if_nothing_is_recorded(place):
    done = run(place)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("nothing is recorded: cannot record a run in ")
    assert "set SCALABLE_RUNS_DIR to a writable directory" in line
    assert not list(place.parent.glob("here/.scalable/runs/run-*"))


@pytest.mark.parametrize("place", ["a file", "read-only"], indirect=True)
def test_a_session_refuses_to_start_if_the_record_was_asked_for(place):
    done = run(place, SCALABLE_RUNS_DIR=".scalable/runs")
    assert (done.returncode, done.stdout) == (1, "")
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: cannot record a run in ")
    assert "SCALABLE_TELEMETRY=0" in hint


def test_a_session_is_silent_about_damaged_runs(tmp_path):
    runs = tmp_path / ".scalable" / "runs"
    for name, content in (("0", "{"), ("1", "")):
        damaged = runs / f"run-20260101T000000Z-local-0000000{name}"
        damaged.mkdir(parents=True)
        (damaged / "run.json").write_text(content)
    (runs / "run-20260101T000000Z-local-00000002").touch()
    done = run(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")
