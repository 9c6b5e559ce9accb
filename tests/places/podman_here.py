"""The podman of this machine, for tests that run real containers."""

import os
import resource
import shutil
import subprocess
import sys

import pytest

INSTALL = "apt-get install --no-install-recommends podman runc catatonit"
INITS = ("/usr/libexec/podman/catatonit", "/usr/bin/catatonit", "/usr/bin/tini")

# Root's podman asks for more than a machine that is a container itself may give.
CONFIGURATION = """\
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc=4096:4096"]
init_path = "{init}"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""


def not_here():
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        return "they need root on Linux"
    missing = [name for name in ("podman", "runc") if not shutil.which(name)]
    if not any(os.access(path, os.X_OK) for path in INITS):
        missing.append("catatonit")
    return f"{', '.join(missing)} not installed; run: {INSTALL}" if missing else None


def podman(*words):
    return subprocess.run(
        ["podman", *words], capture_output=True, text=True, timeout=60, check=True
    )


def configure(directory, patch):
    """Let podman run here, or skip the test."""
    if reason := not_here():
        said = f"NOT TESTED WITH REAL CONTAINERS: {reason}"
        if os.environ.get("SCALABLE_REQUIRE_SLURM") == "1":
            pytest.fail(said)
        pytest.skip(said)
    configuration = directory / "containers.conf"
    files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 20000)
    init = next(path for path in INITS if os.access(path, os.X_OK))
    configuration.write_text(CONFIGURATION.format(files=files, init=init))
    patch.setenv("CONTAINERS_CONF", str(configuration))
