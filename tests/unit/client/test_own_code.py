"""Versions of the workflow's modules in the user's process: edited files and failed reloads."""

import importlib
import os
import sys
import time

import pytest

from scalable.client import own_code
from scalable.client.own_code import OwnCode
from scalable.protocol.code import digest_of

NAME = "module_of_test_own_code"
ONE = "def wheat():\n    return 3\n\n\nclass Crop:\n    def grow(self):\n        return 1\n"
TWO = ONE.replace("return 3", "return 4000")


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(text):
        file = tmp_path / f"{NAME}.py"
        file.write_text(text)
        later = time.time() + put.edits  # clocks of file systems are coarse
        os.utime(file, (later, later))
        put.edits += 5
        importlib.invalidate_caches()

    put.edits = 0
    yield put
    sys.modules.pop(NAME, None)


def runs(code, text):
    return code.table().modules[NAME].digest == digest_of(text.encode())


@pytest.mark.parametrize("writes_compiled", [True, False])
@pytest.mark.parametrize(
    "edit", [TWO, ONE.replace("return 1", "return 2"), "def broken(:\n"],
    ids=["function", "method", "syntax"],
)  # fmt: skip
def test_a_file_that_was_edited_between_import_and_first_look_is_named(
    write, caplog, monkeypatch, edit, writes_compiled
):
    monkeypatch.setattr(sys, "dont_write_bytecode", not writes_compiled)
    write(ONE)
    importlib.import_module(NAME)
    write(edit)
    code = OwnCode()
    code.table()
    assert f"module {NAME} changed after this process had imported it" in caplog.text
    caplog.clear()
    code.table()
    assert caplog.text == ""


def test_an_edit_of_a_constant_is_found_by_the_compiled_file(write, caplog, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write("wheat = 3\n")
    importlib.import_module(NAME)
    write("wheat = 4000\n")
    OwnCode().table()
    assert f"module {NAME} changed after this process had imported it" in caplog.text


@pytest.mark.parametrize("writes_compiled", [True, False])
def test_a_file_that_is_written_imported_and_reloaded_in_this_process_is_not_named(
    write, caplog, monkeypatch, writes_compiled
):
    monkeypatch.setattr(sys, "dont_write_bytecode", not writes_compiled)
    write(ONE)
    module = importlib.import_module(NAME)
    assert runs(OwnCode(), ONE)
    write(TWO)
    importlib.reload(module)
    assert runs(OwnCode(), TWO)
    assert caplog.text == ""


def test_an_old_file_is_not_compared(write, tmp_path, monkeypatch):
    write(ONE)
    module = importlib.import_module(NAME)
    os.utime(tmp_path / f"{NAME}.py", (1, 1))
    monkeypatch.setattr(own_code, "runs", None)
    assert not own_code.was_edited(module, module.__file__, b"")


@pytest.mark.parametrize("edit", ["def broken(:\n", f"1 / 0\n{TWO}"], ids=["syntax", "error"])
def test_after_a_failed_reload_calls_run_the_version_from_before(write, caplog, edit):
    write(ONE)
    module = importlib.import_module(NAME)
    code = OwnCode()
    assert runs(code, ONE)
    write(edit)
    with pytest.raises((SyntaxError, ZeroDivisionError)):
        importlib.reload(module)
    assert module.wheat() == 3
    assert runs(code, ONE)
    assert caplog.text.count(f"module {NAME} was not reloaded completely") == 1
    write(TWO)
    importlib.reload(module)
    assert runs(code, TWO)
    # With sync_code(), the files count, whatever is loaded.
    write("def broken(:\n")
    assert code.read_again() == [NAME]
    assert len(caplog.records) == 1
