"""Rows of `scalable doctor` that fail say so, and how to mend it."""

import os
import resource
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scalable.lifecycle.health import machine, packages
from scalable.lifecycle.health.examination import examine

MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:40 / /home rw,relatime shared:1 - nfs4 server:/home rw
31 22 0:41 / /home/me/My\\040Disk rw - fuse.sshfs other: rw
broken line
"""


def verdicts(rows):
    return {row.what: row.verdict for row in rows}


def test_a_directory_that_others_may_read_fails_if_it_is_private(tmp_path):
    tmp_path.chmod(0o755)
    rows = list(machine.directory_rows("state directory", tmp_path, private=True))
    assert rows[0].verdict == "fail"
    assert rows[0].mend == f"chmod 700 {tmp_path}"
    assert "mode 0755, not 0700" in rows[0].fact
    assert set(verdicts(rows[1:3]).values()) == {"ok"}
    assert verdicts(machine.directory_rows("d", tmp_path, private=False))["d"] == "ok"
    assert not list(tmp_path.iterdir())  # nothing is left behind


def test_a_directory_that_does_not_exist_yet_is_fine_and_not_made(tmp_path):
    path = tmp_path / "a" / "b"
    rows = list(machine.directory_rows("runs directory", path, private=False))
    assert "fail" not in verdicts(rows).values()
    assert "does not exist yet" in rows[0].fact
    assert not (tmp_path / "a").exists()


def test_a_file_in_the_place_of_a_directory_fails(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    (row,) = machine.directory_rows("state directory", file / "scalable", private=True)
    assert row.verdict == "fail"
    assert row.mend.startswith("mv ")


def test_a_directory_that_cannot_be_written_to_fails(tmp_path, monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(machine.tempfile, "NamedTemporaryFile", refuse)
    found = verdicts(machine.directory_rows("runs directory", tmp_path, private=False))
    assert found["writing to the runs directory"] == "fail"


def test_the_state_directory_is_the_one_of_the_environment(tmp_path, monkeypatch):
    state = tmp_path / "scalable"
    state.mkdir(mode=0o750)
    state.chmod(0o750)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    row = next(row for row in examine() if row.what == "state directory")
    assert (row.verdict, row.mend) == ("fail", f"chmod 700 {state}")


@pytest.mark.parametrize(
    ("skew", "verdict", "words"),
    [(0.1, "ok", "less than 2 s"), (5, "warn", "later"), (-3600, "fail", "1 h 00 m earlier")],
)
def test_a_clock_that_differs_is_named(skew, verdict, words):
    row = machine.clock_row("clock", skew)
    assert row.verdict == verdict
    assert words in row.fact


@pytest.mark.parametrize(("free", "verdict"), [(2**40, "ok"), (2**29, "warn"), (2**20, "fail")])
def test_a_full_disk_is_named(free, verdict):
    assert machine.space_row("disk", Path("/"), free).verdict == verdict


@pytest.mark.parametrize(
    ("soft", "verdict"),
    [(resource.RLIM_INFINITY, "ok"), (4096, "ok"), (512, "warn"), (64, "fail")],
)
def test_too_few_open_files_are_named(soft, verdict):
    assert machine.limit_row(soft).verdict == verdict


def test_file_systems_that_other_machines_do_not_see_are_named():
    assert machine.file_system_of(Path("/home/me"), MOUNTS) == "nfs4"
    assert machine.file_system_of(Path("/home/me/My Disk/x"), MOUNTS) == "fuse.sshfs"
    assert machine.file_system_of(Path("/homes"), MOUNTS) == "ext4"
    assert machine.shared_row(Path("/home/me"), MOUNTS).verdict == "ok"
    assert machine.shared_row(Path("/tmp"), MOUNTS).verdict == "warn"
    assert machine.shared_row(Path("/tmp"), "").verdict == "warn"


def test_a_program_that_is_missing_fails_only_if_a_target_needs_it(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert machine.program_row("p", "sh", needed=False).verdict == "ok"
    assert machine.program_row("p", "sh", needed=True).verdict == "fail"
    monkeypatch.setenv("PATH", os.defpath)
    assert machine.program_row("p", "sh", needed=True).verdict == "ok"


def test_an_interface_that_does_not_exist_here_is_named():
    assert machine.interface_row("lo").verdict == "ok"
    row = machine.interface_row("ib99")
    assert row.verdict == "warn"
    assert "lo" in row.fact


def test_an_address_without_free_ports_fails():
    assert machine.port_row().verdict == "ok"
    assert machine.port_row("192.0.2.1").verdict == "fail"


def test_an_encoding_other_than_utf8_is_named(monkeypatch):
    monkeypatch.setattr(machine.locale, "getpreferredencoding", lambda _: "ANSI_X3.4-1968")
    row = machine.terminal_row()
    assert (row.verdict, row.mend) == ("warn", "export LC_ALL=C.UTF-8")


def test_versions_out_of_range_and_missing_packages_fail():
    assert packages.requirement_row(Requirement("dask>=1")).verdict == "ok"
    old = packages.requirement_row(Requirement("dask>=9999"))
    assert old.verdict == "fail"
    assert old.mend == "python -m pip install 'dask>=9999'"
    assert packages.requirement_row(Requirement("no-such-package>=1")).verdict == "fail"
    assert packages.python_row((3, 10, 1)).verdict == "fail"
    assert packages.python_row((3, 11, 0)).verdict == "ok"


def test_a_missing_extra_fails_only_if_a_target_needs_it():
    assert packages.extra_row("x", [], needed=True).verdict == "ok"
    assert packages.extra_row("x", ["y"], needed=False).verdict == "ok"
    row = packages.extra_row("x", ["y"], needed=True)
    assert (row.verdict, row.mend) == ("fail", "python -m pip install 'scalable[x]'")
    assert {"extra tui", "extra cloud"} <= {row.what for row in packages.extra_rows()}
