"""Files that are replaced in one step, and files that only their owner may read."""

import os
import stat
import threading

import pytest

from scalable import settings
from scalable.errors import ClusterError
from scalable.files import private_directory, read_private, write_json, write_private, write_whole

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
SOMEBODY = 12345


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def permissive_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_reader_sees_one_text_or_the_other(tmp_path):
    path = tmp_path / "file"
    texts = {"a" * 200_000, "b" * 200_000}
    write_whole(path, min(texts))
    over = threading.Event()

    def replace():
        while not over.is_set():
            for text in texts:
                write_whole(path, text)

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        seen = {path.read_text() for _ in range(300)}
    finally:
        over.set()
        writer.join()
    assert seen <= texts
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_file_that_cannot_be_replaced_stays_and_nothing_lies_about(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="file"):
        write_whole(tmp_path / "file", "text")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_text_that_no_file_can_hold_is_written_as_far_as_it_can_be(tmp_path):
    write_json(tmp_path / "file", {"name": tmp_path, "odd": "\udcff"})
    assert str(tmp_path) in (tmp_path / "file").read_text()
    write_whole(tmp_path / "file", "\udcff")
    assert (tmp_path / "file").read_text() == "?"


def test_a_private_file_is_private_from_the_beginning(tmp_path, permissive_umask):
    path = tmp_path / "key"
    write_whole(path, "old")
    assert mode(path) == 0o666
    write_private(path, "secret")
    assert mode(path) == 0o600
    assert read_private(path) == "secret"


def test_at_no_moment_can_others_open_it(tmp_path, monkeypatch, permissive_umask):
    opened = []
    open_really = os.open

    def watch(path, flags, *args, **kwargs):
        descriptor = open_really(path, flags, *args, **kwargs)
        opened.append((flags, stat.S_IMODE(os.fstat(descriptor).st_mode)))
        return descriptor

    monkeypatch.setattr(os, "open", watch)
    write_private(tmp_path / "key", "secret")
    ((flags, its_mode),) = opened
    assert its_mode == 0o600
    assert flags & os.O_EXCL


@pytest.mark.parametrize("wide", [0o640, 0o620, 0o604, 0o602, 0o601, 0o610])
def test_one_that_others_can_use_is_refused_by_name(tmp_path, wide):
    path = tmp_path / "key"
    write_private(path, "secret")
    path.chmod(wide)
    with pytest.raises(
        ClusterError, match=rf"{path} is accessible to other users \(mode {wide:o}\)"
    ) as it:
        read_private(path)
    assert it.value.hint.startswith(f"chmod 600 {path}")
    assert "secret" not in str(it.value)


@as_root
def test_one_of_somebody_else_is_refused_by_name(tmp_path):
    write_private(tmp_path / "key", "secret")
    os.chown(tmp_path / "key", SOMEBODY, -1)
    with pytest.raises(ClusterError, match=f"{tmp_path}/key belongs to another user"):
        read_private(tmp_path / "key")


@as_root
def test_a_link_to_what_somebody_else_owns_is_refused(tmp_path):
    write_private(tmp_path / "theirs", "secret")
    os.chown(tmp_path / "theirs", SOMEBODY, -1)
    (tmp_path / "key").symlink_to(tmp_path / "theirs")
    with pytest.raises(ClusterError, match="belongs to another user"):
        read_private(tmp_path / "key")


def test_one_that_is_not_there_is_told_from_one_that_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_private(tmp_path / "key")


def test_a_directory_and_those_above_it_are_made_for_the_owner(tmp_path, permissive_umask):
    made = private_directory(tmp_path / "a" / "b")
    assert made == tmp_path / "a" / "b"
    assert {mode(tmp_path / "a"), mode(made)} == {0o700}
    assert private_directory(made) == made


def test_a_directory_that_others_can_enter_is_closed_and_the_one_above_it_is_not(tmp_path):
    open_one = tmp_path / "a" / "b"
    open_one.mkdir(parents=True)
    (tmp_path / "a").chmod(0o755)
    open_one.chmod(0o755)
    private_directory(open_one)
    assert (mode(tmp_path / "a"), mode(open_one)) == (0o755, 0o700)


@as_root
def test_a_directory_of_somebody_else_is_refused_and_left_as_it_is(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(0o755)
    os.chown(theirs, SOMEBODY, -1)
    with pytest.raises(ClusterError, match=f"{theirs} belongs to another user"):
        private_directory(theirs)
    assert mode(theirs) == 0o755


def test_a_user_without_a_home_directory_is_told_to_name_one(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("scalable.settings.Path.home", no_home)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    with pytest.raises(ClusterError, match=r"no home directory .*XDG_STATE_HOME"):
        settings.state_dir()
    monkeypatch.setenv("XDG_STATE_HOME", "/here")
    assert str(settings.state_dir()) == "/here/scalable"
