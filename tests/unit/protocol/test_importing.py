"""Modules of a workflow are found in the version of the call, and nothing else changes."""

import importlib
import pickle
import sys
from pathlib import Path

import pytest
from dask._task_spec import Task

from scalable.dask_compat.tasks import CarriedNode
from scalable.protocol import importing
from scalable.protocol.code import (
    ArchiveEntry,
    CarriedFiles,
    CodeTable,
    ModuleCode,
    digest_of,
    is_own,
    pack,
)
from scalable.protocol.importing import Importer

NAME = "module_of_test_importing"


@pytest.fixture
def importer(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(importing, "_here", [])
    made = Importer("here")
    made.install()
    yield made
    sys.modules.pop(NAME, None)


def table(path, *sources, process="p"):
    modules = {NAME: ModuleCode(str(path / f"{NAME}.py"), digest_of(sources[-1]))}
    return CodeTable(process, modules, (str(path),))


def answer():
    return importlib.import_module(NAME).answer


def test_each_code_id_gets_its_own_version_and_gets_it_back(importer, tmp_path):
    one, two = b"answer = 1\n", b"answer = 2\n"
    (tmp_path / f"{NAME}.py").write_bytes(one)
    first, second = table(tmp_path, one), table(tmp_path, two)
    importer.versions.add(first, {})
    assert importer.missing_sources(second) == [digest_of(two)]
    importer.versions.add(second, {digest_of(two): two})
    importer.use(first.id)
    module = importlib.import_module(NAME)
    assert module.answer == 1
    importer.use(second.id)
    assert answer() == 2
    importer.use(first.id)
    assert sys.modules[NAME] is module
    importer.use("unknown")
    assert answer() == 1


def test_a_module_that_has_not_changed_stays_loaded(importer, tmp_path):
    source = b"answer = []\n"
    (tmp_path / f"{NAME}.py").write_bytes(source)
    first, second = table(tmp_path, source), table(tmp_path, source, process="q")
    importer.versions.add(first, {})
    importer.versions.add(second, {})
    importer.use(first.id)
    module = importlib.import_module(NAME)
    importer.use(second.id)
    assert sys.modules[NAME] is module


def test_equal_modules_of_two_clients_have_the_files_next_to_them(importer, tmp_path):
    tables = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{NAME}.py").write_bytes(b"answer = __file__\n")
        tables.append(table(tmp_path / name, b"answer = __file__\n", process=name))
        importer.versions.add(tables[-1], {})
    for made in (*tables, tables[0]):
        importer.use(made.id)
        assert answer() == made.modules[NAME].path


def test_a_compiled_file_of_the_same_second_is_not_trusted(importer, tmp_path):
    path = tmp_path / f"{NAME}.py"
    importer.versions.add(table(tmp_path, b""), {})
    sys.path.insert(0, str(tmp_path))
    for number in (1, 2, 3):  # texts of one length, written within one second
        path.write_text(f"answer = {number}\n")
        importlib.invalidate_caches()
        assert answer() == number
        assert importer.loaded[NAME] == (str(path), digest_of(path.read_bytes()))
        assert not (tmp_path / "__pycache__").exists(), "the user's process would read it"
        del sys.modules[NAME]


def test_an_empty_module_whose_file_is_not_here_is_loaded_from_its_source(importer, tmp_path):
    empty = table(tmp_path / "elsewhere", b"")
    importer.versions.add(empty, {digest_of(b""): b""})
    importer.use(empty.id)
    assert importlib.import_module(NAME).__file__ == str(tmp_path / "elsewhere" / f"{NAME}.py")


def test_built_in_modules_come_before_files_of_their_name(importer, tmp_path, monkeypatch):
    (tmp_path / "_csv.py").write_text("")
    (tmp_path / "math.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "math")
    if "math" in sys.builtin_module_names:
        assert hasattr(importlib.import_module("math"), "sqrt")
    finders = sys.meta_path
    assert finders.index(importer) > finders.index(importlib.machinery.BuiltinImporter)


def test_old_tables_are_dropped_but_the_one_in_use_stays(importer, tmp_path, monkeypatch):
    monkeypatch.setattr(importing, "TABLES_KEPT", 3)
    used = table(tmp_path, b"answer = 1\n")
    importer.versions.add(used, {digest_of(b"answer = 1\n"): b"answer = 1\n"})
    importer.use(used.id)
    later = [table(tmp_path, b"x", process=str(i)) for i in range(10)]
    for each in later:
        importer.versions.add(each, {digest_of(b"x"): b"x"})
    assert importer.knows(used.id)
    assert [importer.knows(each.id) for each in later] == [False] * 8 + [True] * 2
    assert answer() == 1


def test_only_modules_outside_of_python_and_its_packages_belong_to_a_workflow(tmp_path):
    assert is_own("model", str(tmp_path / "model.py"))
    assert not is_own("pytest", str(Path(sys.prefix) / "bin" / "command.py"))
    assert not is_own("model", str(tmp_path / "model.so"))
    assert not is_own("model", str(tmp_path / "site-packages" / "model.py"))
    assert not is_own("scalable.client", str(tmp_path / "scalable" / "client.py"))
    assert not is_own("__main__", str(tmp_path / "script.py"))
    assert not is_own("json", importlib.import_module("json").__file__)
    assert not is_own("pytest", pytest.__file__)


def test_a_file_of_another_version_is_refused_if_the_source_is_not_known(importer, tmp_path):
    (tmp_path / f"{NAME}.py").write_bytes(b"answer = 'edited'\n")
    wanted = table(tmp_path, b"answer = 1\n")
    importer.versions.add(wanted, {})
    importer.use(wanted.id)
    with pytest.raises(ImportError, match=f"{NAME}.*differs from the version.*sync_code"):
        answer()


# Archives -----------------------------------------------------------------------------------------

LAZY = f"{NAME}_lazy"


@pytest.fixture
def away(monkeypatch, tmp_path):
    """An importer of a process that does not see the client's files."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(importing, "_here", [])
    (tmp_path / "scratch").mkdir(mode=0o700)
    made = Importer("here", shares_files=False, directory=tmp_path / "scratch")
    made.install()
    yield made
    for name in (NAME, LAZY):
        sys.modules.pop(name, None)


def carried(importer, imported, lazy, base="/client", process="p"):
    """Add a table whose archive has a module, and another one that the client has not imported."""
    digest, size, data = pack(
        [
            ArchiveEntry(f"{NAME}.py", imported),
            ArchiveEntry(f"{LAZY}.py", lazy),
            ArchiveEntry("data", lazy),
        ]
    )
    files = CarriedFiles(digest, size, ((base, "."),))
    modules = {NAME: ModuleCode(f"{base}/{NAME}.py", digest_of(imported))}
    made = CodeTable(process, modules, (base,), files)
    importer.trees.add(files, data)
    importer.versions.add(made, {})
    return made


def test_equal_archives_of_two_processes_leave_modules_loaded(away):
    one = carried(away, b"answer = []\n", b"")
    two = carried(away, b"answer = []\n", b"", process="q")
    away.use(one.id)
    module = importlib.import_module(NAME)
    away.use(two.id)
    assert importlib.import_module(NAME) is module


def test_a_module_that_was_loaded_before_its_files_came_is_loaded_anew_beside_them(away):
    source = b"answer = 1\n"
    before = table(Path("/client"), source)
    away.versions.add(before, {digest_of(source): source})
    away.use(before.id)
    assert answer() == 1
    assert not Path(sys.modules[NAME].__file__).exists()
    away.use(carried(away, source, b"").id)
    assert answer() == 1
    assert (Path(sys.modules[NAME].__file__).parent / "data").exists()


def test_a_call_cannot_run_before_its_archive_is_here(away):
    digest, size, _ = pack([])
    table_without = CodeTable("p", {}, (), CarriedFiles(digest, size))
    away.versions.add(table_without, {})
    assert not away.knows(table_without.id)
    assert Importer("near").missing_files(table_without) is None


def test_a_call_whose_code_is_not_known_fails_instead_of_running_another_version(importer):
    node = pickle.loads(pickle.dumps(CarriedNode(Task("key", int, "3"), "unknown")))
    with pytest.raises(ImportError, match="Task 'int' on here.*did not reach"):
        node()
    assert pickle.loads(pickle.dumps(CarriedNode(Task("key", int, "3"), "")))() == 3
