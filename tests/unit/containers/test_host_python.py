"""What of a Python is mounted."""

import os
import sys
from dataclasses import replace
from pathlib import Path

from scalable.containers import read_host_python
from scalable.containers import render as module
from scalable.containers.render import PythonLayout, host_python_of
from unit.programs import printed_by

PROTECTED = (*module.SYSTEM_DIRECTORIES, "/tmp", "/home/ann")
ENVIRONMENT = PythonLayout(
    executables=(
        "/home/ann/trial/.venv/bin/python",
        "/home/ann/.pyenv/versions/3.12.4/bin/python3.12",
    ),
    prefixes=("/home/ann/trial/.venv", "/home/ann/.pyenv/versions/3.12.4"),
    libraries=("/home/ann/.pyenv/versions/3.12.4/lib/python3.12",),
    search_path=("/home/ann/trial/.venv/lib/python3.12/site-packages", "/home/ann/scalable/src"),
    protected=PROTECTED,
)
SYSTEM = PythonLayout(
    executables=("/usr/bin/python3", "/usr/bin/python3.11"),
    prefixes=("/usr", "/usr/local"),
    libraries=("/usr/lib/python3.11", "/usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0"),
    search_path=("/usr/lib/python3.11/lib-dynload", "/usr/lib/python3/dist-packages"),
    protected=PROTECTED,
)


def test_an_environment_is_mounted_with_its_installation_and_editable_sources():
    python = host_python_of(ENVIRONMENT)
    assert python.executable == "/home/ann/trial/.venv/bin/python"
    assert python.paths == (
        "/home/ann/.pyenv/versions/3.12.4",
        "/home/ann/scalable/src",
        "/home/ann/trial/.venv",
    )


def test_of_the_systems_python_only_its_own_parts_are_mounted():
    assert host_python_of(SYSTEM).paths == (
        "/usr/bin/python3",
        "/usr/bin/python3.11",
        "/usr/lib/python3/dist-packages",
        "/usr/lib/python3.11",
        "/usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0",
    )


def test_nothing_hides_the_home_the_scratch_space_or_the_system():
    wide = replace(SYSTEM, search_path=("/home/ann", "/home", "/tmp", "/", "/usr", "/tmp/job"))
    assert set(host_python_of(wide).paths) - set(host_python_of(SYSTEM).paths) == {"/tmp/job"}


def test_a_name_that_begins_alike_is_not_below():
    near = replace(ENVIRONMENT, search_path=("/home/ann/trial/.venv-2/lib",))
    assert "/home/ann/trial/.venv-2/lib" in host_python_of(near).paths


def test_an_installation_behind_a_link_is_mounted_under_both_names():
    linked = replace(
        ENVIRONMENT,
        executables=(
            "/home/ann/trial/.venv/bin/python",
            "/data/uv/cpython-3.12/bin/python3.12",
            "/data/uv/cpython-3.12.4/bin/python3.12",
        ),
        prefixes=("/home/ann/trial/.venv", "/data/uv/cpython-3.12.4"),
    )
    paths = host_python_of(linked).paths
    assert {"/data/uv/cpython-3.12", "/data/uv/cpython-3.12.4"} <= set(paths)


def test_links_are_followed_one_by_one(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "real").touch()
    (tmp_path / "bin" / "python3").symlink_to("../real")
    (tmp_path / "bin" / "python").symlink_to("python3")
    assert module._links(str(tmp_path / "bin" / "python")) == [
        str(tmp_path / "bin" / "python"),
        str(tmp_path / "bin" / "python3"),
        str(tmp_path / "real"),
    ]


def test_a_circle_of_links_is_left(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert len(module._links(str(tmp_path / "a"))) == module.LINKS


def test_this_python_with_all_that_it_imports_is_covered(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path / "missing"))
    monkeypatch.syspath_prepend("")
    python = read_host_python()

    def covered(path):
        return any(Path(path).is_relative_to(root) for root in python.paths)

    assert python.executable == sys.executable
    program = "import distributed, scalable; print(distributed.__file__, scalable.__file__)"
    files = printed_by(program).split()
    assert all(covered(path) for path in (*files, os.path.realpath(sys.executable)))
    assert all(Path(path).exists() for path in python.paths)
    assert not covered(tmp_path)
