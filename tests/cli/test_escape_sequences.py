"""Control characters from workers, places and records never reach the terminal as they are."""

import json
import logging

import click

from fabricated import pool
from scalable.cli.options import confirm
from scalable.cli.output import CommandFailure, Output, render_failure
from scalable.clusters import services
from scalable.errors import ProviderError
from scalable.harmless import harmless
from scalable.model import Diagnostic, PoolStatus
from scalable.model.overview import Overview, PoolOverview, TaskCounts, TaskOverview
from scalable.runs.directory import RunDirectory
from scalable.session.progress import LineDisplay

TITLE = "\x1b]0;owned\x07"
CLIPBOARD = "\x1b]52;c;cm0gLXJmIC8=\x1b\\"
CLEAR = "\x1b[2J\x1b[1;1H"
C1 = "\x9b31m\x90q\x9c"
BIDI = "\u202egnp.exe\u2066x\u2069\u200f"
EVIL = f"a{TITLE}b{CLIPBOARD}c{CLEAR}d{C1}e{BIDI}f\bg\x7fh\ri\x00j"
HARMFUL = ({chr(n) for n in (*range(32), *range(0x7F, 0xA0))} - {"\n", "\t"}) | set(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)


def check(*texts):
    for text in texts:
        assert not HARMFUL & set(text), text


def test_every_control_character_is_shown_and_line_breaks_and_tabs_stay():
    check(harmless("".join(map(chr, range(0x3000)))))
    assert harmless("a\tb\nc\r\nd\x1b[0m\x85\u202e") == "a\tb\nc\nd\\x1b[0m\\x85\\u202e"
    assert harmless("grün 漢字 👩‍🔬 \\x1b") == "grün 漢字 👩‍🔬 \\x1b"


def test_logs(invoke, recorded, tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    directory = recorded()
    directory.write_scheduler({**directory.scheduler(), "log_dir": str(logs)})
    (logs / "model-local-1f-0.log").write_text(f"begin\t1\n{EVIL}\nend\n")
    shown = invoke("logs", "one")
    check(shown.out, shown.err)
    assert "begin\t1\na\\x1b]0;owned\\x07b\\x1b]52;" in shown.out
    (log,) = json.loads(invoke("logs", "one", "--format", "json").out)["logs"]
    assert TITLE in log["text"]
    assert invoke("logs", "one", "--output", tmp_path / "raw.txt").code == 0
    assert TITLE.encode() in (tmp_path / "raw.txt").read_bytes()
    assert "--output writes the logs to a file unchanged" in " ".join(
        invoke("logs", "--help").out.split()
    )


def test_lines_that_are_followed(capfd):
    Output().line(f"w: {EVIL}", {"line": EVIL})
    check("".join(capfd.readouterr()))
    Output("json").line(f"w: {EVIL}", {"line": EVIL})
    assert json.loads(capfd.readouterr().out) == {"line": EVIL}


def test_status_and_list(invoke, recorded):
    recorded(
        provider=EVIL,
        target=EVIL,
        status={
            "state": "degraded",
            "reason": EVIL,
            "pools": {"model": pool(2, 1, 1, waiting=EVIL), EVIL: pool(1, 0, reason=EVIL)},
            "managers": [{"id": EVIL, "target": EVIL, "state": EVIL, "priority": 0}],
        },
    )
    for arguments in (("status", "one"), ("list",)):
        result = invoke(*arguments)
        assert "degraded" in result.out
        check(result.out, result.err)
    value = json.loads(invoke("status", "one", "--format", "json").out)
    assert (value["target"], value["reason"]) == (EVIL, EVIL)


def test_a_reason_of_several_lines_adds_no_line_to_the_status(invoke, recorded):
    forged = "gone\nDashboard: http://elsewhere"
    recorded(
        status={
            "state": "degraded",
            "reason": forged,
            "pools": {"model": pool(2, 0, reason=forged)},
        }
    )
    shown = invoke("status", "one").out
    assert shown.count("http://elsewhere") == 2
    assert not any(line.startswith("Dashboard") for line in shown.splitlines())


def test_an_error_of_up(invoke, project, monkeypatch):
    def refuse(directory, spec):
        raise ProviderError(f"sbatch: {EVIL}", hint=EVIL)

    monkeypatch.setattr(services, "start_scheduler", refuse)
    forms = {"plain": (), "traced": ("--debug",), "quiet": ("--format", "quiet")}
    for name, more in forms.items():
        result = invoke("up", "--target", "local", "--processes", "--name", name, *more)
        assert result.code == 4
        assert "sbatch: a\\x1b]0;owned" in result.err
        check(result.out, result.err)
    assert "hint: a\\x1b]0;" in result.err


def test_a_name_given_by_the_user(invoke):
    result = invoke("status", EVIL)
    assert result.code == 5
    check(result.out, result.err)


def test_faults_keep_the_colour_of_the_program_alone():
    fault = Diagnostic("E_BAD_OPTION", ("targets", EVIL), EVIL, hint=EVIL)
    text = render_failure(CommandFailure("E", EVIL, 2, trace=EVIL, diagnostics=(fault,)))
    check(text.replace(click.style("error:", fg="red", bold=True), ""))


def test_a_report(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = RunDirectory.create(
        "p", "local", manifest_yaml="", manifest_lock="0" * 64, plan={}, provider=EVIL
    )
    row = {"worker": EVIL, "tag": EVIL, "reason": f"lost: {EVIL}", "source": EVIL, "timestamp": 0.0}
    run.extend("workers", [{"event": "started"} | row, {"event": "removed"} | row])
    run.append("scaling", {"from": 0, "to": 1} | row)
    run.close("completed")
    result = invoke("report")
    assert result.code == 0
    check(result.out, result.err)


def test_progress_lines(capfd):
    with Output().progress(lines=True) as display:
        display.show(EVIL)
    calls = TaskOverview(EVIL, EVIL, TaskCounts(running=1))
    shown = Overview(at=1.0, pools={EVIL: PoolOverview(PoolStatus(1, 2))}, tasks=(calls,))
    LineDisplay().update([shown])
    Output().note(EVIL)
    Output("quiet").warn(EVIL)
    out, err = capfd.readouterr()
    assert err
    check(out, err)


def test_a_question_and_a_warning_of_the_log(capfd, monkeypatch, invoke):
    asked = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "confirm", lambda question, **_: asked.append(question))
    confirm(EVIL, yes=False)
    check(*asked)
    invoke("list")
    record = logging.LogRecord("scalable", logging.WARNING, "", 0, "%s", (EVIL,), None)
    check(logging.lastResort.format(record))
