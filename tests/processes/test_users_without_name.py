"""Processes of a user whom the machine does not know by name, as in many containers."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

UID = 54321
MANIFEST = """\
version: 1
project: {name: tests}
targets:
  local: {provider: local, processes: true, max_workers: 1}
components:
  a: {cpus: 1}
"""
CALL = """
import scalable
with scalable.connect("one") as client:
    print(client.submit(abs, -1, tag="a").result(timeout=60))
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"
)


@pytest.fixture
def home():
    path = Path(tempfile.mkdtemp(prefix="no-name-", dir="/tmp"))
    (path / "scalable.yaml").write_text(MANIFEST)
    os.chown(path, UID, UID)
    yield path
    shutil.rmtree(path)


def run(home, *words, **environment):
    """Run Python as that user, who may read this Python, wherever it is."""
    user = ["--reuid", str(UID), "--regid", str(UID), "--clear-groups"]
    reads = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    return subprocess.run(
        ["setpriv", *user, *reads, sys.executable, *words],
        env={"PATH": os.environ["PATH"], **environment},
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_a_user_without_a_name_has_clusters_whatever_user_says(home):
    as_nobody = {"HOME": str(home), "USER": "root", "LOGNAME": "root"}
    done = run(home, "-m", "scalable", "up", "--name", "one", **as_nobody)
    assert done.returncode == 0, done.stderr
    try:
        (row,) = json.loads(
            run(home, "-m", "scalable", "list", "--format", "json", **as_nobody).stdout
        )["clusters"]
        assert (row["owner"], row["state"]) == (str(UID), "running")
        assert run(home, "-c", CALL, **as_nobody).stdout == "1\n"
    finally:
        done = run(home, "-m", "scalable", "down", "one", "--yes", **as_nobody)
    assert done.returncode == 0, done.stderr


def test_a_user_without_a_home_is_told_what_is_missing(home):
    done = run(home, "-m", "scalable", "list")
    assert done.returncode == 5
    assert f"user {UID} has no home directory" in done.stderr
    assert "XDG_STATE_HOME" in done.stderr
