"""Three forms, and where they go."""

import json
import stat
import subprocess
import sys

import click
import pytest

from scalable.cli.output import CommandFailure, Output, Result, render_failure, write_file
from scalable.model import Diagnostic

RESULT = Result(
    "two lines\nof text\n", {"version": 1, "a": 1}, {"a": 1}, companions={"b.txt": "beside\n"}
)
DATA, DOCUMENT = '{\n  "version": 1,\n  "a": 1\n}\n', '{\n  "a": 1\n}\n'


@pytest.mark.parametrize(
    ("form", "printed"),
    [(None, RESULT.text), ("human", RESULT.text), ("json", DATA), ("quiet", "")],
)
def test_results_are_printed(form, printed, capsys):
    Output(form).show(RESULT)
    assert capsys.readouterr() == (printed, "")


@pytest.mark.parametrize(
    ("form", "name", "written", "remark"),
    [
        (None, "out.txt", RESULT.text, "wrote {out}\n"),
        (None, "out.json", DOCUMENT, "wrote {out}, {beside}\n"),
        (None, "OUT.JSON", DOCUMENT, "wrote {out}, {beside}\n"),
        ("human", "out.json", RESULT.text, "wrote {out}\n"),
        ("json", "out.txt", DOCUMENT, ""),
        ("quiet", "out.txt", RESULT.text, ""),
        ("quiet", "out.json", DOCUMENT, ""),
    ],
)
def test_results_are_written(form, name, written, remark, tmp_path, capsys):
    out, beside = tmp_path / name, tmp_path / "b.txt"
    Output(form, out).show(RESULT)
    assert out.read_text() == written
    assert beside.exists() == (written == DOCUMENT)
    if written == DOCUMENT:
        assert beside.read_text() == "beside\n"
    assert capsys.readouterr() == ("", remark.format(out=out, beside=beside))


def test_a_dash_is_standard_output(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Output("json", click.Path(path_type=type(tmp_path)).convert("-", None, None)).show(RESULT)
    assert capsys.readouterr().out == DATA
    assert list(tmp_path.iterdir()) == []


def test_quiet_shows_what_is_wrong(capsys):
    Output("quiet").show(Result("2 faults\n", {}, faulty=True))
    assert capsys.readouterr() == ("", "2 faults\n")


def test_remarks_are_for_people(tmp_path, capsys):
    for form in ("human", "json", "quiet"):
        Output(form).note(form)
        Output(form, tmp_path / "out").note(f"{form} with a file")
    assert capsys.readouterr() == ("", "human\nhuman with a file\n")


def test_a_failure_leaves_the_file_as_it_is(tmp_path, capsys):
    out = tmp_path / "plan.json"
    out.write_text("as it was")
    Output(None, out).fail(CommandFailure("E_PLAN", "no plan", 3, "another way"))
    assert out.read_text() == "as it was"
    assert capsys.readouterr() == ("", "error: no plan\n  hint: another way\n")


def test_a_file_is_replaced_in_one_step_and_links_stay(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o644)
    before = file.stat().st_ino
    link.symlink_to(file)
    write_file(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"
    assert file.stat().st_ino != before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "link"]


def test_a_device_is_written_to_and_stays_one(tmp_path):
    import os
    import threading

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_file(pipe, "text")
    reader.join(timeout=60)
    assert read == ["text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(click.FileError, match="No such file or directory") as caught:
        write_file(tmp_path / "missing" / "file", "text")
    assert str(tmp_path / "missing" / "file") in caught.value.format_message()


def test_a_failure_shows_faults_instead_of_a_hint_that_repeats_them():
    fault = Diagnostic("E_BAD_VERSION", ("version",), "version 2", hint="1", file="m", line=3)
    text = click.unstyle(render_failure(CommandFailure("E", "m has 1 fault", 2, "1", [fault])))
    assert text == f"{fault.render()}\nerror: m has 1 fault\n"
    assert text.count("hint") == 1


def test_json_keeps_the_faults(capsys):
    fault = Diagnostic("E_BAD_VERSION", ("version",), "version 2", file="m", line=3)
    Output("json").fail(CommandFailure("E_MANIFEST", "m has 1 fault", 2, diagnostics=[fault]))
    assert json.loads(capsys.readouterr().out) == {
        "version": 1,
        "error": {
            "code": "E_MANIFEST",
            "message": "m has 1 fault",
            "hint": None,
            "exit_code": 2,
            "diagnostics": [fault.to_dict()],
        },
    }


def test_an_output_that_is_full_is_named(project):
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -m scalable plan >/dev/full', sys.executable],
        stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "error: Could not open file 'standard output': No space left on device\n"
    )
