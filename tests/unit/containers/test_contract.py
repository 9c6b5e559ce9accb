"""An image without a suitable Python is named in plain words."""

import pytest

from scalable.containers import component as module
from scalable.containers import image_fault, image_findings, prove, read_versions
from scalable.containers.component import PackageVersions, lacking
from scalable.errors import ProviderError


@pytest.mark.parametrize("said", [
    'runc create failed: exec: "python3": executable file not found in $PATH: unknown',
    "sh: 1: python3: not found in $PATH",
    'FATAL:   "python3": executable file not found in $PATH',
    "crun: executable file `python3` not found in $PATH: No such file or directory",
])  # fmt: skip
def test_an_image_without_python(said):
    assert image_fault("site/model:1", said) == "image 'site/model:1' has no program python3"


@pytest.mark.parametrize(("said", "package"), [
    ("ModuleNotFoundError: No module named 'scalable'", "scalable"),
    ("/usr/bin/python3: No module named scalable.worker", "scalable"),
    ("Error for 'scalable.worker' (ModuleNotFoundError: No module named 'scalable')", "scalable"),
    ("No module named 'distributed.core'", "distributed"),
    ("No module named 'dask'", "dask"),
])  # fmt: skip
def test_an_image_without_a_package(said, package):
    fault = image_fault("m", said)
    assert fault == f"the Python of image 'm' does not have the package {package}"


@pytest.mark.parametrize("said", [
    "No module named 'daskhelpers'",
    "python3: can't open file 'a.py': No such file",
    "data.csv: No such file or directory",
    "exit code 1",
    "",
])  # fmt: skip
def test_other_faults_are_not_the_images(said):
    assert image_fault("m", said) is None


def test_packages_that_an_image_lacks_are_named_together():
    assert lacking("m", {"scalable": "1", "distributed": "2"}) is None
    assert lacking("m", {}) is None
    assert lacking("m", {"scalable": None, "distributed": None}) == (
        "the Python of image 'm' does not have the packages scalable and distributed"
    )


def test_a_trial_start_says_what_an_image_lacks(request_for, monkeypatch):
    here = read_versions()
    monkeypatch.setattr(module, "check_image", lambda _: None)
    found = PackageVersions(here.python, {**here.packages, "scalable": None})
    monkeypatch.setattr(module, "probe_versions", lambda _: found)
    with pytest.raises(ProviderError, match="does not have the package scalable") as caught:
        prove(request_for("podman"))
    assert "docs/images.md shows how to make one" in caught.value.hint
    (diagnostic,) = image_findings({"model": request_for("podman"), "bare": None})
    assert diagnostic.dotted_path == "components.model.image"
    assert diagnostic.message == caught.value.message
    monkeypatch.setattr(module, "probe_versions", lambda _: here)
    assert image_findings({"model": request_for("podman")}) == []
