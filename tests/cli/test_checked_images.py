"""``scalable validate --check`` starts images by a docker that is a stand-in."""

import json
import subprocess

import pytest

from scalable.containers import read_versions
from scalable.model import ValidationReport
from scalable.providers.slurm import check
from scalable.session.request import Request

# Keeps its arguments, and answers as docker does.
DOCKER = """\
#!/bin/sh
printf '%s\\0' "${0##*/}" "$@" >> "$CALLS/$1"
case $1 in
run) printf '%s\\n' "$SAYS" ;;
esac
"""


def versions(**changes):
    here = read_versions()
    return json.dumps({"python": here.python, "packages": {**here.packages, **changes}})


@pytest.fixture
def docker(tmp_path_factory, monkeypatch):
    """A docker that does nothing, alone on PATH with a shell."""
    programs, calls = (tmp_path_factory.mktemp(name) for name in ("programs", "calls"))
    (programs / "docker").write_text(DOCKER)
    (programs / "docker").chmod(0o755)
    found = subprocess.run(["which", "sh"], capture_output=True, text=True, check=True).stdout
    (programs / "sh").symlink_to(found.strip())
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.setenv("SAYS", versions())
    return calls


def called(calls, verb):
    return (calls / verb).read_text().split("\0")[:-1]


BOXED = """\
version: 1
project: {name: climate}
targets:
  boxed: {provider: local, processes: true, containers: docker}
  hpc: {provider: slurm, container_runtime: docker}
components:
  model: {image: site/model:1}
  analysis: {image: site/analysis:1}
  bare: {cpus: 1}
"""


def test_a_live_check_says_which_image_has_no_suitable_python(invoke, project, docker, monkeypatch):
    (project / "scalable.yaml").write_text(BOXED)
    assert invoke("validate", "--target", "boxed", "--check").code == 0
    assert called(docker, "run").count("site/model:1") == 1
    monkeypatch.setenv("SAYS", versions(scalable=None, distributed=None))
    result = invoke("validate", "--target", "boxed", "--check")
    assert result.code == 2
    assert result.out.startswith(
        "scalable.yaml:7:18: error E_BAD_OPTION: the Python of image 'site/model:1' does not have "
        "the packages scalable and distributed [components.model.image]\n"
    )
    assert "'site/analysis:1' does not have" in result.out
    assert "docs/images.md shows how to make one" in result.out


def test_a_check_of_slurm_starts_images_where_their_runtime_is_here(
    project, docker, monkeypatch, tmp_path
):
    (project / "scalable.yaml").write_text(BOXED)
    monkeypatch.setattr(check, "wait_for", lambda asked: asked.close() or ValidationReport())
    request = Request.read(None, "hpc")
    assert request.check().ok
    assert called(docker, "run").count("site/analysis:1") == 1
    monkeypatch.setenv("SAYS", versions(scalable=None))
    found = request.check().errors
    assert [d.dotted_path for d in found] == ["components.model.image", "components.analysis.image"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert request.check().ok


def test_images_of_a_runtime_that_is_not_here_are_checked_as_files(project, monkeypatch):
    text = BOXED.replace("container_runtime: docker", "container_runtime: apptainer")
    text = text.replace("image: site/model:1", "image: ./nosuch.sif")
    (project / "scalable.yaml").write_text(text)
    monkeypatch.setenv("PATH", str(project))
    monkeypatch.setattr(check, "wait_for", lambda asked: asked.close() or ValidationReport())
    report = Request.read(None, "hpc").check()
    (error,), (warning,) = report.errors, report.warnings
    assert (error.dotted_path, error.line) == ("components.model.image", 7)
    assert error.message == "image ./nosuch.sif does not exist"
    assert "apptainer is not on PATH here, so image 'site/analysis:1'" in warning.message
    (project / "nosuch.sif").touch()
    report = Request.read(None, "hpc").check()
    assert report.ok
    assert len(report.warnings) == 2
