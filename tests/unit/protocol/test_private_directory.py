"""Directories that no other user can enter or replace."""

import fcntl
import os
import stat
import subprocess
import sys
import threading

import pytest

from scalable import ClusterError
from scalable.protocol import private_directory
from scalable.protocol.code import interpreter_options, search_path
from scalable.protocol.private_directory import (
    PrivateDirectory,
    check_private,
    make_private,
    remove_stale,
    scratch_parent,
)

LEAVE = """
import os, sys
from scalable.protocol.private_directory import PrivateDirectory
used = PrivateDirectory(sys.argv[1])
print(used.path, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_directory_is_its_owner_s_alone_and_is_removed(tmp_path):
    directory = PrivateDirectory(tmp_path)
    status = directory.path.stat()
    assert directory.path.parent == tmp_path
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), 0o700)
    directory.release()
    directory.release()
    assert not directory.path.exists()


def test_the_search_path_does_not_keep_a_directory_that_was_removed(tmp_path, monkeypatch):
    directory = PrivateDirectory(tmp_path)
    below = str(directory.path / "dask-scratch-space" / "worker-1")
    beside = f"{directory.path}-of-somebody"
    monkeypatch.setattr(sys, "path", ["first", below, beside, str(directory.path), "last"])
    directory.release()
    assert sys.path == ["first", beside, "last"]


def test_other_processes_are_not_given_the_directories_of_nodes(monkeypatch):
    monkeypatch.setattr(sys, "path", ["/t/dask-scratch-space/worker-1", "/modules", ""])
    assert search_path() == ("/modules", os.getcwd())


def test_a_parent_that_every_user_may_change_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(ClusterError, match=r"can be changed by every user \(mode 777\)") as caught:
        make_private("scalable", tmp_path)
    assert "mode 700" in caught.value.hint
    below = tmp_path / "below"
    below.mkdir(mode=0o700)
    with pytest.raises(ClusterError, match=f"{tmp_path}, which holds {below}, can be changed"):
        scratch_parent(below)
    tmp_path.chmod(0o1777)
    assert scratch_parent(below) == below


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_directory_of_another_user_is_refused(tmp_path):
    tmp_path.chmod(0o1777)
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(ClusterError, match=r"belongs to another user \(uid 65534\)"):
        scratch_parent(tmp_path)
    with pytest.raises(ClusterError, match=r"belongs to another user \(uid 65534\)"):
        check_private(tmp_path)


def test_a_directory_that_others_may_write_or_a_link_is_refused(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o770)
    with pytest.raises(ClusterError, match=r"can be changed by other users \(mode 770\)"):
        check_private(shared)
    shared.chmod(0o700)
    check_private(shared)
    (tmp_path / "link").symlink_to(shared)
    with pytest.raises(ClusterError, match="is not a directory"):
        check_private(tmp_path / "link")


def test_left_over_directories_are_removed_and_used_ones_stay(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LEAVE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    (left,) = tmp_path.iterdir()
    assert done.stdout.strip() == str(left)
    used = PrivateDirectory(tmp_path)
    # The first directory in a place removes those that were left there.
    assert list(tmp_path.iterdir()) == [used.path]
    assert remove_stale(tmp_path) == []
    used.release()


def test_a_directory_that_is_removed_before_its_lock_is_made_again(tmp_path, monkeypatch):
    made = []

    def make(*given):
        made.append(make_private(*given))
        if len(made) == 1:
            assert remove_stale(tmp_path) == made
        return made[-1]

    monkeypatch.setattr(private_directory, "make_private", make)
    directory = PrivateDirectory(tmp_path)
    assert [directory.path] == made[1:] == list(tmp_path.iterdir())
    directory.release()


def test_processes_that_remove_left_directories_at_once_are_silent(tmp_path):
    for number in range(200):
        (tmp_path / f"{private_directory._prefix()}-{number:08}").mkdir(mode=0o700)
    removed = []
    threads = [
        threading.Thread(target=lambda: removed.extend(remove_stale(tmp_path))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(removed)) == 200
    assert list(tmp_path.iterdir()) == []


def test_a_fork_does_not_remove_the_directory_of_its_parent(tmp_path):
    directory = PrivateDirectory(tmp_path)
    private_directory._remove(directory.path, None, os.getpid() + 1)
    assert directory.path.exists()
    directory.release()


def test_a_file_system_without_locks_is_no_obstacle(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    directory = PrivateDirectory(tmp_path)
    assert remove_stale(tmp_path) == []
    directory.release()
    assert not directory.path.exists()


def test_the_working_directory_is_on_the_search_path_unless_every_user_may_change_it(tmp_path):
    assert interpreter_options(tmp_path) == ()
    tmp_path.chmod(0o1777)
    assert interpreter_options(tmp_path) == ("-P",)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_working_directory_of_another_user_is_not_on_the_search_path(tmp_path):
    os.chown(tmp_path, 65534, 65534)
    assert interpreter_options(tmp_path) == ("-P",)
