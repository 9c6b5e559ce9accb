"""``scalable image``: the Dockerfile that it shows, and builds by a docker that is a stand-in."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib import metadata

import pytest

from scalable.containers import read_versions
from scalable.providers.slurm import live
from scalable.session.request import Request
from scalable.spec import ValidationReport

# Keeps its arguments, and for a build the files of its context, and answers as docker does.
DOCKER = """\
#!/bin/sh
printf '%s\\0' "${0##*/}" "$@" >> "$CALLS/$1"
case $1 in
build)
    for last; do :; done
    cp -r "$last" "$CALLS/context"
    echo "Step 1/6 : FROM base"
    echo "Step 2/6 : RUN pip" >&2
    [ -z "$HANGS" ] || { echo $$ > "$CALLS/pid"; while :; do sleep 0.05; done; }
    [ -z "$FAILS" ] || { echo "ERROR: no space left on device" >&2; exit 1; }
    ;;
image) echo "${ID:-sha256:0011}" ;;
run) printf '%s\\n' "$SAYS" ;;
esac
"""


def versions(**changes):
    here = read_versions()
    return json.dumps({"python": here.python, "packages": {**here.packages, **changes}})


@pytest.fixture
def docker(tmp_path_factory, monkeypatch):
    """A docker that does nothing, and nothing else that builds images, on PATH."""
    programs, calls = (tmp_path_factory.mktemp(name) for name in ("programs", "calls"))
    (programs / "docker").write_text(DOCKER)
    (programs / "docker").chmod(0o755)
    for name in ("sh", "cp", "sleep", "cat"):
        found = subprocess.run(["which", name], capture_output=True, text=True, check=True).stdout
        (programs / name).symlink_to(found.strip())
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.setenv("SAYS", versions())
    return calls


@pytest.fixture
def harvest(project):
    manifest = project / "scalable.yaml"
    text = manifest.read_text().replace("cpus: 1\n", "cpus: 1\n    image: site/model:1\n")
    manifest.write_text(
        text.replace(
            "  cluster:\n",
            "  gke:\n    provider: kubernetes\n    image: docker://ghcr.io/site/climate:2\n"
            "  bare:\n    provider: kubernetes\n  cluster:\n",
        )
    )
    (project / "requirements.txt").write_text("numpy<3\n-e ../lib\n")
    return project


def called(calls, verb):
    return (calls / verb).read_text().split("\0")[:-1]


SHOWN = """\
# Image for the workers of project climate.
# Requirements: requirements.txt.
# Left out: -e ../lib: it is an editable install of this machine.
# {wheel} is made by `scalable image`, from the installed files.

FROM docker.io/library/python:{python}-slim

RUN mkdir -p /tmp/scalable-image \\
 && printf '%s\\n' \\
      'numpy<3' \\
{pins}
      > /tmp/scalable-image/requirements.txt \\
 && python3 -m pip install --no-cache-dir -r /tmp/scalable-image/requirements.txt \\
 && rm -r /tmp/scalable-image

# The same releases as on the client: calls and results are pickles.
COPY {wheel} /tmp/
RUN python3 -m pip install --no-cache-dir \\
      '/tmp/{wheel}[kubernetes]' \\
{pins}
 && rm /tmp/{wheel}

# No USER: the credentials of a cluster are files that only their owner can read. The owner is root
# in pods, and in containers of podman the user who starts them, who is root inside. Where pods may
# not run as root, a pod_template has: securityContext: {{runAsUser: 1000, fsGroup: 1000}}
RUN useradd --uid 1000 --create-home scalable

RUN python3 -c 'import scalable.worker.program'
"""


def shown():
    packages = {n: v for n, v in read_versions().packages.items() if n != "scalable"}
    return SHOWN.format(
        wheel=f"scalable-{metadata.version('scalable')}-py3-none-any.whl",
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        pins="\n".join(f"      {name}=={release} \\" for name, release in packages.items()),
    )


def test_the_dockerfile_of_a_target(invoke, harvest):
    result = invoke("image", "show", "--target", "gke")
    assert (result.code, result.out) == (0, shown())
    assert result.err == "left out: -e ../lib: it is an editable install of this machine\n"
    value = json.loads(invoke("image", "show", "--target", "gke", "--format", "json").out)
    assert value["dockerfile"] == shown()
    assert (value["key"], value["image"]) == (
        "targets.gke.image",
        "docker://ghcr.io/site/climate:2",
    )
    assert value["left_out"] == ["-e ../lib: it is an editable install of this machine"]


def test_the_image_of_a_component_is_the_components(invoke, harvest):
    def place(*arguments):
        value = json.loads(invoke("image", "show", *arguments, "--format", "json").out)
        return value["key"], value["image"]

    assert place("--target", "gke", "--component", "model") == (
        "components.model.image",
        "site/model:1",
    )
    assert place("--target", "gke", "--component", "analysis") == (
        "components.analysis.image",
        None,
    )
    assert place("--target", "local") == ("components.model.image", "site/model:1")
    wrong = invoke("image", "show", "--component", "x")
    assert (wrong.code, wrong.out) == (4, "")
    assert wrong.err.startswith("error: no component is called 'x'; known: 'model', 'analysis'")


def test_a_storage_and_a_provider_bring_their_extras(invoke, harvest):
    manifest = harvest / "scalable.yaml"
    manifest.write_text(
        manifest.read_text().replace("name: climate", "name: climate\n  default_storage: gs://b/p")
    )
    assert "[gs,kubernetes]' \\\n" in invoke("image", "show", "--target", "gke").out
    assert ".whl[gs]' \\\n" in invoke("image", "show", "--target", "local").out


def test_all_that_a_builder_needs_is_written_to_a_directory(invoke, harvest):
    result = invoke("image", "show", "--target", "gke", "--context", "made/here")
    wheel = f"scalable-{metadata.version('scalable')}-py3-none-any.whl"
    assert f"wrote made/here/Dockerfile, made/here/{wheel}\n" in result.err
    assert (harvest / "made" / "here" / "Dockerfile").read_text() == shown()
    assert (harvest / "made" / "here" / wheel).read_bytes()[:2] == b"PK"


BUILT = """\
built ghcr.io/site/climate:2 (sha256:0011)
push it:  docker push ghcr.io/site/climate:2
the manifest names it already: targets.gke.image
"""


def test_an_image_is_built_under_the_name_in_the_manifest(invoke, harvest, docker):
    result = invoke("image", "build", "--target", "gke")
    assert (result.code, result.out) == (0, BUILT)
    assert "Step 1/6 : FROM base\nStep 2/6 : RUN pip\n" in result.err
    assert "left out: -e ../lib" in result.err
    build = called(docker, "build")
    assert build[:5] == ["docker", "build", "--tag", "ghcr.io/site/climate:2", "--file"]
    assert build[5] == f"{build[6]}/Dockerfile"
    assert (docker / "context" / "Dockerfile").read_text() == shown()
    wheel = f"scalable-{metadata.version('scalable')}-py3-none-any.whl"
    assert sorted(os.listdir(docker / "context")) == ["Dockerfile", wheel]
    assert not os.path.exists(build[6])
    assert "ghcr.io/site/climate:2" in called(docker, "run")


NAMED = """\
name it in the manifest:
  targets:
    bare:
      image: ghcr.io/site/own:3
"""


def test_an_image_that_the_manifest_does_not_name_shows_its_line(invoke, harvest, docker):
    result = invoke("image", "build", "--target", "bare", "--tag", "ghcr.io/site/own:3")
    assert result.code == 0
    assert result.out.endswith(NAMED)
    value = json.loads(invoke("image", "build", "--target", "bare", "--format", "json").out)
    assert re.fullmatch(r"localhost/scalable-climate:[0-9a-f]{12}", value["image"])
    assert (value["id"], value["named"]) == ("sha256:0011", False)


def test_podmans_ids_are_completed_and_a_platform_is_not_started_here(
    invoke, harvest, docker, monkeypatch
):
    monkeypatch.setenv("ID", "2233")
    arguments = ("--tag", "a:1", "--platform", "linux/arm64", "--format", "json")
    value = json.loads(invoke("image", "build", *arguments).out)
    assert value["id"] == "sha256:2233"
    assert called(docker, "build")[6:8] == ["--platform", "linux/arm64"]
    assert not (docker / "run").exists()


def test_a_build_that_fails_is_quoted(invoke, harvest, docker, monkeypatch):
    monkeypatch.setenv("FAILS", "1")
    result = invoke("image", "build", "--tag", "a:1", "--format", "quiet")
    assert (result.code, result.out) == (4, "")
    assert "error: docker could not build the image:" in result.err
    assert "ERROR: no space left on device" in result.err


def test_an_image_that_no_worker_could_use_is_an_error(invoke, harvest, docker, monkeypatch):
    monkeypatch.setenv("SAYS", versions(scalable=None))
    result = invoke("image", "build", "--tag", "a:1")
    assert result.code == 4
    assert "error: the Python of image 'a:1' does not have the package scalable\n" in result.err


def test_a_build_that_takes_too_long_is_ended(invoke, harvest, docker, monkeypatch):
    monkeypatch.setenv("HANGS", "1")
    result = invoke("image", "build", "--tag", "a:1", "--timeout", "0.2s")
    assert result.code == 4
    assert "docker build did not end within 0.2 s" in result.err


def test_an_interrupted_build_leaves_no_process(harvest, docker, monkeypatch):
    monkeypatch.setenv("HANGS", "1")
    program = subprocess.Popen(
        [sys.executable, "-m", "scalable", "image", "build", "--tag", "a:1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while not (docker / "pid").exists() or not (docker / "pid").read_text().strip():
            assert time.monotonic() < deadline
            assert program.poll() is None
            time.sleep(0.05)
        program.send_signal(signal.SIGINT)
        assert program.wait(60) != 0
    finally:
        program.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(int((docker / "pid").read_text()), 0)


def test_without_a_builder_the_error_names_the_way_out(invoke, harvest, monkeypatch):
    monkeypatch.setenv("PATH", str(harvest))
    result = invoke("image", "build", "--tag", "a:1")
    assert result.code == 4
    assert result.err.splitlines()[0] == (
        "error: neither podman nor docker is on PATH, and builds the image"
    )
    assert "`scalable image show --context DIRECTORY` writes the Dockerfile" in result.err


@pytest.mark.parametrize("image", ["model.sif", "ghcr.io/site/model@sha256:00", "./model"])
def test_an_image_that_is_no_name_needs_a_tag(invoke, harvest, docker, image):
    manifest = harvest / "scalable.yaml"
    manifest.write_text(manifest.read_text().replace("site/model:1", image))
    result = invoke("image", "build", "--target", "local")
    assert result.code == 4
    assert (
        f"components.model.image is '{image}', which is no name that a build can give" in result.err
    )
    assert "give --tag" in result.err


def test_a_tag_that_could_be_an_option_is_refused(invoke, harvest, docker):
    result = invoke("image", "build", "--tag=--evil")
    assert result.code == 4
    assert not (docker / "build").exists()


# The check of a target's images ------------------------------------------------------------------

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
    assert "`scalable image build` makes one" in result.out


def test_a_check_of_slurm_starts_images_where_their_runtime_is_here(
    project, docker, monkeypatch, tmp_path
):
    (project / "scalable.yaml").write_text(BOXED)
    monkeypatch.setattr(live, "wait_for", lambda asked: asked.close() or ValidationReport())
    request = Request.read(None, "hpc")
    assert request.check().ok
    assert called(docker, "run").count("site/analysis:1") == 1
    monkeypatch.setenv("SAYS", versions(scalable=None))
    found = request.check().errors
    assert [d.dotted_path for d in found] == ["components.model.image", "components.analysis.image"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert request.check().ok
