"""What may be asked for, and how an image is written for each runtime."""

import pytest

from scalable.containers import HostPython, container_name
from scalable.errors import ProviderError


@pytest.mark.parametrize(("runtime", "image", "reference"), [
    ("podman", "ghcr.io/site/model:1", "ghcr.io/site/model:1"),
    ("docker", "docker://ghcr.io/site/model:1", "ghcr.io/site/model:1"),
    ("apptainer", "ghcr.io/site/model:1", "docker://ghcr.io/site/model:1"),
    ("apptainer", "docker://python:3.12", "docker://python:3.12"),
    ("apptainer", "oras://site/model.sif", "oras://site/model.sif"),
    ("apptainer", "model.sif", "model.sif"),
    ("apptainer", "/images/model", "/images/model"),
    ("apptainer", "./sandbox", "./sandbox"),
])  # fmt: skip
def test_one_image_serves_each_runtime(request_for, runtime, image, reference):
    assert request_for(runtime, image=image).reference == reference


@pytest.mark.parametrize(("image", "path"), [
    ("model.sif", "model.sif"), ("/images/model", "/images/model"), ("python:3.12", None),
    ("oras://site/model.sif", None),
])  # fmt: skip
def test_files_are_told_from_references(request_for, image, path):
    assert request_for("apptainer", image=image).image_file == path


@pytest.mark.parametrize(
    "changes", [{"image": ""}, {"image": "--privileged"}, {"name": "a b"}, {"name": "$(reboot)"}]
)
def test_values_that_would_change_the_command_line_are_refused(request_for, changes):
    with pytest.raises((ProviderError, ValueError), match="cannot be|is not"):
        request_for("podman", **changes)


def test_the_interpreter_is_the_images_unless_the_hosts_is_mounted(request_for):
    assert request_for("podman").python == "python3"
    host = HostPython("/venv/bin/python", ("/venv",))
    assert request_for("podman", host_python=host).python == "/venv/bin/python"


def test_names_are_kept_where_they_can_be_and_stay_unique_where_not():
    assert container_name("trial-1a/gcam-3").startswith("scalable-trial-1a-gcam-3-")
    assert container_name("trial-1a-gcam_3.0") == "scalable-trial-1a-gcam_3.0"
    assert len({container_name(unit) for unit in ("a/b", "a b", "a-b", "ä-b")}) == 4
