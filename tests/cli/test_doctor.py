"""``scalable doctor``."""

import json
import os

import pytest

from scalable.cli.commands import doctor

EXTRAS = ("extra aws", "extra cloud", "extra tui")


@pytest.fixture
def rows(invoke, tmp_path, monkeypatch):
    """Return the rows by name; all that the doctor looks for is in an empty directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def found(code=0):
        done = invoke("doctor", "--format", "json")
        value = json.loads(done.out)
        assert (done.code, value["ok"]) == (code, code == 0)
        return {row["what"]: row for row in value["rows"]}

    return found


def test_a_state_directory_that_others_may_read_fails(rows, invoke, tmp_path):
    state = tmp_path / "scalable"
    state.mkdir()
    state.chmod(0o755)
    found = rows(code=1)["state directory"]
    assert (found["verdict"], found["mend"]) == ("fail", f"chmod 700 {state}")
    shown = invoke("doctor")
    assert shown.code == 1
    assert f"-> chmod 700 {state}" in shown.out
    state.chmod(0o700)
    assert rows()["state directory"]["fact"] == f"{state} (mode 0700)"


def test_a_directory_that_does_not_exist_yet_is_fine_and_not_made(rows, tmp_path):
    assert "does not exist yet" in rows()["state directory"]["fact"]
    assert not (tmp_path / "scalable").exists()


def test_a_file_in_the_place_of_a_directory_fails(rows, tmp_path):
    (tmp_path / "scalable").write_text("")
    assert "cannot be written to" in rows(code=1)["state directory"]["fact"]


def test_a_directory_of_somebody_else_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    row = doctor.directory_row("runs directory", tmp_path, private=False)
    assert (row.verdict, row.mend) == ("fail", f"chown 54321 {tmp_path}")


def test_programs_and_extras_are_those_of_the_providers_in_the_manifest(
    rows, project, monkeypatch, tmp_path
):
    monkeypatch.setattr(doctor, "_installed", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert rows()["scalable"]["verdict"] == "warn"
    monkeypatch.setattr(doctor, "_installed", lambda name: None if "aio" in name else "2099.1")
    manifest = project / "scalable.yaml"
    found = rows()
    assert found["slurm: sbatch"]["verdict"] == "warn"
    assert "targets of slurm need it" in found["slurm: sbatch"]["fact"]
    assert [found[name]["verdict"] for name in EXTRAS] == ["ok"] * 3
    manifest.write_text(manifest.read_text().replace("provider: slurm", "provider: aws"))
    found = rows()
    assert "slurm: sbatch" not in found
    assert [found[name]["verdict"] for name in EXTRAS] == ["warn", "ok", "ok"]
    assert found["extra aws"]["mend"] == "python -m pip install 'aiobotocore>=2.13'"
    assert "not installed: aiobotocore" in found["extra cloud"]["fact"]
    manifest.write_text("version: [")
    assert rows(code=1)["manifest"]["verdict"] == "fail"


def test_versions_out_of_range_and_missing_packages_fail(rows, monkeypatch):
    assert rows()["distributed"]["verdict"] == "ok"
    monkeypatch.setattr(doctor, "_installed", {"dask": "1.0", "scalable": "2"}.get)
    found = rows(code=1)
    assert [found[name]["verdict"] for name in ("dask", "distributed")] == ["fail", "fail"]
    assert found["distributed"]["fact"].startswith("not installed (supported: ")
    assert found["dask"]["mend"].startswith("python -m pip install 'dask>=")


def test_an_address_without_free_ports_fails():
    assert doctor.port_row().verdict == "ok"
    assert doctor.port_row("192.0.2.1").verdict == "fail"
