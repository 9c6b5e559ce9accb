"""`up` after what failed, several `down` at once, full disks, and records that are removed."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from detached import processes_of
from scalable.records import find
from verbs import listed, program, status, up

MANIFEST = """\
version: 1
project: {name: tests}
targets:
  local: {provider: local, processes: true, max_workers: 4%s}
components:
  a: {cpus: 1, workers: 1}
"""


def test_up_starts_anew_a_cluster_whose_scheduler_could_not_start(place, tmp_path):
    place(", interface: nowhere0", MANIFEST)
    failed = program("up", "--target", "local", "--name", "one", here=True)
    assert failed.returncode == 5
    assert "'nowhere0' is not a valid network interface" in failed.stderr
    assert listed()["one"]["state"] == "failed"
    place("", MANIFEST)
    up("--name", "one")
    assert status("one")["state"] == "running"
    shutil.rmtree(find("one").path)  # as another machine does that takes it for ended
    for process in processes_of(tmp_path):
        process.wait(timeout=60)


def test_up_starts_a_manager_that_died_while_starting_and_three_downs_end_the_cluster(
    place, tmp_path
):
    place("", MANIFEST)
    up("--name", "one", "--no-wait")
    manager = json.loads((find("one").path / "services.json").read_text())["local"]
    os.kill(manager["pid"], signal.SIGKILL)
    assert "started manager local" in up("--name", "one").stderr
    assert status("one")["pools"]["a"]["running"] == 1
    command = [sys.executable, "-m", "scalable", "down", "one", "--yes"]
    downs = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors = [down.communicate(timeout=120)[1] for down in downs]
    assert [down.returncode for down in downs] == [0, 0, 0], errors
    assert (listed(), processes_of(tmp_path)) == ({}, [])


@pytest.mark.parametrize(
    ("options", "words"), [("size=16k", "No space left on device"), ("ro", "Read-only file system")]
)
def test_a_disk_that_takes_no_cluster_is_named(place, tmp_path, options, words):
    disk = tmp_path / "state"
    disk.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", f"{options},mode=700", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("NOT TESTED: a file system of one's own can only be mounted by root")
    try:
        failed = program("up", "--target", "local", "--name", "one", here=True)
        assert failed.returncode == 5
        assert f"cannot be written to {disk}" in failed.stderr
        assert f"{words}\n  hint: free space there" in failed.stderr
        assert processes_of(tmp_path) == []
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
