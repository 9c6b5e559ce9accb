"""The program as a whole: help, errors, exit codes, what it imports."""

import json
import os
import re
import subprocess
import sys

import click
import pytest

from scalable import __version__, errors
from scalable.cli import main as program
from scalable.cli import options

HEAVY = ("distributed", "dask", "rich", "tornado", "pandas", "asyncio")
#: What asks the places themselves needs an event loop, but no engine.
ENGINE = tuple(name for name in HEAVY if name != "asyncio")
LIGHT = (*HEAVY, "pydantic", "yaml", "psutil", "scalable.session", "scalable.runs")


def test_the_help_lists_the_verbs_with_a_whole_line_each(invoke):
    result = invoke("--help")
    assert result.code == 0
    lines = {line.split()[0]: line for line in result.out.splitlines() if line.startswith("  ")}
    assert list(program.VERBS) == [w for w in lines if w in program.VERBS]
    for verb in program.VERBS:
        assert lines[verb].endswith("."), lines[verb]
        command = program.cli.get_command(None, verb)
        assert lines[verb].split(maxsplit=1)[1] == command.get_short_help_str(limit=80)
    assert "scalable run --target local workflow.py -- --years 10" in result.out
    assert invoke() == result


@pytest.mark.parametrize("verb", program.VERBS)
def test_every_option_has_a_help_text_and_the_output_options_are_there(verb, invoke):
    command = program.cli.get_command(click.Context(program.cli), verb)
    for one in command.commands.values() if isinstance(command, click.Group) else [command]:
        options = [p for p in one.params if isinstance(p, click.Option)]
        assert {"--format", "--output", "--debug"} <= {name for o in options for name in o.opts}
        assert [o.name for o in options if not o.help and not o.hidden] == []
    assert invoke(verb, "--help").out.startswith(f"Usage: scalable {verb} [OPTIONS]")


def test_version(invoke):
    assert invoke("--version").out == f"scalable, version {__version__}\n"


VERBS = (
    (["--help"], LIGHT),
    (["validate", "--help"], LIGHT),
    (["validate"], HEAVY),
    (["plan"], HEAVY),
    (["schema"], HEAVY),
    (["run", "--dry-run", "--workflow", "record.py"], HEAVY),
    (["report", "--runs-dir", "none"], HEAVY),
    (["up", "--no-such-option"], HEAVY),
    (["cache", "list"], HEAVY),
    (["list"], ENGINE),
    (["status", "one"], HEAVY),
    (["explain", "one"], ENGINE),
    (["doctor"], HEAVY),
    (["logs", "one"], HEAVY),
    (["connect", "one"], HEAVY),
    (["down", "one"], HEAVY),
    (["prune", "--dry-run"], ENGINE),
)
# Each verb runs in a fork of a process that has imported what all of them need.
RUN_VERBS = """\
import json, os, sys
from scalable.cli.main import main
found = {}
for arguments, forbidden in json.loads(sys.argv[1]):
    reading, writing = os.pipe()
    if os.fork() == 0:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 1), os.dup2(nothing, 2)
        main(arguments)
        os.write(writing, " ".join(["ran", *(m for m in forbidden if m in sys.modules)]).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as told:
        found[" ".join(arguments)] = told.read()
print(json.dumps(found))
"""


def test_nothing_heavy_is_imported(project):
    done = subprocess.run(
        [sys.executable, "-c", RUN_VERBS, json.dumps(VERBS)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == {" ".join(arguments): "ran" for arguments, _ in VERBS}


# Errors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (errors.ScalableError("odd"), "E_SCALABLE", 1),
        (errors.ManifestError("odd"), "E_MANIFEST", 2),
        (errors.PlanError("odd"), "E_PLAN", 3),
        (errors.ProviderError("odd"), "E_PROVIDER", 4),
        (errors.UnknownProviderError("odd"), "E_UNKNOWN_PROVIDER", 4),
        (errors.ClusterError("odd"), "E_CLUSTER", 5),
        (errors.RunError("odd"), "E_RUN", 6),
        (NotImplementedError("odd"), "E_NOT_AVAILABLE", 4),
        (click.UsageError("odd"), "E_USAGE", 2),
        (click.FileError("odd"), "E_FILE", 1),
        (KeyboardInterrupt(), "E_INTERRUPTED", 130),
        (ZeroDivisionError("odd"), "E_UNEXPECTED", 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_each_error_has_its_code_and_its_exit_code(error, code, exit_code, invoke, monkeypatch):
    def fail(**_):
        raise error

    monkeypatch.setattr("scalable.cli.commands.report.find_run", lambda *_: fail())
    human = invoke("report")
    assert (human.code, human.out) == (exit_code, "")
    assert "error: " in human.err
    assert "Traceback" not in human.err
    result = invoke("report", "--format", "json")
    value = json.loads(result.out)
    assert (result.code, result.err.strip()) == (exit_code, "")
    assert value["version"] == 1
    assert (value["error"]["code"], value["error"]["exit_code"]) == (code, exit_code)
    quiet = invoke("report", "--format=quiet")
    assert (quiet.code, quiet.out) == (exit_code, "")
    assert quiet.err == human.err


def test_an_unexpected_error_shows_its_class_and_a_traceback_only_when_asked(invoke, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr("scalable.cli.commands.report.find_run", fail)
    hint = "  hint: this is a bug; --debug or SCALABLE_DEBUG=1 shows the traceback\n"
    assert invoke("report").err == f"error: ZeroDivisionError: of all things\n{hint}"
    asked = invoke("report", "--debug").err
    assert asked.startswith("Traceback (most recent call last):\n")
    assert asked.endswith("\nerror: ZeroDivisionError: of all things\n")
    monkeypatch.setenv("SCALABLE_DEBUG", "1")
    assert "in fail" in json.loads(invoke("report", "--format", "json").out)["error"]["traceback"]
    monkeypatch.setenv("SCALABLE_DEBUG", "0")
    assert "Traceback" not in invoke("report").err


@pytest.mark.parametrize("arguments", [["nothing"], ["report", "--nothing"], ["report", "a", "b"]])
def test_a_usage_error_says_where_help_is(arguments, invoke):
    result = invoke(*arguments)
    assert (result.code, result.out) == (2, "")
    where = "scalable report" if len(arguments) > 1 else "scalable"
    assert result.err.endswith(f"\n  hint: see {where} --help\n")
    result = invoke(*arguments, "--format", "json")
    assert json.loads(result.out)["error"]["code"] == "E_USAGE"
    assert (result.code, result.err) == (2, "")


def test_an_unknown_verb_gets_the_closest_one(invoke):
    assert "no command 'ls'; did you mean 'list'?" in invoke("ls").err
    assert "did you mean 'cache prune'?" in invoke("cache", "prne").err
    assert "no command 'vaildate'; did you mean 'validate'?" in invoke("vaildate").err
    assert "did you mean" not in invoke("zzz").err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("gc", "'prune'"),
        ("cache gc", "'cache prune'"),
        ("resume one", "'manager restart' or 'run --resume'"),
        ("manager resume one", "'manager restart'"),
    ],
)
def test_an_old_spelling_is_answered_with_the_command(words, meant, invoke):
    result = invoke(*words.split())
    assert (result.code, result.out) == (2, "")
    assert f"did you mean {meant}?\n" in result.err


def commands(command, path=()):
    """Yield all commands below one, with their words."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from commands(command.get_command(click.Context(command), name), (*path, name))
    else:
        yield path, command


ALL = dict(commands(program.cli))


def test_every_answer_for_another_spelling_is_a_command():
    meant = [one.split(" --")[0] for word in options.ELSEWHERE.values() for one in word.split(", ")]
    assert [one for one in meant if tuple(one.split()) not in ALL] == []


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_the_help_ends_with_the_global_options(path, invoke):
    own, shared = invoke(*path, "--help").out.split("\nGlobal options:\n")
    named = [line.split()[0] for line in shared.splitlines() if line.startswith("  -")]
    assert named == ["--format", "-o,", "--debug", "-h,"]
    assert "--debug" not in own


METAVARS = re.compile(
    r"\[?(DURATION|SIZE|NAME|TAG|TAG=N|RUN|RUN RUN|N|FILE|DIR|AMOUNT|HOST:PORT|\[HOST\]:PORT|"
    r"\w+(\|\w+)+)\]?"
)


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_values_of_options_have_common_names(path):
    command = ALL[path]
    context = click.Context(command)
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_flag and not option.hidden:
            shown = option.make_metavar(context)
            assert METAVARS.fullmatch(shown), (option.opts, shown)


def test_the_workflows_arguments_do_not_choose_the_form_of_an_error(invoke, project):
    result = invoke("run", "--nothing", "--", "--format", "json", "--debug")
    assert result.out == ""
    assert "No such option '--nothing'" in result.err
    assert "Traceback" not in result.err


def test_the_faults_of_a_manifest_come_with_their_places(invoke, project):
    (project / "scalable.yaml").write_text("version: 2\nproject: {name: x}\n")
    result = invoke("plan")
    assert result.code == 2
    assert "scalable.yaml:1:10: error E_BAD_VERSION" in result.err
    value = json.loads(invoke("plan", "--format", "json").out)["error"]
    assert value["code"] == "E_MANIFEST"
    found = {d["code"]: (d["file"], d["line"], d["column"]) for d in value["diagnostics"]}
    assert found["E_BAD_VERSION"] == ("scalable.yaml", 1, 10)
    assert "E_MISSING_KEY" in found


def test_an_outer_runs_target_does_not_win_over_this_command_line(invoke, project, monkeypatch):
    monkeypatch.setenv("SCALABLE_RUN_TARGET", "other")
    assert invoke("plan", "--target", "cluster").out.startswith(
        "Target:    cluster (provider slurm)"
    )


# Terminals and pipes -------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["schema"], ["report", "--format", "json"]])
def test_a_reader_that_has_gone_is_no_error(arguments, project, spawn):
    reading, writing = os.pipe()
    os.close(reading)
    process = spawn(*arguments, stdout=writing)
    os.close(writing)
    assert process.communicate(timeout=120)[1] == ""
    assert process.returncode != 0


def test_words_that_the_locale_cannot_write_are_written_all_the_same(project, spawn):
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    (project / "scalable.yaml").write_text("a→b: 1\n", encoding="utf-8")
    process = spawn("validate", env=environment)
    assert r"unknown key 'a\u2192b'" in process.communicate(timeout=120)[0]
    assert process.returncode == 2


def test_shells_complete_verbs_options_and_targets(project, complete):
    (project / "elsewhere.yaml").write_text("targets: {moon: {provider: local}}\n")
    assert complete("scalable rep") == ["plain,report"]
    assert "plain,--objective" in complete("scalable plan --o")
    targets = ["plain,local", "plain,other", "plain,cluster"]
    assert complete("scalable plan --target ") == targets
    assert complete("scalable plan elsewhere.yaml --target m") == ["plain,moon"]
    assert complete("scalable plan nowhere.yaml --target m") == []
    assert "_scalable_completion()" in complete("scalable", "bash_source")
