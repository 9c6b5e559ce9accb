"""Calls run the modules that their client has loaded, and a missing module harms no worker."""

import importlib
import logging
import sys
import traceback

import dask
import pytest

from scalable import ScalableSession

MANIFEST = """
version: 1
project: {name: code}
targets:
  local: {provider: local, processes: true}
components:
  crops: {cpus: 1, workers: {minimum: 1, maximum: 3}}
"""
WORKERS = 1


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    """Return a function that writes, and imports or reloads, a module of the test's own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"model_of_{request.node.name.partition('[')[0][:40]}"

    def write(text, *, load=True):
        (tmp_path / f"{name}.py").write_text(text)
        if not load:
            return None
        # The compiled file of a second ago would do for a text of the same length.
        sys.dont_write_bytecode, kept = True, sys.dont_write_bytecode
        try:
            importlib.invalidate_caches()
            if name in sys.modules:
                return importlib.reload(sys.modules[name])
            return importlib.import_module(name)
        finally:
            sys.dont_write_bytecode = kept

    yield write
    sys.modules.pop(name, None)


def in_each_way(client, function):
    """Run a function as a call, as the call of an executor, in a graph, and as a delayed call."""
    with client.pool(tag="crops") as pool:
        return [
            client.submit(function, tag="crops").result(timeout=60),
            pool.submit(function).result(timeout=60),
            client.get({"a": (function,)}, "a", tag="crops"),
            dask.delayed(function, pure=False)().compute(),
        ]


def test_a_module_that_is_reloaded_is_loaded_anew_by_workers_and_told_once(client, module, caplog):
    one = module("def answer():\n    return 1\n")
    assert in_each_way(client, one.answer) == [1, 1, 1, 1]
    with caplog.at_level(logging.WARNING, "scalable.client"):
        two = module("def answer():\n    return 2\n")
        assert in_each_way(client, two.answer) == [2, 2, 2, 2]
    told = [r.getMessage() for r in caplog.records if "another version" in r.getMessage()]
    assert len(told) == 1
    assert one.__name__ in told[0]


def test_a_module_that_others_import_is_loaded_anew_with_them(client, module, tmp_path):
    (tmp_path / "reloaded_user.py").write_text(
        "from reloaded_part import part\ndef whole():\n    return part() + 1\n"
    )
    (tmp_path / "reloaded_part.py").write_text("def part():\n    return 10\n")
    module("", load=False)
    importlib.invalidate_caches()
    import reloaded_part
    import reloaded_user

    try:
        assert client.submit(reloaded_user.whole, tag="crops").result(timeout=60) == 11
        (tmp_path / "reloaded_part.py").write_text("def part():\n    return 2000\n")
        importlib.reload(reloaded_part)
        importlib.reload(reloaded_user)
        assert client.submit(reloaded_user.whole, tag="crops").result(timeout=60) == 2001
    finally:
        del sys.modules["reloaded_part"], sys.modules["reloaded_user"]


def test_an_edit_without_a_reload_is_told_and_workers_that_start_later_run_the_same(
    session, client, module, caplog, eventually
):
    one = module("def answer():\n    return 1\n")
    assert client.submit(one.answer, tag="crops").result(timeout=60) == 1
    module("def answer():\n    return 22\n", load=False)
    session.scale("crops", 2)
    client.wait_for_workers(2, timeout=60)
    with caplog.at_level(logging.WARNING, "scalable.client"):
        workers = list(client.scheduler_info(n_workers=-1)["workers"])
        found = [client.submit(one.answer, workers=[w], pure=False).result(60) for w in workers]
        assert found == [1, 1]
        eventually(
            lambda: (
                client.submit(one.answer, tag="crops").result(60) == 1
                and "changed since this process imported it" in caplog.text
            )
        )
    assert client.sync_code() == [one.__name__]
    found = [client.submit(one.answer, workers=[w], pure=False).result(60) for w in workers]
    assert found == [22, 22]
    session.scale("crops", 1)


def test_a_syntax_error_in_an_edited_module_names_file_and_line(client, module):
    one = module("def answer():\n    return 1\n")
    assert client.submit(one.answer, tag="crops").result(timeout=60) == 1
    module("def answer():\n    return 1\n\ndef broken(:\n", load=False)
    client.sync_code()
    for call in (client.submit(one.answer, tag="crops"), client.pool("crops").submit(one.answer)):
        with pytest.raises(SyntaxError, match=rf"invalid syntax \({one.__name__}.py, line 4\)"):
            call.result(timeout=60)


def test_after_a_failed_reload_workers_run_what_this_process_runs(client, module, caplog):
    one = module("def answer():\n    return 1\n")
    assert client.submit(one.answer, tag="crops").result(timeout=60) == 1
    with pytest.raises(SyntaxError):
        module("def answer():\n    return 2\n\ndef broken(:\n")
    assert in_each_way(client, one.answer) == [1, 1, 1, 1]
    assert caplog.text.count(f"module {one.__name__} was not reloaded completely") == 1


def test_a_call_makes_calls_of_the_same_version(client, module):
    text = (
        "from distributed import get_client\n"
        "def inner():\n    return {0}\n"
        "def outer():\n    return get_client().submit(inner, tag='crops').result() + {0}\n"
    )
    assert client.submit(module(text.format(1)).outer, tag="crops").result(timeout=60) == 2
    assert client.submit(module(text.format(5)).outer, tag="crops").result(timeout=60) == 10


def by_value(function):
    return function()


@pytest.fixture
def uninstalled(tmp_path, monkeypatch):
    """A module of an installed package that workers do not have."""
    place = tmp_path / "site-packages"
    place.mkdir()
    (place / "only_here.py").write_text("def answer():\n    return 1\nclass Thing:\n    pass\n")
    monkeypatch.syspath_prepend(str(place))
    yield importlib.import_module("only_here")
    del sys.modules["only_here"]


def test_a_module_that_workers_do_not_have_is_named_and_harms_no_worker(client, uninstalled):
    workers = set(client.scheduler_info(n_workers=-1)["workers"])
    with client.pool(tag="crops") as pool:
        calls = {
            "submit": lambda: client.submit(uninstalled.answer, tag="crops").result(60),
            "argument": lambda: client.submit(str, uninstalled.Thing(), tag="crops").result(60),
            "map": lambda: client.gather(client.map(by_value, [uninstalled.answer], tag="crops")),
            "executor": lambda: pool.submit(uninstalled.answer).result(60),
            "delayed": lambda: dask.delayed(uninstalled.answer, pure=False)().compute(),
        }
        for way, call in calls.items():
            with pytest.raises(ModuleNotFoundError, match="No module named 'only_here'") as caught:
                call()
            assert "Install only_here in the Python environment" in str(caught.value), way
    assert set(client.scheduler_info(n_workers=-1)["workers"]) == workers


def lacks_a_module():
    import module_of_nobody  # noqa: F401


def guards_itself():
    try:
        import module_of_nobody  # noqa: F401
    except ModuleNotFoundError as error:
        return str(error)


def test_a_module_that_a_call_imports_itself_is_named_with_the_worker(client):
    pool = client.pool("crops")
    for call in (client.submit(lacks_a_module, tag="crops"), pool.submit(lacks_a_module)):
        with pytest.raises(ModuleNotFoundError, match="Install module_of_nobody in the P") as told:
            call.result(timeout=60)
        text = str(told.value)
        assert text.startswith("No module named 'module_of_nobody' on worker crops-"), text
        assert "task 'lacks_a_module' needs it" in text
        frames = [frame.name for frame in traceback.extract_tb(told.value.__traceback__)]
        assert frames[-1] == "lacks_a_module"
    assert pool.submit(guards_itself).result(timeout=60) == "No module named 'module_of_nobody'"


def test_threads_run_a_reloaded_module_too(module):
    one = module("def answer():\n    return 1\n")
    with ScalableSession.local({"crops": 1}) as client:
        assert in_each_way(client, one.answer) == [1, 1, 1, 1]
        assert in_each_way(client, module("def answer():\n    return 2\n").answer) == [2, 2, 2, 2]


@pytest.fixture
def two_workers(session, client, eventually):
    def workers():
        return list(client.scheduler_info(n_workers=-1)["workers"])

    eventually(lambda: len(workers()) == 1)  # none that a test before has retired
    session.scale("crops", 2)
    client.wait_for_workers(2, timeout=60)
    yield workers()
    session.scale("crops", 1)


ARGUMENTS = """
import os
class Point:
    x = 3
class Tied:
    def __getstate__(self):
        return {"pid": os.getpid()}
    def __setstate__(self, state):
        if state["pid"] != os.getpid():
            raise ValueError("tied to its process")
def make(kind):
    return globals()[kind]()
def read(*points):
    return [point.x for point in points]
"""


def test_an_argument_of_a_class_that_its_worker_has_not_imported_is_read(
    client, module, two_workers
):
    first, second = two_workers
    found = module(ARGUMENTS)
    point = client.submit(found.make, "Point", workers=[first])
    assert client.submit(found.read, point, workers=[second]).result(timeout=60) == [3]


def test_an_argument_that_cannot_be_unpickled_fails_its_calls_only(client, module, two_workers):
    first, second = two_workers
    found = module(ARGUMENTS)
    point, tied, again = (
        client.submit(found.make, kind, workers=[first], pure=False)
        for kind in ("Point", "Tied", "Point")
    )
    calls = [
        client.submit(found.read, *points, workers=[second], pure=False, retries=retries)
        for points, retries in (((point, tied), 0), ((tied, again), 1), ((point, again), 0))
    ]
    for call in calls[:2]:
        with pytest.raises(RuntimeError, match=r"task 'read' cannot be unpickled.*tied to its"):
            call.result(timeout=60)
    assert calls[2].result(timeout=60) == [3, 3]
    assert client.submit(found.read, again, workers=[second], pure=False).result(60) == [3]


def test_an_edit_before_a_worker_imports_the_module_changes_nothing(client, module):
    one = module("def answer():\n    return 1\n")
    assert client.submit(abs, -1, tag="crops", pure=False).result(timeout=60) == 1
    module("def answer():\n    return 'edited'\n", load=False)
    assert in_each_way(client, one.answer) == [1, 1, 1, 1]
