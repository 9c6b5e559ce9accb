"""Which local workers may be forked, and the parts of a fork that need no server."""

import threading
from dataclasses import replace

import pytest

from scalable.protocol.forking import COMMAND_LINE_BYTES, WorkerStart, fits, worker_command
from scalable.providers.local.fork_server import StartRequest, can_fork, different, obstacle
from scalable.worker.fork_server import LARGE_BYTES, NumpyLater, more_than_one_thread
from unit.programs import printed_by

OURS = {"PATH": "/bin", "HOME": "/home/u", "LD_LIBRARY_PATH": "/lib", "PYTHONPATH": "/src"}
PLAIN = StartRequest(
    environment=OURS,
    preload=(),
    container=False,
    interpreter="/usr/bin/python",
    server_environment=OURS,
    server_interpreter="/usr/bin/python",
)


def test_a_plain_worker_is_forked():
    assert can_fork(PLAIN)
    assert obstacle(PLAIN) is None


@pytest.mark.parametrize("variables", [
    {"MODEL": "gcam"},
    {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    {"CUDA_VISIBLE_DEVICES": "1"},
    {"PATH": "/opt/bin:/bin"},
    {"TMPDIR": "/scratch"},
])  # fmt: skip
def test_variables_that_nothing_has_read_yet_are_set_after_the_fork(variables):
    assert can_fork(replace(PLAIN, environment={**OURS, **variables}))


@pytest.mark.parametrize("name", [
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONPATH",
    "PYTHONHASHSEED",
    "PYTHONUNBUFFERED",
    "LC_ALL",
    "LANG",
    "TZ",
    "HOME",
    "MALLOC_ARENA_MAX",
    "GLIBC_TUNABLES",
    "OPENSSL_CONF",
    "DASK_DISTRIBUTED__COMM__COMPRESSION",
])  # fmt: skip
def test_variables_that_are_read_before_imports_need_a_new_interpreter(name):
    changed = replace(PLAIN, environment={**OURS, name: "other"})
    assert not can_fork(changed)
    assert name in obstacle(changed)
    same = {**OURS, name: "other"}
    assert can_fork(replace(PLAIN, environment=same, server_environment=same))


def test_a_variable_that_is_taken_away_counts_as_changed():
    without = {name: value for name, value in OURS.items() if name != "PYTHONPATH"}
    assert "PYTHONPATH" in obstacle(replace(PLAIN, environment=without))
    assert different({"a": "1", "b": "2"}, {"a": "1", "c": "3"}) == {"b", "c"}


@pytest.mark.parametrize(("change", "reason"), [
    ({"container": True}, "container"),
    ({"preload": ("/x/warm.py",)}, "preload script"),
    ({"interpreter": "/opt/python"}, "/opt/python"),
])  # fmt: skip
def test_containers_preload_scripts_and_other_interpreters_are_not_forked(change, reason):
    assert reason in obstacle(replace(PLAIN, **change))
    assert not can_fork(replace(PLAIN, **change))


def test_a_worker_s_start_survives_the_pipe():
    start = WorkerStart({"A": "\udcff"}, ("B",), "/somewhere", 0o27, ("f", "n"), {"name": "n"})
    line = start.to_line()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    read = WorkerStart.from_line(line)
    assert (read.environment, read.umask, read.config) == ({"A": "\udcff"}, 0o27, {"name": "n"})
    assert tuple(read.arguments) == ("f", "n")


def test_a_configuration_is_not_in_the_text_of_a_start():
    assert "secret" not in repr(WorkerStart({}, (), "/", 0, config={"security": "secret"}))


def test_a_long_command_line_does_not_fit():
    assert fits(worker_command("/usr/bin/python", ["/a/b.json", "worker-1"]))
    assert not fits(worker_command("/usr/bin/python", ["x" * COMMAND_LINE_BYTES]))


def test_a_command_line_is_shown_word_by_word():
    program = (
        "from scalable.worker.fork_server import show_command_line as show\n"
        "assert not show(['x' * 9000])\n"
        "assert show(['python', '-m', 'module', 'a b'])\n"
        "print(open('/proc/self/cmdline', 'rb').read().rstrip(b'\\0'))"
    )
    assert printed_by(program, "." * 500).strip() == r"b'python\x00-m\x00module\x00a b'"


def test_a_second_thread_is_noticed():
    program = (
        "import threading; from scalable.worker.fork_server import more_than_one_thread\n"
        "print(more_than_one_thread())\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "print(more_than_one_thread())"
    )
    assert printed_by(program).splitlines() == ["None", "the fork server has 2 threads"]
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    assert "threads" in more_than_one_thread()
    end.set()
    other.join()


def test_the_stand_in_gives_memory_and_notes_what_it_cannot_do():
    program = (
        "import sys; from scalable.worker.fork_server import NumpyLater\n"
        "later = NumpyLater()\n"
        f"sizes = [later.empty((n,), dtype='u1').data.nbytes for n in (0, 7, {LARGE_BYTES - 1})]\n"
        "print(sizes, 'numpy' in sys.modules, later.missed)\n"
        f"print(later.empty(({LARGE_BYTES},), dtype='u1').data.nbytes, 'numpy' in sys.modules)"
    )
    first, second = printed_by(program).splitlines()
    assert first == f"[0, 7, {LARGE_BYTES - 1}] False None"
    assert second.startswith(f"{LARGE_BYTES} ")
    stand_in = NumpyLater()
    with pytest.raises(AttributeError, match="ndarray"):
        stand_in.ndarray  # noqa: B018
    assert stand_in.missed == "ndarray"


def test_what_is_preloaded_is_what_dask_needs():
    """Dask is free to do this otherwise; then the stand-in and the preloading have to follow."""
    pytest.importorskip("numpy")
    program = (
        "import sys; from scalable.worker.fork_server import MODULES, NumpyLater, preload\n"
        "assert preload() is None\n"
        "missing = [name for name in MODULES if name not in sys.modules]\n"
        "assert not missing, missing\n"
        "import distributed.protocol.utils as utils\n"
        "assert 'numpy' not in sys.modules and isinstance(utils.numpy, NumpyLater)\n"
        "assert utils.host_array(5).nbytes == 5\n"
        "assert 'numpy' not in sys.modules\n"
        "import distributed.versions as versions; versions.version = None\n"
        "assert versions.get_versions()['packages']['dask']\n"
        "import numpy; assert utils.host_array(5).obj.__class__ is numpy.ndarray"
    )
    printed_by(program)
