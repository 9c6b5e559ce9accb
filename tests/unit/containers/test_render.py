"""Command lines, word by word."""

import csv
import io
import os
import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalable.containers import (
    ContainerRequest,
    HostPython,
    node_quoted,
    node_value,
    render_batch,
    render_command,
    render_removal,
    setup_entry,
)
from scalable.harmless import is_control

COMMAND = ("python3", "-m", "model")
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
PATHS = TEXT.filter(lambda text: not any(map(is_control, text))).map(lambda text: f"/{text}")
REMOVAL = {
    "podman": ["podman", "rm", "--force", "--time", "3", "scalable-trial-gcam-0"],
    "docker": ["docker", "rm", "--force", "scalable-trial-gcam-0"],
    "apptainer": None,
}
HEAD = ("--interactive", "--name", "scalable-trial-gcam-0", "--rm", "--init")
HOST = ("--network", "host", "--log-driver", "none")


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_a_bare_container(request_for, runtime):
    assert render_command(request_for(runtime), COMMAND) == [
        *(runtime, "run", *HEAD, *HOST),
        *("--entrypoint", "python3", "ghcr.io/site/model:1", "-m", "model"),
    ]


def test_a_bare_container_of_apptainer(request_for):
    assert render_command(request_for("apptainer", image="/images/model.sif"), COMMAND) == [
        *("apptainer", "exec", "--cleanenv", "--no-eval", "/images/model.sif"),
        *COMMAND,
    ]


EVERYTHING = {
    "mounts": {"/qfs/ann/work": "/work"},
    "env": {"YEAR": "2050", "MODE": "a,b=c"},
    "gpus": 2,
    "workdir": "/work",
    "host_python": HostPython("/venv/bin/python", ("/venv",)),
    "entry": ("/entry", "-q"),
    "user": "1000:100",
}
MOUNTS = (
    *("--mount", "type=bind,source=/venv,target=/venv,ro"),
    *("--mount", "type=bind,source=/qfs/ann/work,target=/work"),
)


@pytest.mark.parametrize(
    ("runtime", "gpus"),
    [("docker", ("--gpus", "all")), ("podman", ("--device", "nvidia.com/gpu=all"))],
)
def test_a_container_with_everything(request_for, runtime, gpus):
    assert render_command(request_for(runtime, **EVERYTHING), COMMAND) == [
        *(runtime, "run", *HEAD, *HOST, *gpus, "--user", "1000:100", *MOUNTS),
        *("--env", "YEAR=2050", "--env", "MODE=a,b=c", "--workdir", "/work"),
        *("--entrypoint", "/entry", "ghcr.io/site/model:1", "-q", *COMMAND),
    ]


def test_a_container_of_apptainer_with_everything(request_for):
    assert render_command(request_for("apptainer", **EVERYTHING), COMMAND) == [
        *("env", "APPTAINERENV_YEAR=2050", "APPTAINERENV_MODE=a,b=c"),
        *("apptainer", "exec", "--cleanenv", "--no-eval", "--nv", *MOUNTS, "--pwd", "/work"),
        *("docker://ghcr.io/site/model:1", "/entry", "-q", *COMMAND),
    ]


@pytest.mark.parametrize(("runtime", "command"), REMOVAL.items())
def test_removal(request_for, runtime, command):
    assert render_removal(request_for(runtime)) == command


def targets(request):
    words = render_command(request, COMMAND)
    return [words[at + 1].split("target=")[1] for at, word in enumerate(words) if word == "--mount"]


def test_outer_mounts_come_before_what_lies_below_them(request_for):
    mounts = {"/c": "/data/in/deep", "/a": "/data", "/b": "/data/in", "/d": "/data-2"}
    request = request_for("apptainer", mounts=mounts)
    assert targets(request) == ["/data", "/data/in", "/data/in/deep", "/data-2"]


def test_a_mount_that_has_the_python_already_stays_writable(request_for):
    python = HostPython("/home/ann/venv/bin/python", ("/home/ann/venv", "/opt/py", "/src"))
    mounts = {"/home/ann": "/home/ann", "/other": "/src", "/opt": "/data"}
    request = request_for("podman", mounts=mounts, host_python=python)
    assert targets(request) == ["/data", "/home/ann", "/opt/py,ro", "/src"]


@given(outside=PATHS, inside=PATHS)
def test_any_path_can_be_mounted(outside, inside):
    request = ContainerRequest("docker", "image", "name", mounts={outside: inside})
    words = render_command(request, COMMAND)
    line = words[words.index("--mount") + 1]
    fields = next(csv.reader(io.StringIO(line, newline="")))
    assert fields == ["type=bind", f"source={outside}", f"target={inside}"]


@given(value=TEXT, argument=TEXT, program=TEXT)
def test_any_value_and_argument_reaches_the_batch_script_whole(value, argument, program):
    request = ContainerRequest("podman", "image", "name", env={"V": value})
    script = render_batch(request, [program, argument])
    line = script.split('run --name "$container" ')[1].rsplit(" &\nclient=$!", 1)[0]
    assert shlex.split(line)[-6:] == [
        *("--env", f"V={value}", "--entrypoint", program, "image", argument)
    ]


# Setup commands and variables of the node ---------------------------------------------------------


def ran(words, **environ):
    done = subprocess.run(
        words, env={"PATH": os.environ["PATH"], **environ}, input="secret", capture_output=True,
        text=True, timeout=30, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_setup_lines_change_the_shell_that_starts_the_command(shell):
    entry = setup_entry(["cd /", "NAME='a b'", "export NAME; read LINE || true"], shell)
    command = ["sh", "-c", 'pwd; echo "$NAME"; cat']
    assert ran([*entry, *command]) == (0, "/\na b\nsecret", "")
    assert setup_entry([], shell) == ()


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize(
    ("line", "code"), [("exit 3", 3), ("false", 1), ("nowhere --load", 127), ("exit 0", 1)]
)
def test_setup_line_that_fails_is_named(shell, line, code):
    found = ran([*setup_entry(["true", line, "echo later"], shell), "echo", "started"])
    assert found[:2] == (code, "")
    assert f"setup failed with exit code {0 if line == 'exit 0' else code}: {line}\n" in found[2]


def test_setup_line_with_bad_syntax_is_named():
    code, out, err = ran([*setup_entry(["true", "echo 'open"], "bash"), "echo", "started"])
    assert (code != 0, out) == (True, "")
    assert "setup failed with exit code" in err
    assert ": echo 'open\n" in err


@given(st.text(st.characters(exclude_characters="\0\r", codec="utf-8")), st.text("ab $'\"\\!`"))
@settings(max_examples=40, deadline=None)
def test_variables_of_the_node_are_replaced_alike_here_and_in_a_shell(before, value):
    written = f"{before}$NODE{' '}$NODE_2/$MISSING"
    environ = {"NODE": value, "NODE_2": "two"}
    code, out, err = ran(["bash", "-c", f"printf %s {node_quoted(written)}"], **environ)
    assert (code, err) == (0, "")
    assert out == node_value(written, environ)
    assert out.endswith(f"{value} two/$MISSING")
