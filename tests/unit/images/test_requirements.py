"""The requirements of an image: where they come from, and what an image cannot install."""

import json
from importlib import metadata

import pytest

from scalable.errors import ProviderError
from scalable.images import sources
from scalable.images.requirements import Installed, frozen, installable, logical_lines
from scalable.images.sources import project_requirements

PINNED = ("scalable", "dask", "distributed", "cloudpickle", "msgpack")


def chosen(*lines, constraints=()):
    return installable("test", lines, constraints, PINNED)


def test_lines_are_joined_and_comments_dropped():
    text = "# head\nnumpy \\\n  >=2  # why\n\nhttps://host/a.whl#egg=a\n  pandas\n"
    assert logical_lines(text) == ["numpy >=2", "https://host/a.whl#egg=a", "pandas"]


@pytest.mark.parametrize(
    "line",
    [
        "numpy",
        "xarray[io] >= 2024.1 ; python_version > '3.10'",
        "a @ https://host/a-1.0.whl",
        "a @ https://host/a-1.0.whl#sha256=00",
        "git+https://host/a@v1",
        "--index-url https://host/simple",
        "--extra-index-url=https://host/simple?format=json",
        "-f https://host/wheels",
        "--pre",
        "--no-binary :all:",
        "numpy==2.0 --hash=sha256:00",
        "profile-file==1",
    ],
)
def test_what_an_image_can_install_is_kept_as_written(line):
    required = chosen(line)
    assert (required.lines, required.left_out) == ((line,), ())


@pytest.mark.parametrize(
    ("line", "shown", "reason"),
    [
        ("-e .", "-e .", "an editable install"),
        ("--editable=../lib", "--editable=../lib", "an editable install"),
        ("./lib", "./lib", "a path of this machine"),
        ("/data/lib.whl", "/data/lib.whl", "a path of this machine"),
        ("lib-1.0-py3-none-any.whl", "lib-1.0-py3-none-any.whl", "a path of this machine"),
        ("lib @ file:///data/lib", "lib @ file:///data/lib", "a path of this machine"),
        ("--find-links ./wheels", "--find-links ./wheels", "a path of this machine"),
        ("git+ssh://git@host/a", "git+ssh://host/a", "a key that the build does not have"),
        ("hg+https://host/a", "hg+https://host/a", "the build does not have"),
        ("--log out.txt", "--log out.txt", "not passed on"),
        ("-i https://u:pw@host/s", "-i https://host/s", "contains a credential"),
        ("a @ git+https://pw@host/a", "a @ git+https://host/a", "contains a credential"),
        ("-f https://host/?token=pw", "-f https://host/?token=...", "contains a credential"),
    ],
)
def test_what_an_image_cannot_install_is_said_without_secrets(line, shown, reason):
    required = chosen(line, "numpy")
    assert required.lines == ("numpy",)
    (sentence,) = required.left_out
    assert sentence.startswith(f"{shown}: ")
    assert reason in sentence


def test_releases_of_the_engine_are_the_clients():
    required = chosen(
        "Dask[dataframe]>=2020; python_version>'3'",
        "distributed==2000.1",
        "scalable[s3,tui] @ file:///work/scalable",
        "msgpack",
    )
    assert required.lines == ("dask[dataframe]; python_version>'3'",)
    assert required.extras == ("s3", "tui")
    assert required.left_out == ()


def test_constraints_are_kept_except_for_the_engine():
    required = chosen("a", constraints=["a<2", "dask<2000", "./local.whl"])
    assert required.constraints == ("a<2",)


def test_hashes_and_git_are_noticed():
    assert chosen("a==1 --hash=sha256:00").hashed
    assert chosen("--require-hashes", "a").hashed
    assert not chosen("a").hashed
    assert chosen("git+https://host/a").needs_git
    assert not chosen("a").needs_git


def test_requirements_come_from_the_file_and_those_that_it_includes(tmp_path):
    (tmp_path / "requirements.txt").write_text("-r more/base.txt\n-c limits.txt\nb\n-rlast.txt\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "base.txt").write_text("a\n--requirement=../requirements.txt\n")
    (tmp_path / "last.txt").write_text("c\n")
    (tmp_path / "limits.txt").write_text("a<3\n")
    (tmp_path / "pyproject.toml").write_text("[project]\ndependencies = ['not-this']\n")
    required = project_requirements(tmp_path, PINNED)
    assert required.source == "requirements.txt"
    assert required.lines == ("a", "b", "c")
    assert required.constraints == ("a<3",)


def test_a_file_that_is_missing_is_named(tmp_path):
    (tmp_path / "requirements.txt").write_text("-r absent.txt\n")
    with pytest.raises(ProviderError, match=r"absent\.txt cannot be read"):
        project_requirements(tmp_path, PINNED)


def test_without_requirements_the_dependencies_of_the_project_count(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\ndependencies = ['numpy<3', 'dask']\n")
    required = project_requirements(tmp_path, PINNED)
    assert (required.source, required.lines) == ("pyproject.toml", ("numpy<3",))
    (tmp_path / "pyproject.toml").write_text("[project\n")
    with pytest.raises(ProviderError, match=r"pyproject\.toml is not TOML"):
        project_requirements(tmp_path, PINNED)


@pytest.mark.parametrize("text", [None, "[tool.poetry]\nname='x'\n", "[project]\nname='x'\n"])
def test_without_a_list_the_packages_of_this_python_count(tmp_path, text):
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    required = project_requirements(tmp_path, PINNED)
    assert required.source == "the packages of this Python"
    assert f"pydantic=={metadata.version('pydantic')}" in required.lines
    assert not any(line.startswith(("dask=", "pip=")) for line in required.lines)


def test_a_freeze_leaves_out_what_only_this_machine_has():
    local = {"url": "file:///work/lib", "dir_info": {"editable": True}}
    commit = {"url": "https://host/r", "vcs_info": {"vcs": "git", "commit_id": "ab12"}}
    secret = {"url": "https://u:pw@host/r.whl", "archive_info": {}}
    required = frozen(
        [
            Installed("Numpy", "2.0"),
            Installed("pip", "25"),
            Installed("Distributed", "2026.8"),
            Installed("lib", "0.1", local),
            Installed("torch", "2.4+cu118"),
            Installed("kept", "1.0", commit),
            Installed("known", "1.0", secret),
        ],
        PINNED,
    )
    assert required.lines == ("kept @ git+https://host/r@ab12", "Numpy==2.0")
    lib, torch, known = required.left_out
    assert lib == "lib 0.1: it was installed from a path of this machine"
    assert torch == (
        "torch 2.4+cu118: it was installed from a build that the Python Package Index does not have"
    )
    assert known.startswith("known @ https://host/r.whl: it contains a credential")


def test_a_damaged_origin_counts_as_none():
    class Damaged(metadata.PathDistribution):
        def read_text(self, name):
            return {"a": "{", "b": json.dumps([1])}[self.kind]

    for kind in ("a", "b"):
        damaged = Damaged(None)
        damaged.kind = kind
        assert sources.origin(damaged) is None
