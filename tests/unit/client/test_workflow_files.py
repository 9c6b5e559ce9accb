"""Files of a workflow that are carried: those of its project, without what is ignored or large."""

import logging
import os
import shutil
import subprocess
import sys
import tempfile

import pytest

from scalable.client import own_code as own_files_module
from scalable.client.own_code import OwnFiles, Selection, project_of, warn_once
from scalable.errors import ClusterError
from scalable.protocol.code import CodeTable, ModuleCode, digest_of


def write(directory, *names, text="x"):
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A project directory, in which this process works and which is on its search path."""
    place = tmp_path / "project"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def selected(here, *roots, limit=1000):
    project = project_of([str(here / root) for root in roots or (".",)])
    return Selection(project, limit)


def names(*arguments, **options):
    return sorted(selected(*arguments, **options).files)


# The project --------------------------------------------------------------------------------------


def test_directories_of_the_search_path_within_the_project_are_carried(here, tmp_path):
    write(here, "pyproject.toml", "src/a.py", "lib/b.py", "other/c.py")
    write(tmp_path, "elsewhere/d.py")
    project = project_of([str(here / "src"), str(here / "lib"), str(tmp_path / "elsewhere")])
    assert project.base == here
    assert project.named_roots() == ((str(here / "src"), "src"), (str(here / "lib"), "lib"))
    assert sorted(Selection(project, 10).files) == ["lib/b.py", "src/a.py"]


def test_the_project_is_the_repository_or_the_directory_of_the_project_file(here, monkeypatch):
    write(here, "sub/scalable.yaml", "sub/a.py", "lib/b.py")
    monkeypatch.chdir(here / "sub")
    assert project_of([str(here / "sub")]).base == here / "sub"
    assert project_of([str(here / "lib")]) is None
    (here / ".git").mkdir()
    assert project_of([str(here / "lib")]).base == here


def test_a_script_brings_its_own_directory(here, tmp_path, monkeypatch):
    write(tmp_path, "scripts/script.py")
    monkeypatch.setattr(
        sys.modules["__main__"], "__file__", str(tmp_path / "scripts" / "script.py"), raising=False
    )
    assert project_of([str(here), str(tmp_path / "scripts")]).base == tmp_path / "scripts"


@pytest.mark.parametrize("place", ["home", "temporary", "root"])
def test_a_directory_that_holds_everything_is_not_carried(place, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = {"home": str(tmp_path), "temporary": tempfile.gettempdir(), "root": "/"}[place]
    monkeypatch.chdir(path)
    assert project_of([path]) is None


def test_a_search_path_through_a_symbolic_link_keeps_its_name(here, tmp_path):
    (tmp_path / "link").symlink_to(here)
    write(here, "a.py")
    assert project_of([str(tmp_path / "link")]).named_roots() == ((str(tmp_path / "link"), "."),)


# What is left out ---------------------------------------------------------------------------------


def test_environments_caches_hidden_files_and_the_engine_are_left_out(here):
    write(here, "a.py", "package/data.csv", "package/scalable.py")
    left_out = (
        *("env/pyvenv.cfg", "env/lib/x.py", "conda/conda-meta/history", "conda/x.py"),
        *("__pycache__/a.pyc", "a.pyc", ".env", ".aws/credentials", "package/.cache/x"),
        *("cache/CACHEDIR.TAG", "cache/x", "node_modules/x.js", "lib/site-packages/x.py"),
        *("scalable/__init__.py", "dask/__init__.py", "a.py~"),
    )
    write(here, *left_out)
    assert names(here) == ["a.py", "package/data.csv", "package/scalable.py"]


IGNORES = {
    ".gitignore": "*.nc\n!keep.nc\n/top.txt\nbuild/\ndocs/**/tmp\n# comment\n\\#name\nsp ace\n",
    "sub/.gitignore": "*.csv\n!other.nc\n/here.txt\n",
    "sub/deep/.gitignore": "!a.csv\n",
}
FILES = (
    *("a.nc", "keep.nc", "top.txt", "sub/top.txt", "build/x", "sub/build/x", "docs/a/b/tmp/x"),
    *("#name", "sp ace", "sub/a.csv", "sub/other.nc", "sub/here.txt", "sub/deep/here.txt"),
    *("sub/deep/a.csv", "sub/deep/b.csv", "build.txt", "a.py", "sub/deep/x.nc"),
)


def test_ignore_files_hold_as_they_do_for_git(here):
    for name, text in IGNORES.items():
        write(here, name, text=text)
    write(here, *FILES)
    found = names(here)
    if shutil.which("git") is not None:
        subprocess.run(["git", "init", "-q", str(here)], check=True)
        command = ["git", "ls-files", "-z", "--others", "--exclude-standard"]
        output = subprocess.run(command, cwd=here, check=True, capture_output=True).stdout
        listed = {name.decode() for name in output.split(b"\0") if name}
        assert found == sorted(listed - set(IGNORES))
    assert "sub/deep/a.csv" in found
    assert "sub/deep/b.csv" not in found


def test_ignore_files_above_a_root_hold_too_and_another_name_for_them(here):
    write(here, "pyproject.toml", "src/a.py", "src/b.py", "src/large.dat")
    write(here, ".gitignore", text="/src/b.py\n")
    write(here, "src/.scalableignore", text="*.dat\n")
    assert names(here, "src") == ["src/a.py"]


def test_symbolic_links_are_followed_only_within_the_project(here, tmp_path):
    write(here, "inside/a.py")
    write(tmp_path, "outside.txt", "secrets/key")
    (here / "file").symlink_to(here / "inside" / "a.py")
    (here / "directory").symlink_to("inside")
    (here / "loop").symlink_to(".")
    (here / "inside" / "up").symlink_to("..")
    (here / "broken").symlink_to("nowhere")
    (here / "out").symlink_to(tmp_path / "outside.txt")
    (here / "out_directory").symlink_to("../secrets")
    found = selected(here)
    assert sorted(found.files) == ["directory/a.py", "file", "inside/a.py"]
    assert found.outside == ["out", "out_directory"]


def test_pipes_and_unreadable_directories_do_not_stop_the_search(here):
    write(here, "a.py")
    os.mkfifo(here / "pipe")
    assert names(here) == ["a.py"]


# Limits -------------------------------------------------------------------------------------------


def table(here, *modules):
    codes = {
        name: ModuleCode(str(here / f"{name}.py"), digest_of((here / f"{name}.py").read_bytes()))
        for name in modules
    }
    return CodeTable("p", codes, (str(here),))


@pytest.fixture
def own():
    warn_once.cache_clear()
    return OwnFiles()


def test_files_over_the_limit_are_left_out_and_named_once(here, own, monkeypatch, caplog):
    write(here, "a.py", "small.csv")
    write(here, "large.csv", text="x" * 2000)
    write(here, "larger.csv", text="x" * 3000)
    monkeypatch.setenv("SCALABLE_CODE_FILE_LIMIT", "1kB")
    with caplog.at_level(logging.WARNING, "scalable.client"):
        for _ in range(2):
            _, snapshot = own.carried_with(table(here))
            own.read_again()
    assert sorted(snapshot.files) == ["a.py", "small.csv"]
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.index("larger.csv") < told.index("large.csv")
    assert "SCALABLE_CODE_FILE_LIMIT" in told


def test_a_project_over_the_limit_is_not_carried_and_its_largest_parts_are_named(
    here, own, monkeypatch, caplog
):
    write(here, "a.py")
    write(here, "data/2020/a.csv", "data/2020/b.csv", text="x" * 900)
    monkeypatch.setenv("SCALABLE_CODE_LIMIT", "1kB")
    with caplog.at_level(logging.WARNING, "scalable.client"):
        plain = table(here)
        assert own.carried_with(plain) == (plain, None)
    assert "data/2020/ (1.76 kiB)" in caplog.text
    assert "SCALABLE_CODE_LIMIT" in caplog.text
    assert ".scalableignore" in caplog.text


def test_a_project_with_very_many_files_is_not_read_to_the_end(here, own, monkeypatch, caplog):
    monkeypatch.setattr(own_files_module, "MOST_FILES", 10)
    write(here, *(f"{number}.txt" for number in range(30)))
    with caplog.at_level(logging.WARNING, "scalable.client"):
        assert own.carried_with(table(here))[1] is None
    assert "more than 10 files" in caplog.text


def test_a_limit_that_is_no_size_is_an_error_that_names_it(here, own, monkeypatch):
    monkeypatch.setenv("SCALABLE_CODE_LIMIT", "much")
    with pytest.raises(ClusterError, match="SCALABLE_CODE_LIMIT='much'"):
        own.carried_with(table(here))


def test_without_pathspec_only_imported_modules_are_carried_and_the_extra_is_named(
    here, own, monkeypatch, caplog
):
    monkeypatch.setitem(sys.modules, "pathspec", None)
    with caplog.at_level(logging.WARNING, "scalable.client"):
        assert own.carried_with(table(here))[1] is None
    assert "scalable[kubernetes]" in caplog.text


# Changes ------------------------------------------------------------------------------------------


def test_equal_files_elsewhere_make_the_same_archive(here, own, tmp_path, monkeypatch):
    write(here, "a.py", "data.csv")
    first = own.carried_with(table(here))[1]
    shutil.copytree(here, tmp_path / "copy")
    os.utime(tmp_path / "copy" / "a.py", (1, 1))
    monkeypatch.chdir(tmp_path / "copy")
    second = OwnFiles().carried_with(table(tmp_path / "copy"))[1]
    assert (first.about.digest, first.data) == (second.about.digest, second.data)


def test_the_snapshot_stays_until_a_module_has_another_version_or_it_is_read_again(here, own):
    write(here, "a.py", "b.py", "data.csv")
    carried, snapshot = own.carried_with(table(here, "a"))
    assert carried.files == snapshot.about
    write(here, "data.csv", text="edited")
    assert own.carried_with(table(here, "a", "b"))[1] is snapshot
    write(here, "b.py", text="edited")
    reloaded = table(here, "a", "b")
    another = own.carried_with(reloaded)[1]
    assert another.about.digest != snapshot.about.digest
    write(here, "a.py", text="edited after its import")
    assert own.carried_with(CodeTable("q", reloaded.modules, reloaded.search_path))[1] is another
    assert own.read_again() == ["a.py"]
    assert own.carried_with(reloaded)[1].about.digest != another.about.digest
