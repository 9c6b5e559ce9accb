"""Secret values of workers: where they arrive, and where they never are."""

import os
import stat
from pathlib import Path

import pytest

from scalable import ClusterError, ManifestError, ScalableSession
from verbs import program, up

VALUE, OF_FILE = "s3cret-5f1c", "t0ken-9a2b"
MANIFEST = """\
version: 1
project: {name: p}
targets:
  local: {provider: local, processes: true, secrets: {TOKEN: {file: token}}}
components:
  model: {workers: 1, secrets: {API_KEY: {env: MY_KEY}}}
"""


def secrets_here():
    return os.environ.get("API_KEY"), os.environ.get("TOKEN")


def fail():
    raise ValueError(f"the key has {len(os.environ['API_KEY'])} characters")


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("MY_KEY", VALUE)
    (tmp_path / "token").write_text(f"{OF_FILE}\n")
    (tmp_path / "scalable.yaml").write_text(MANIFEST)
    return tmp_path


def holders(directory):
    """Files below a directory that contain one of the values."""
    values = VALUE.encode(), OF_FILE.encode()
    files = (path for path in Path(directory).rglob("*") if path.is_file())
    return {path for path in files if any(value in path.read_bytes() for value in values)}


def command_lines():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except OSError:
            continue


def test_workers_of_a_session_have_secrets_that_no_record_has(project):
    with ScalableSession.from_yaml() as client:
        assert client.submit(secrets_here, tag="model").result() == (VALUE, OF_FILE)
        failed = client.submit(fail, tag="model")
        assert isinstance(failed.exception(), ValueError)
        assert not any(VALUE.encode() in line for line in command_lines())
        assert holders(project / "state") == set()
    assert holders(project) == {project / "token"}
    (written,) = (project / ".scalable" / "runs").glob("*/manifest.yaml")
    assert "MY_KEY" in written.read_text()


def test_workers_of_a_detached_cluster_have_secrets_in_private_files_alone(project):
    up("--name", "kept")
    try:
        with ScalableSession.attach("kept") as client:
            assert client.submit(secrets_here, tag="model").result(timeout=60) == (VALUE, OF_FILE)
        files = holders(project) - {project / "token"}
        assert {path.name for path in files} == {"secrets.json", "model.json"}
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    finally:
        assert program("down", "kept", "--yes").returncode == 0
    assert holders(project) == {project / "token"}


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("variable", "secret API_KEY: the variable MY_KEY is not set"),
        ("file", "token cannot be read: No such file or directory"),
    ],
)
def test_a_missing_secret_is_an_error_before_anything_starts(
    project, monkeypatch, missing, message
):
    if missing == "variable":
        monkeypatch.delenv("MY_KEY")
    else:
        (project / "token").unlink()
    with pytest.raises(ClusterError) as caught:
        ScalableSession.from_yaml().start()
    assert message in str(caught.value)
    done = program("up", here=True)
    assert done.returncode != 0
    assert message in done.stderr
    assert not list((project / "state" / "scalable" / "clusters").glob("*/record.json"))


@pytest.mark.parametrize(
    ("secrets", "message"),
    [
        ("{API_KEY: {env: A, file: b}}", "must name one source: env or file"),
        ("{API_KEY: {}}", "must name one source: env or file"),
        ("{API_KEY: {vault: x}}", "vault"),
    ],
)
def test_the_source_of_a_secret_is_checked(project, secrets, message):
    file = project / "scalable.yaml"
    file.write_text(file.read_text().replace("{API_KEY: {env: MY_KEY}}", secrets))
    with pytest.raises(ManifestError) as caught:
        ScalableSession.from_yaml()
    assert message in str(caught.value)
    assert "scalable.yaml:6:" in str(caught.value)
