"""The Dockerfile that is rendered: a shell and a builder read it as it is meant."""

import subprocess

import pytest

from scalable.errors import ProviderError
from scalable.images.render import ImageContent, render_dockerfile
from scalable.images.requirements import Requirements

RELEASES = {"dask": "2026.8.0", "distributed": "2026.8.1"}


def content(required=None, **changes):
    values = {
        "project": "harvest",
        "base": "docker.io/library/python:3.12-slim",
        "requirements": required or Requirements("requirements.txt", ("numpy<3",)),
        "version": "2.0.0",
        "releases": RELEASES,
        "wheel": None,
    }
    return ImageContent(**{**values, **changes})


RELEASED = """\
# Image for the workers of project harvest.
# Requirements: requirements.txt.

FROM docker.io/library/python:3.12-slim

RUN mkdir -p /tmp/scalable-image \\
 && printf '%s\\n' \\
      'numpy<3' \\
      dask==2026.8.0 \\
      distributed==2026.8.1 \\
      > /tmp/scalable-image/requirements.txt \\
 && python3 -m pip install --no-cache-dir -r /tmp/scalable-image/requirements.txt \\
 && rm -r /tmp/scalable-image

# The same releases as on the client: calls and results are pickles.
RUN python3 -m pip install --no-cache-dir \\
      'scalable[kubernetes,s3]==2.0.0' \\
      dask==2026.8.0 \\
      distributed==2026.8.1

# No USER: the credentials of a cluster are files that only their owner can read. The owner is root
# in pods, and in containers of podman the user who starts them, who is root inside. Where pods may
# not run as root, a pod_template has: securityContext: {runAsUser: 1000, fsGroup: 1000}
RUN useradd --uid 1000 --create-home scalable

RUN python3 -c 'import scalable.worker.program'
"""


def test_a_release_is_installed_from_the_index():
    assert render_dockerfile(content(extras=("s3", "kubernetes"))) == RELEASED


def test_a_wheel_is_copied_in():
    text = render_dockerfile(content(wheel="scalable-2.0-py3-none-any.whl"))
    assert "\nCOPY scalable-2.0-py3-none-any.whl /tmp/\n" in text
    assert "\n      /tmp/scalable-2.0-py3-none-any.whl \\\n" in text
    assert " && rm /tmp/scalable-2.0-py3-none-any.whl\n" in text
    assert "scalable==" not in text


def test_what_was_left_out_is_said_at_the_top():
    required = Requirements("pyproject.toml", (), left_out=("-e .: it is editable",))
    lines = render_dockerfile(content(required)).splitlines()
    assert lines[1:3] == ["# Requirements: pyproject.toml.", "# Left out: -e .: it is editable."]


def test_with_hashes_the_engine_is_installed_after_the_requirements():
    required = Requirements("requirements.txt", ("numpy==2 --hash=sha256:00",))
    first, second = render_dockerfile(content(required)).split("# The same releases")
    assert "dask==" not in first
    assert "dask==" in second


def test_git_is_installed_if_a_requirement_needs_it():
    required = Requirements("requirements.txt", ("git+https://host/a",))
    assert "apt-get install --yes --no-install-recommends git" in render_dockerfile(
        content(required)
    )
    assert "apt-get" not in render_dockerfile(content())


def test_extras_of_the_requirements_are_installed():
    required = Requirements("requirements.txt", (), extras=("tui",))
    assert "'scalable[s3,tui]==2.0.0'" in render_dockerfile(content(required, extras=("s3",)))


@pytest.mark.parametrize("line", ["a; x > '3' and y == \"z\"", "a $HOME `id` \\ * %s", "é !x"])
def test_a_shell_writes_the_lines_as_they_are(line, tmp_path):
    required = Requirements("requirements.txt", (line, "b"), constraints=(line,))
    text = render_dockerfile(content(required))
    begin = text.index("RUN mkdir") + len("RUN ")
    script = text[begin : text.index("\n\n", begin)].replace("/tmp/scalable-image", str(tmp_path))
    script = (
        script.replace("python3 -m pip install", "echo").partition(" && rm -r")[0].rstrip(" \\\n")
    )
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert said == f"--no-cache-dir -r {tmp_path}/requirements.txt -c {tmp_path}/constraints.txt\n"
    assert (tmp_path / "requirements.txt").read_text().splitlines()[:2] == [line, "b"]
    assert (tmp_path / "constraints.txt").read_text() == f"{line}\n"


@pytest.mark.parametrize("base", ["a\nRUN evil", "--platform=x", "a b"])
def test_a_base_that_is_no_image_is_refused(base):
    with pytest.raises(ProviderError):
        render_dockerfile(content(base=base))
