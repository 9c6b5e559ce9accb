"""The workflow, the manifest and the shell of a user of each cloud, as fixtures of test files."""

import importlib
import sys

import pytest
from clouds import CLOUDS

COMPONENTS = """
components:
  crops: {cpus: 0.5, memory: 1G, workers: 2, env: {SEASON: dry}}
  statistics: {cpus: 0.25, memory: 512M, workers: 1}
"""
#: The value of a secret of the pool "crops".
SECRET = "s3cret-7d20"
#: A module of the workflow: no file of this machine is on the machines, so it has to be carried.
WORK = """
import os
import time
from pathlib import Path


def where(_=None):
    return os.environ["SCALABLE_HOST"]


def season():
    return os.environ["SEASON"]


def key():
    return os.environ.get("API_KEY")


def beside():
    return (Path(__file__).parent / "table.csv").read_text()


def after(seconds, value):
    time.sleep(seconds)
    return value


def environment():
    return dict(os.environ), Path("/proc/1/environ").read_text() + Path("/proc/self/cmdline").read_text()
"""


def on(*names):
    """Run a test on some clouds always, and on all others as a slow test.

    For what is written once for all clouds, one is enough; where the providers' own code decides, a
    test runs on each.
    """
    kinds = [
        name if name in names else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted(CLOUDS)
    ]
    return pytest.mark.parametrize("cloud", kinds, indirect=True, scope="module")


@pytest.fixture(scope="module", params=sorted(CLOUDS))
def cloud(request):
    """Each cloud."""
    fixture, make = CLOUDS[request.param]
    return make(request.getfixturevalue(fixture))


@pytest.fixture(scope="module")
def cloud_place(cloud, tmp_path_factory):
    """A directory with the manifest, and the shell of a user."""
    directory = tmp_path_factory.mktemp("cloud")
    secret = "env: {SEASON: dry}, secrets: {API_KEY: {env: CROPS_KEY}}"
    components = COMPONENTS.replace("env: {SEASON: dry}", secret)
    (directory / "scalable.yaml").write_text(cloud.manifest(components))
    (directory / "cloud_work.py").write_text(WORK)
    (directory / "table.csv").write_text("1,2")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.syspath_prepend(directory)
        patch.setenv("CROPS_KEY", SECRET)
        patch.setenv("XDG_STATE_HOME", str(directory / "state"))
        cloud.use(patch)
        yield directory
    sys.modules.pop("cloud_work", None)


@pytest.fixture(scope="module")
def cloud_work(cloud_place):
    """The module of the workflow."""
    sys.modules.pop("cloud_work", None)
    return importlib.import_module("cloud_work")
