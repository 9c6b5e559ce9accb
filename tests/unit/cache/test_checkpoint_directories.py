"""Directories of calls: one for each try, given on from try to try."""

import errno
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import scalable
from scalable import cached
from scalable.cache import checkpoints as module
from scalable.cache.checkpoints import Checkpoints, checkpoint_directory
from scalable.errors import ClusterError
from scalable.settings import results_dir


@pytest.fixture
def checkpoints(tmp_path):
    made = Checkpoints(tmp_path / "results")
    made.prepare("cluster")
    return made


def contents(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_only_the_user_can_enter(checkpoints, tmp_path):
    path = checkpoints.begin("cluster", "call").path
    results = tmp_path / "results"
    while path != results.parent:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
        path = path.parent


def test_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ClusterError, match="belongs to another user"):
        Checkpoints(tmp_path / "results").prepare("cluster")


def test_later_try_wins_and_the_earlier_one_is_told(checkpoints):
    earlier = checkpoints.begin("cluster", "call")
    path = earlier.path
    (path / "state").write_text("3")
    later = checkpoints.begin("cluster", "call")
    with pytest.raises(FileNotFoundError):
        (path / "state").write_text("4")
    with pytest.raises(ClusterError, match="a later attempt of the task has taken it over"):
        _ = earlier.path
    earlier.end(succeeded=True)
    assert (later.path / "state").read_text() == "3"


def test_an_attempt_succeeds_on_a_disk_that_has_become_read_only(checkpoints, monkeypatch):
    checkpoint = checkpoints.begin("cluster", "call")

    def refused(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "rename", refused)
    checkpoint.end(succeeded=True)


def test_tries_that_begin_at_once_have_different_directories(checkpoints, at_once):
    (checkpoints.begin("cluster", "call").path / "state").write_text("3")
    begun = at_once(lambda _: checkpoints.begin("cluster", "call"), range(8))
    left = [one._path for one in begun if one._path.is_dir()]
    assert len({one._path for one in begun}) == 8
    assert [(path / "state").read_text() for path in left] == ["3"]


def test_first_tries_that_begin_at_once_do_not_write_beside_each_other(checkpoints, at_once):
    for attempt in range(20):
        begun = at_once(lambda _, n=attempt: checkpoints.begin("cluster", f"call-{n}"), range(4))
        assert len([one for one in begun if one._path.is_dir()]) == 1


def test_process_with_another_file_system_is_told(tmp_path):
    with pytest.raises(ClusterError, match="does not exist on"):
        Checkpoints(tmp_path / "results").begin("cluster", "call")
    assert not (tmp_path / "results").exists()


def aged(path, seconds):
    for each in (path, *path.rglob("*")):
        os.utime(each, (time.time() - seconds,) * 2)


def test_garbage_of_a_killed_removal_goes_too(checkpoints, tmp_path, monkeypatch):
    checkpoint = checkpoints.begin("cluster", "call")
    (checkpoint.path / "state").write_bytes(bytes(10))
    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "rmtree", lambda *_, **__: None)
        checkpoint.end(succeeded=True)
    root = tmp_path / "results" / "checkpoints"
    assert len(contents(root)) == 1
    assert list(checkpoints.begin("cluster", "call").path.iterdir()) == []
    for path in root.iterdir():
        aged(path, 7200)
    assert checkpoints.collect(3600).number >= 1
    assert contents(root) == []


# In use -------------------------------------------------------------------------------------------

ANOTHER_PROCESS = """
import os, sys
from pathlib import Path
from scalable.cache.checkpoints import Checkpoints
path = Checkpoints(Path(sys.argv[1])).begin("remembered", "call").path
path.joinpath("state").write_text("3")
print(path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(checkpoints, tmp_path):
    """Return another process that runs the cached task, and its directory."""
    checkpoints.prepare("remembered")
    words = [sys.executable, "-c", ANOTHER_PROCESS, str(tmp_path / "results")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as process:
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_cached_task_that_runs_elsewhere_keeps_its_directory(checkpoints, other):
    process, path = other
    checkpoint = checkpoints.begin("remembered", "call")
    (checkpoint.path / "state").write_text("4")
    assert (path / "state").read_text() == "3"
    checkpoint.end(succeeded=True)
    assert (path / "state").read_text() == "3"
    process.kill()
    process.wait()
    aged(path.parent, 3000)
    assert checkpoints.collect(1000).number == 1
    assert not path.exists()


def test_directory_in_use_is_not_collected(checkpoints, other):
    _, path = other
    os.utime(path / "state", (1, 1))
    for directory in (path, path.parent):
        os.utime(directory, (1, 1))
    assert checkpoints.collect(0).number == 0
    assert path.exists()


def test_directory_of_a_killed_process_is_taken_over_at_once(checkpoints, other, tmp_path):
    process, path = other
    process.kill()
    process.wait()
    checkpoint = checkpoints.begin("remembered", "call")
    assert (checkpoint.path / "state").read_text() == "3"
    assert not path.exists()
    checkpoint.end(succeeded=True)
    assert contents(tmp_path / "results" / "checkpoints") == []


@pytest.mark.parametrize("changed", [{"host": "other"}, {"boot_id": None, "pid_namespace": "4"}])
def test_directory_of_another_machine_is_in_use_while_touched(checkpoints, other, changed):
    process, path = other
    process.kill()
    process.wait()
    mark = path.with_name(f".{path.name}")
    mark.write_text(json.dumps(json.loads(mark.read_text()) | changed))
    assert checkpoints.begin("remembered", "call").path.joinpath("state").read_text() == "3"
    assert path.exists()


def test_marks_are_touched_while_there_are_any(checkpoints, monkeypatch, eventually):
    monkeypatch.setattr(module, "_marks", module._Marks())
    monkeypatch.setattr(module, "TOUCHED_S", 0.02)
    checkpoint = checkpoints.begin("cluster", "call")
    mark = checkpoint.path.with_name(f".{checkpoint.path.name}")
    os.utime(mark, (1, 1))
    eventually(lambda: mark.stat().st_mtime > 1)
    checkpoint.end(succeeded=False)
    assert not mark.exists()
    eventually(lambda: module._marks._process == 0)


def test_checkpoints_lie_beside_results_or_in_the_users_directory():
    assert str(checkpoint_directory("file:///scratch/me")) == "/scratch/me"
    assert checkpoint_directory(None) == checkpoint_directory("s3://bucket/x") == results_dir()


# Outside a session ----------------------------------------------------------------------------


def test_decorated_function_goes_on_where_it_failed(tmp_path):
    log = tmp_path / "log"
    store = tmp_path / "results"

    @cached(store=store, depends_on=[1])
    def count(end):
        state = scalable.checkpoint() / "state"
        assert state.parent == scalable.checkpoint()
        begin = int(state.read_text()) if state.exists() else 0
        is_first = not log.exists()
        with log.open("a") as file:
            file.write(f"{begin} ")
        for number in range(begin, end):
            state.write_text(str(number))
            if number == 2 and is_first:
                raise OSError("no more")
        return end

    with pytest.raises(OSError, match="no more"):
        count(5)
    assert count(3) == 3
    assert count(5) == 5
    assert log.read_text() == "0 0 2 "
    assert contents(store / "checkpoints") == []
