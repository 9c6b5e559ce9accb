"""What is found missing before anything is started."""

import json
import subprocess
import sys

import pytest

from scalable.containers import (
    check_image,
    check_mounts,
    probe_versions,
    read_versions,
    run_bounded,
)
from scalable.errors import ProviderError


@pytest.fixture
def run_on(stand_ins, monkeypatch):
    def use(**variables):
        for name, value in stand_ins.environment(**variables).items():
            monkeypatch.setenv(name, value)

    return use


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_an_image_that_is_here_is_only_looked_at(request_for, stand_ins, run_on, runtime):
    run_on()
    check_image(request_for(runtime))
    assert stand_ins.calls() == [[runtime, "image", "inspect", "ghcr.io/site/model:1"]]


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_an_image_that_is_not_here_is_fetched(request_for, stand_ins, run_on, runtime):
    run_on(INSPECTED="1")
    check_image(request_for(runtime))
    assert stand_ins.calls()[1:] == [[runtime, "pull", "ghcr.io/site/model:1"]]


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_an_image_that_cannot_be_fetched_is_an_error_in_the_runtimes_words(
    request_for, run_on, runtime
):
    run_on(INSPECTED="1", CODE="125")
    with pytest.raises(ProviderError, match=r"'ghcr.io/site/model:1'.*manifest unknown"):
        check_image(request_for(runtime))


def test_apptainers_files_are_looked_for_without_apptainer(
    request_for, stand_ins, run_on, tmp_path
):
    run_on()
    image = tmp_path / "model.sif"
    with pytest.raises(ProviderError, match=f"image {image} does not exist"):
        check_image(request_for("apptainer", image=str(image)))
    image.touch()
    check_image(request_for("apptainer", image=str(image)))
    assert stand_ins.calls() == []


def test_apptainers_references_are_fetched_into_its_cache(request_for, stand_ins, run_on):
    run_on()
    check_image(request_for("apptainer"))
    reference = "docker://ghcr.io/site/model:1"
    assert stand_ins.calls() == [["apptainer", "exec", "--cleanenv", reference, "true"]]
    run_on(CODE="255")
    with pytest.raises(ProviderError, match="cannot be fetched: exit code 255"):
        check_image(request_for("apptainer"))


def test_a_file_for_apptainer_is_not_handed_to_another(request_for):
    with pytest.raises(ProviderError, match=r"model.sif is a file, which .* cannot run"):
        check_image(request_for("podman", image="/images/model.sif"))


def test_mounts_are_checked_on_both_sides(tmp_path):
    missing = tmp_path / "missing"
    assert check_mounts({str(tmp_path): "/work"}) == []
    assert check_mounts({str(missing): "/work"}) == [f"host path {missing} does not exist"]
    assert check_mounts({"data": "work"}) == [
        "host path 'data' is not absolute",
        "container path 'work' is not absolute",
    ]
    assert check_mounts({str(tmp_path): "/work", "/": "/work"}) == [
        "container path /work is given twice"
    ]


def test_a_command_that_hangs_is_a_passing_fault():
    with pytest.raises(ProviderError, match="did not finish within") as caught:
        run_bounded([sys.executable, "-c", "import signal; signal.pause()"], 0.1)
    assert caught.value.transient


def test_a_command_that_is_not_there_is_an_error():
    with pytest.raises(ProviderError, match="cannot be started") as caught:
        run_bounded(["/missing/podman", "pull"], 1)
    assert not caught.value.transient


def inside(command, timeout_s):
    """Run what follows the image on this machine."""
    start = command.index("-c") - 1
    program = sys.executable if command[start] == "ghcr.io/site/model:1" else command[start]
    return run_bounded([program, *command[start + 1 :]], timeout_s)


def test_the_python_inside_says_what_it_has(request_for):
    assert probe_versions(request_for("podman"), inside) == read_versions()


@pytest.mark.parametrize(
    "said", ["", "not json", json.dumps({"python": "3.12.0"}), json.dumps(["3.12.0"])]
)
def test_a_python_that_does_not_answer_is_an_error(request_for, said):
    def run(command, timeout_s):
        return subprocess.CompletedProcess(command, 127, said, "python3: not found")

    with pytest.raises(ProviderError, match="image .* has no program python3: python3: not found"):
        probe_versions(request_for("podman"), run)
