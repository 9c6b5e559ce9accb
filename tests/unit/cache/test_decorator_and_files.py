"""Functions that are remembered outside a session, and files as arguments."""

import shutil
import threading
import time

import pytest

from scalable import File, KeyOptions, cached
from scalable.cache.errors import UnstableValueError
from scalable.cache.files import FileDigests
from scalable.cache.key import KeyMaker


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


def key(value):
    def read(x):
        return x

    return KeyMaker(files=FileDigests(None)).key(read, (value,), {}, KeyOptions()).digest


def test_decorated_function_runs_once_for_each_arguments(store, tmp_path):
    log = str(tmp_path / "log")

    @cached(store=store)
    def add(x, y=1):
        with open(log, "a") as file:
            file.write(f"{x} {y}\n")
        return x + y

    assert [add(1), add(1, 1), add(x=1), add(2), add(1, y=3)] == [2, 2, 2, 3, 4]
    assert (tmp_path / "log").read_text().splitlines() == ["1 1", "2 1", "1 3"]
    assert add.__name__ == "add"


def test_another_version_forgets_earlier_results(store):
    def made(version):
        @cached(store=store, version=version)
        def stamped():
            return time.time_ns()

        return stamped()

    assert made(1) == made(1) != made(2)


def test_function_that_calls_a_decorated_one_follows_its_code(store):
    def made(step, kept):
        @cached(store=kept)
        def inner(x):
            return x + step

        def outer(x):
            return inner(x)

        return KeyMaker().key(outer, (1,), {}).digest

    assert made(1, store) == made(1, store) != made(2, store)


def test_ignored_parameter_may_be_anything(store):
    @cached(store=store, ignore=["lock"])
    def add(x, lock):
        return x + 1

    assert add(1, threading.Lock()) == add(1, None) == 2


def test_decorator_without_arguments_remembers_in_the_users_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    @cached
    def stamped():
        return time.time_ns()

    assert stamped() == stamped()
    assert (tmp_path / "scalable" / "results").is_dir()


def test_file_counts_by_name_and_content(tmp_path):
    one, other = tmp_path / "a", tmp_path / "b"
    for directory in (one, other):
        directory.mkdir()
        (directory / "data.csv").write_text("1,2")
    assert key(File(one / "data.csv")) == key(File(other / "data.csv"))
    assert key(File(one / "data.csv")) != key(str(one / "data.csv"))
    before = key([File(one / "data.csv")])
    (one / "data.csv").write_text("1,3")
    assert key([File(one / "data.csv")]) != before
    shutil.copy(other / "data.csv", other / "more.csv")
    assert key(File(other / "data.csv")) != key(File(other / "more.csv"))


def test_directory_counts_with_all_names_and_files_in_it(tmp_path):
    root = tmp_path / "d"
    changes = [
        lambda: (root / "deep").mkdir(parents=True),
        lambda: (root / "deep" / "x").write_text("1"),
        lambda: (root / "deep" / "y").write_text(""),
        (root / "empty").mkdir,
        lambda: (root / "empty").rename(root / "other"),
        lambda: (root / "around").symlink_to(root),
        lambda: root.rename(tmp_path / "e") and (tmp_path / "d").symlink_to("e"),
    ]
    keys = []
    for change in changes:
        change()
        keys.append(key(File(root)))
        assert key(File(root)) == keys[-1]
    assert len(set(keys)) == len(keys) - 1  # the last change leaves the content
    (tmp_path / "none").mkdir()
    (tmp_path / "nothing").mkdir()
    assert key(File(tmp_path / "none")) != key(File(tmp_path / "nothing"))


def test_attribute_of_a_derived_file_counts(tmp_path):
    class Table(File):
        pass

    (tmp_path / "data.csv").write_text("1,2")
    one, other = Table(tmp_path / "data.csv"), Table(tmp_path / "data.csv")
    one.rows, other.rows = 1, 2
    assert key(one) != key(other) != key(File(tmp_path / "data.csv"))


def test_missing_file_is_an_error_that_names_the_argument(tmp_path):
    with pytest.raises(UnstableValueError, match=r"argument x of .*cannot be read"):
        key(File(tmp_path / "none"))


def test_file_opens_as_a_path_does(tmp_path):
    (tmp_path / "data.csv").write_text("1,2")
    file = File(tmp_path / "data.csv")
    with open(file) as by_builtin, file.open() as by_method:
        assert by_builtin.read() == by_method.read() == "1,2"
    assert file == File(str(tmp_path / "data.csv"))
