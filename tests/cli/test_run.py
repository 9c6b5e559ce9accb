"""``scalable run``: the script's process, without a session in it."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from scalable.runs.overview import list_runs
from scalable.runs.reading import read_run

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux tells who sent a signal")

READY = "import pathlib, signal, sys, time\n"
# Counts interrupts, and gives a second one a moment to come.
COUNT = f"""{READY}
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
pathlib.Path("ready").touch()
while not seen:
    time.sleep(0.02)
pathlib.Path("seen").touch()
time.sleep(0.2)
pathlib.Path("count").write_text(str(len(seen)))
sys.exit(7)
"""
SLEEP = f"""{READY}
import os
pathlib.Path("pid").write_text(str(os.getpid()))
pathlib.Path("ready").touch()
signal.pause()
"""


@pytest.fixture
def script(project):
    def write(text, name="workflow.py"):
        path = project / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


# Before anything starts ----------------------------------------------------------------------------


def test_bad_input_starts_nothing(script, invoke, project):
    script("open('started', 'w')")
    assert invoke("run", "--target", "moon").code == 2
    assert invoke("run", "nowhere.yaml", "--workflow", "workflow.py").code == 2
    assert invoke("run", "--workflow", "nowhere.py").code == 2
    assert invoke("run", "extra", "arguments").code == 2
    file = project / "scalable.yaml"
    file.write_text(file.read_text().replace("max_workers: 3", "max_workers: 1"))
    result = invoke("run")
    assert result.code == 2
    assert "scalable.yaml:7:18: error E_BAD_OPTION" in result.err
    assert not (project / "started").exists()


def test_without_a_workflow_the_error_says_what_to_give(invoke, project):
    result = invoke("run")
    assert (result.code, result.out) == (2, "")
    expected = "error: there is no workflow workflow.py: give the path of one\n"
    assert result.err.startswith(expected)


def test_a_dry_run_shows_the_plan_and_starts_nothing(script, invoke, project):
    script("open('started', 'w')")
    result = invoke("run", "--target", "cluster", "--dry-run", "--", "--format", "json")
    assert (result.code, result.out) == (0, invoke("plan", "--target", "cluster").out)
    assert not (project / "started").exists()
    assert not (project / ".scalable").exists()


# The script's process ------------------------------------------------------------------------------

SHOW = """\
import json, os, sys
names = ("SCALABLE_MANIFEST", "SCALABLE_TARGET", "SCALABLE_RUN_TARGET")
print(json.dumps({
    "name": __name__, "argv": sys.argv, "cwd": os.getcwd(), "executable": sys.executable,
    "environment": {n: os.environ.get(n) for n in names}, "path": sys.path[0],
}))
print("on stderr", file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words", [("--workflow", "code/w.py"), ("-f", "scalable.yaml", "code/w.py")], ids=" ".join
)
def test_the_workflow_runs_as_a_script(script, invoke, project, words):
    script(SHOW, "code/w.py")
    result = invoke("run", *words, "--", "--years", "10", "--", "a b")
    assert result.code == 0
    assert json.loads(result.out) == {
        "name": "__main__",
        "argv": ["code/w.py", "--years", "10", "--", "a b"],
        "cwd": str(project),
        "executable": sys.executable,
        "environment": {
            "SCALABLE_MANIFEST": str(project / "scalable.yaml"),
            "SCALABLE_TARGET": None,
            "SCALABLE_RUN_TARGET": None,
        },
        "path": str(project / "code"),
    }
    assert result.err == "on stderr\nno run was recorded\n"


def test_a_workflow_finds_the_manifest_beside_it(script, invoke, project, tmp_path, monkeypatch):
    script(SHOW, "w.py")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    result = invoke("run", project / "w.py")
    assert result.code == 0, result.err
    shown = json.loads(result.out)["environment"]["SCALABLE_MANIFEST"]
    assert shown == str(project / "scalable.yaml")


def test_a_notebook_is_not_a_workflow(invoke, project):
    (project / "sweep.ipynb").write_text("{}")
    for words in (["sweep.ipynb"], ["--workflow", "sweep.ipynb"]):
        result = invoke("run", *words)
        assert (result.code, "convert it with" in result.err) == (2, True)


def test_what_to_run_is_said_once(script, invoke):
    script(SHOW)
    for words in (
        ("workflow.py", "--workflow", "workflow.py"),
        ("scalable.yaml", "-f", "scalable.yaml"),
    ):
        assert invoke("run", *words).code == 2
    assert invoke("plan", "scalable.yaml", "--manifest", "scalable.yaml").code == 2
    assert invoke("plan", "-f", "scalable.yaml") == invoke("plan", "scalable.yaml")


def test_a_target_that_is_given_is_passed_on(script, invoke, project, monkeypatch):
    script(SHOW)
    monkeypatch.setenv("SCALABLE_TARGET", "other")
    monkeypatch.setenv("SCALABLE_RUN_TARGET", "moon")
    result = invoke("run", "scalable.yaml", "--target", "local")
    environment = json.loads(result.out)["environment"]
    assert environment["SCALABLE_RUN_TARGET"] == environment["SCALABLE_TARGET"] == "local"
    monkeypatch.setenv("SCALABLE_RUN_TARGET", "moon")
    result = invoke("run")
    environment = json.loads(result.out)["environment"]
    assert environment["SCALABLE_RUN_TARGET"] is None
    assert environment["SCALABLE_TARGET"] == "other"


@pytest.mark.parametrize(
    ("text", "code", "shown"),
    [
        ("raise SystemExit(3)", 3, "workflow.py exited with code 3\n"),
        ("raise ValueError('odd')", 1, "ValueError: odd\nworkflow.py exited with code 1\n"),
        (
            "import os; os.kill(os.getpid(), 15)",
            143,
            "workflow.py exited with code 143 (SIGTERM)\n",
        ),
    ],
)
def test_its_exit_code_becomes_ours(text, code, shown, script, invoke):
    script(text)
    result = invoke("run")
    assert (result.code, result.out) == (code, "")
    assert shown in result.err
    assert result.err.endswith("no run was recorded\n")


def test_standard_input_is_the_scripts(script, spawn):
    script("print(input()[::-1])")
    process = spawn("run", stdin=subprocess.PIPE)
    assert process.communicate("abc\n", timeout=120)[0] == "cba\n"


# The record ----------------------------------------------------------------------------------------

RUNS = """\
from record import record
for name in ("first", "second"):
    run = record(name)
    run.append("scaling", {"tag": "model", "from": 0, "to": 2, "action": "scale-up"})
    row = {"worker": "m-0", "tag": "model", "timestamp": 0.0}
    run.append("workers", {"event": "started"} | row)
    run.close("completed")
print("said by the script")
"""


def recorded(project):
    paths = list_runs(project / ".scalable" / "runs")
    return {r.run["project"]: r for r in map(read_run, paths)}


def test_every_run_that_it_opened_is_reported(script, invoke, project):
    script(RUNS)
    result = invoke("run")
    assert result.code == 0
    said, *reports = re.split(r"(?m)^(?=Run run-)", result.out)
    assert said == "said by the script\n"
    assert [re.findall(r"(?m)^Project:  (.*)$", r) for r in reports] == [["first"], ["second"]]
    for report, run in zip(reports, ("first", "second"), strict=True):
        assert "Status:   completed\n" in report
        assert f"Record: {recorded(project)[run].path}\n" in report
    assert result.err == "", "these runs have no cluster to show"


def test_json_is_the_only_thing_on_standard_output(script, invoke):
    script(RUNS + "raise SystemExit(3)")
    result = invoke("run", "--format", "json")
    value = json.loads(result.out)
    assert result.code == 3
    assert (value["version"], value["exit_code"]) == (1, 3)
    assert [r["project"] for r in value["reports"]] == ["first", "second"]
    assert result.err == "said by the script\n"


def test_quiet_leaves_only_what_the_script_says(script, invoke):
    script(RUNS)
    result = invoke("run", "--format", "quiet")
    assert (result.code, result.out, result.err) == (0, "said by the script\n", "")


def test_the_report_may_go_to_a_file(script, invoke, project):
    script(RUNS)
    result = invoke("run", "--output", "report.json")
    assert result.out == "said by the script\n"
    assert result.err.endswith("wrote report.json\n")
    assert len(json.loads((project / "report.json").read_text())["reports"]) == 2


def test_a_script_that_fails_after_its_session_has_failed_its_run(script, invoke, project):
    script("from record import record\nrecord().close('completed')\nraise SystemExit(3)")
    result = invoke("run")
    assert result.code == 3
    assert "Status:   failed (exit code 3)\n" in result.out
    run = recorded(project)["climate"]
    assert (run.status, run.run["exit_code"]) == ("failed", 3)


def test_the_sessions_own_status_is_kept(script, invoke, project):
    script("from record import record\nrecord().close('cancelled')\nraise SystemExit(3)")
    assert invoke("run").code == 3
    assert recorded(project)["climate"].status == "cancelled"


def test_a_record_that_is_gone_costs_its_report_only(script, invoke):
    script(
        "import shutil\nfrom record import record\n"
        "shutil.rmtree(record('gone').path)\nrecord('kept').close('completed')\n"
    )
    result = invoke("run")
    assert result.code == 0
    assert "could not create a report of " in result.err
    assert "Project:  kept\n" in result.out


def test_a_directory_without_write_access_is_said_before_the_script_starts(
    script, invoke, project, monkeypatch
):
    script("open('started', 'w').close()")
    (project / "file").touch()
    monkeypatch.setenv("SCALABLE_RUNS_DIR", str(project / "file" / "runs"))
    result = invoke("run")
    assert (result.code, result.out) == (6, "")
    assert f"{project}/file is not a directory" in result.err
    assert "hint: set SCALABLE_RUNS_DIR to a writable directory" in result.err
    assert not (project / "started").exists()


# Signals -------------------------------------------------------------------------------------------


def test_an_interrupt_of_ours_reaches_the_script_once(script, spawn, eventually, project):
    script(COUNT)
    process = spawn("run")
    eventually((project / "ready").exists)
    process.send_signal(signal.SIGINT)
    eventually((project / "seen").exists)
    process.send_signal(signal.SIGINT)
    process.terminate()
    process.communicate(timeout=120)
    assert (project / "count").read_text() == "1"
    assert process.returncode == 7


def test_an_interrupt_that_the_script_does_not_catch_is_130(script, spawn, eventually, project):
    script("from record import record\nrecord().close('completed')\n" + SLEEP)
    process = spawn("run")
    eventually((project / "ready").exists)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "KeyboardInterrupt" in err
    assert "Status:   cancelled (exit code 130)\n" in out


def test_a_program_in_the_background_can_be_interrupted_all_the_same(
    script, spawn, eventually, project
):
    script(SLEEP)
    # As a shell without job control starts `scalable run &`.
    starter = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    command = [sys.executable, "-c", starter, "-m", "scalable", "run"]
    with subprocess.Popen(command, start_new_session=True) as process:
        eventually((project / "ready").exists)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130


def test_a_hangup_that_was_ignored_stays_ignored(script, eventually, project):
    """As after nohup."""
    script(
        "import pathlib, time\npathlib.Path('ready').touch()\n"
        "while not pathlib.Path('go').exists():\n    time.sleep(0.05)\n"
    )
    starter = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    command = [sys.executable, "-c", starter, "-m", "scalable", "run"]
    with subprocess.Popen(command, start_new_session=True) as process:
        eventually((project / "ready").exists)
        process.send_signal(signal.SIGHUP)
        (project / "go").touch()
        assert process.wait(timeout=120) == 0


TERMINAL = """\
import os, pty, pathlib, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.executable, [sys.executable, "-m", "scalable", "run", "--format", "quiet"])
while not pathlib.Path("ready").exists():
    time.sleep(0.02)
os.write(terminal, b"\\x03")
while True:
    try:
        if not os.read(terminal, 4096):
            break
    except OSError:
        break
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@linux
def test_a_key_on_the_terminal_reaches_the_script_once(script, project):
    script(COUNT)
    driver = [sys.executable, "-c", TERMINAL]
    done = subprocess.run(driver, timeout=120, start_new_session=True, check=False)
    assert done.returncode == 7
    assert (project / "count").read_text() == "1"


WITH_A_THREAD = """\
import os, sys, threading, time
threading.Thread(target=threading.Event().wait, daemon=True).start()
from scalable.cli import workflow
caught, catch = threading.Event(), workflow._Elsewhere._catch
workflow._Elsewhere._catch = lambda *signal: (catch(*signal), caught.set())
# A signal comes while the main thread, in which it is blocked, does something else.
def watch():
    if os.path.exists("ready") and not os.path.exists("watching"):
        open("watching", "w").close()
        until = time.monotonic() + 60
        while not caught.is_set() and time.monotonic() < until:
            time.sleep(0.01)
os._exit(workflow.run_script([sys.executable, "workflow.py"], os.environ, watch=watch))
"""


@linux
def test_a_key_that_another_thread_of_ours_receives_reaches_the_script_once(script, project):
    script(COUNT)
    program = f'[sys.executable, "-c", {WITH_A_THREAD!r}]'
    terminal = TERMINAL.replace('"ready"', '"watching"').replace(
        '[sys.executable, "-m", "scalable", "run", "--format", "quiet"]', program
    )
    driver = [sys.executable, "-c", terminal]
    done = subprocess.run(driver, timeout=120, start_new_session=True, check=False)
    assert done.returncode == 7
    assert (project / "count").read_text() == "1"


@linux
def test_a_termination_that_another_thread_of_ours_receives_ends_the_script(
    script, eventually, project
):
    script(COUNT)
    with subprocess.Popen([sys.executable, "-c", WITH_A_THREAD]) as process:
        eventually((project / "watching").exists)
        process.terminate()
        assert process.wait(timeout=120) == 7
    assert (project / "count").read_text() == "1"


def test_a_termination_becomes_an_interrupt(script, spawn, eventually, project):
    script(COUNT)
    process = spawn("run")
    eventually((project / "ready").exists)
    process.terminate()
    process.communicate(timeout=120)
    assert (project / "count").read_text() == "1"
    assert process.returncode == 7


STUBBORN = f"""{READY}
import os
signal.signal(signal.SIGINT, signal.SIG_IGN)
pathlib.Path("pid").write_text(str(os.getpid()))
pathlib.Path("ready").touch()
while True:
    signal.pause()
"""
IMPATIENT = """\
import os, sys
from scalable.cli import workflow
workflow.STOP_GRACE_S = 0.2
workflow.TICK_S = 0.05
sys.exit(workflow.run_script([sys.executable, "workflow.py"], os.environ))
"""


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_script_that_does_not_end_is_killed(script, eventually, project):
    script(STUBBORN)
    with subprocess.Popen([sys.executable, "-c", IMPATIENT], start_new_session=True) as process:
        eventually((project / "ready").exists)
        process.terminate()
        assert process.wait(timeout=120) == 130
    assert gone(int((project / "pid").read_text()))


def test_an_error_of_ours_does_not_leave_the_script_behind(script, project):
    script(SLEEP)
    watched = (
        "import os, sys\nfrom scalable.cli import workflow\n"
        "def watch():\n    if os.path.exists('ready'): raise ZeroDivisionError\n"
        "workflow.run_script([sys.executable, 'workflow.py'], os.environ, watch=watch)\n"
    )
    command = [sys.executable, "-c", watched]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "KeyboardInterrupt" in done.stderr
    assert done.stderr.rstrip().endswith("ZeroDivisionError")
    assert gone(int((project / "pid").read_text()))


def test_a_script_that_is_killed_leaves_an_interrupted_run(script, spawn, eventually, project):
    script("from record import record\nrecord()\n" + SLEEP)
    process = spawn("run")
    eventually((project / "ready").exists)
    os.kill(int((project / "pid").read_text()), signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 137
    assert "Status:   interrupted (" in out
    assert "workflow.py exited with code 137 (SIGKILL)\n" in err
    assert recorded(project)["climate"].status == "interrupted"


@linux
def test_a_script_does_not_outlive_us(script, spawn, eventually, project):
    script(
        SLEEP.replace("signal.pause()", "") + "try:\n    signal.pause()\n"
        "except KeyboardInterrupt:\n    pathlib.Path('ended').touch()\n"
    )
    process = spawn("run")
    eventually((project / "ready").exists)
    process.kill()
    eventually((project / "ended").exists)


# As a session shows its cluster to the program around it.
SHOWN = """\
import os, pathlib, time
from scalable.records.overview_file import OverviewFile
from scalable.model.overview import TaskCounts, Overview, TaskOverview
task = TaskOverview("fit", "big", TaskCounts(done=5))
shown = OverviewFile(pathlib.Path(os.environ["SCALABLE_RUN_OVERVIEWS"]))
shown.show("one", Overview(at=time.time(), tasks=(task,)))
"""


def test_progress_that_nobody_reads_does_not_end_the_script(script, invoke, spawn, project):
    script(RUNS + SHOWN + "raise SystemExit(5)")
    assert "fit: 5 done" in invoke("run").err
    reading, writing = os.pipe()
    os.close(reading)
    process = spawn("run", stderr=writing)
    os.close(writing)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 5
    assert out.startswith("said by the script\n")
    assert out.count("Status:   failed (exit code 5)\n") == 2


def test_a_script_whose_name_begins_with_a_dash_is_no_option(script, invoke, project):
    script("print('ran')", "-dash.py")
    result = invoke("run", "--workflow", "./-dash.py", "--format", "quiet")
    assert (result.code, result.out) == (0, "ran\n")
