"""``session.progress()`` in the process of a workflow: on a terminal, and in a log."""

import re

from scalable import ScalableSession
from terminals import Terminal

# A file opens the gate: the numbers stay while the screen is read.
WORKFLOW = """\
import logging, pathlib, sys, time
from scalable import ScalableSession

def wait_for(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.02)

def step(number):
    if number > 2:
        wait_for("go")

logging.basicConfig(stream=sys.stderr, format="logged %(message)s")
session = ScalableSession.local({"small": 2})
with session as client:
    futures = client.map(step, range(8), tag="small", key="grow")
    while sum(future.done() for future in futures) < 3:
        time.sleep(0.02)
    try:
        with session.progress():
            print("printed")
            print("to standard error", file=sys.stderr)
            logging.warning("it")
            wait_for("end")
            pathlib.Path("go").touch()
            client.gather(futures)
            raise KeyError("of the block")
    except KeyError as error:
        print("ended with", error)
    print(session.progress())
"""


def test_a_block_shows_its_progress_below_what_it_prints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "workflow.py").write_text(WORKFLOW)
    terminal = Terminal("workflow.py")
    screen = terminal.until("2 running, 3 queued, 3 done")
    assert "printed\nto standard error\nlogged it\n" in screen.partition("local-local")[0]
    (tmp_path / "end").touch()
    assert terminal.end() == 0
    assert not terminal.hidden
    assert terminal.column == 0
    printed = "printed\nto standard error\nlogged it\nended with 'of the block'\n"
    assert printed in terminal.screen
    after = terminal.screen.partition(printed)[2]
    assert "waiting" not in terminal.screen.partition(printed)[0], "the table is gone"
    assert "8 done; " in after, "what is printed is the state of now"


def step(number):
    return number


def progress_of_tasks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    session = ScalableSession.local({"small": 2})
    with session as client, session.progress():
        client.wait_for_workers(2, timeout=60)
        client.gather(client.map(step, range(8), tag="small", key="grow"))


def test_a_log_gets_a_line_at_the_beginning_and_at_the_end(tmp_path, monkeypatch, capsys):
    progress_of_tasks(tmp_path, monkeypatch)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("[")]
    assert re.match(r"\[ *\d+ s\] (\d of \d tasks .*)?small: ", lines[0])
    assert lines[-1].endswith("8 of 8 tasks (100 %) | small: 2/2 workers | grow: 8 done")


def test_scalable_run_shows_it_already(tmp_path, monkeypatch, capsys):
    shown = tmp_path / "shown"
    shown.touch()
    monkeypatch.setenv("SCALABLE_RUN_OVERVIEWS", str(shown))
    progress_of_tasks(tmp_path, monkeypatch)
    assert "workers |" not in capsys.readouterr().err
    assert '"done": 8' in shown.read_text()
