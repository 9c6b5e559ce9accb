"""The live display of ``scalable run``, in a real terminal."""

import re
import signal

import pytest

from scalable.session.progress import can_draw
from terminals import Terminal

# Calls wait for a file each, so that the numbers stay while the screen is read.
WORKFLOW = """\
import os, pathlib, sys, time
from scalable import ScalableSession

def wait_for(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.02)

def step(number):
    if number == 3:
        raise ValueError("no such year")
    wait_for("go" if number > 4 else "scalable.yaml")

if __name__ == "__main__":
    with ScalableSession.from_yaml(target="local") as client:
        futures = client.map(step, range(9), tag="model", task="simulate")
        while sum(future.done() for future in futures) < 5:
            time.sleep(0.02)
        print("\\x1b[32mgreen\\x1b[0m words")
        print("to standard error", file=sys.stderr)
        sys.stdout.write("half a ")
        sys.stdout.flush()
        wait_for("half")
        print("line")
        {inside}
        client.gather(futures, errors="skip")
    sys.exit(3)
"""


@pytest.fixture
def workflow(project):
    def write(inside="pass"):
        (project / "workflow.py").write_text(WORKFLOW.replace("{inside}", inside))

    return write


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("SCALABLE_RECORD_ARGUMENTS", "0")
    started = []

    def begin(*arguments, **options):
        started.append(Terminal("-m", "scalable", "run", *arguments, **options))
        return started[-1]

    yield begin
    for terminal in started:
        if terminal.code is None:
            terminal.kill()
            terminal.end()


def assert_clean(terminal):
    assert not terminal.hidden, "the cursor is shown"
    assert terminal.column == 0, "no half line is left"


def test_a_table_stays_below_what_a_workflow_prints_and_leaves_nothing(workflow, run, project):
    workflow()
    terminal = run()
    # The numbers that hold while four calls wait for a file: two workers, nine calls, one failed.
    terminal.until("2 running, 2 queued, 4 done, 1 failed")
    # All of the table is below what was printed, and nothing is drawn half.
    drawn = r"half a(?s:.*)climate-local(?s:.*); end (?s:.*)simulate .* 2 +2 +4 +1\b"
    screen = terminal.until(lambda screen: re.search(drawn, screen))
    above, _, below = screen.partition("climate-local")
    assert "green words\nto standard error\nhalf a" in above
    assert "\x1b[32mgreen" in terminal.text, "its colours stay"
    (row,) = [line for line in below.splitlines() if "simulate" in line]
    assert row.split()[0:2] == ["simulate", "model"]
    assert row.split()[3:7] == ["2", "2", "4", "1"]
    assert "; end " in below
    (project / "half").touch()
    (project / "go").touch()
    assert terminal.end() == 3
    assert "green words\nto standard error\nhalf a line\n" in terminal.screen
    assert "waiting" not in terminal.screen, "the table is gone"
    assert "Tasks:    8 done, 1 failed\n" in terminal.screen
    assert_clean(terminal)


def test_a_key_ends_the_display_and_the_workflow(workflow, run, project):
    workflow()
    terminal = run()
    terminal.until("2 running, 2 queued, 4 done, 1 failed")
    terminal.keys(b"\x03")
    (project / "go").touch()  # calls in threads cannot be ended
    assert terminal.end() == 130, terminal.screen
    assert "KeyboardInterrupt" in terminal.screen
    assert "half a" in terminal.screen, "what was printed stays"
    assert "waiting" not in terminal.screen
    assert "Status:   cancelled (exit code 130)" in terminal.screen
    assert_clean(terminal)


SMALL = """\
import os, sys, time
sys.path.insert(0, {tests!r})
from scalable.cli import workflow
from scalable.cli.workflow import ScriptTerminal
from scalable.session.progress import LiveDisplay
from scalable.model.overview import TaskCounts, Overview, TaskOverview

def shown():
    if os.path.exists("gone"):
        return []
    return [Overview(at=time.time(), tasks=(TaskOverview("fit", "big", TaskCounts(done=5)),))]

workflow.TICK_S = 0.05
with LiveDisplay(sys.stderr) as display:
    # Its exit waits until all output of the script is shown.
    with ScriptTerminal(display, sys.stderr) as terminal:
        code = workflow.run_script(
            [sys.executable, "script.py"], os.environ, stdout=terminal.descriptor,
            stderr=terminal.descriptor, started=terminal.begin,
            watch=lambda: display.update(shown()),
        )
    lives = display.lives
print("code", code, "lives", lives)
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Run a script without a session below a display of one overview."""
    monkeypatch.chdir(tmp_path)

    def begin(script, **options):
        (tmp_path / "script.py").write_text(script)
        return Terminal("-c", SMALL.format(tests="."), **options)

    return begin


def test_a_script_that_moves_the_cursor_gets_the_terminal(small, tmp_path):
    terminal = small(
        "import os, time\nprint('first')\n"
        "while not os.path.exists('go'): time.sleep(0.02)\n"
        "print('one\\ntwo\\x1b[1A\\rONE\\n\\nlast')\n"
    )
    terminal.until("5 done")
    (tmp_path / "go").touch()
    assert terminal.end() == 0
    assert terminal.screen.splitlines()[:5] == ["first", "ONE", "two", "last", "code 0 lives False"]


def test_a_cluster_that_goes_takes_its_table_with_it(small, tmp_path):
    terminal = small(
        "import os, time\nprint('first')\n"
        "while not os.path.exists('go'): time.sleep(0.02)\nprint('last')\n"
    )
    terminal.until("5 done")
    (tmp_path / "gone").touch()
    terminal.until(lambda screen: "5 done" not in screen)
    (tmp_path / "go").touch()
    assert terminal.end() == 0
    assert terminal.screen.split("\n") == ["first", "last", "code 0 lives True"]
    assert_clean(terminal)


def test_much_output_is_complete_and_in_order(small):
    terminal = small(
        "import sys\n"
        "for n in range(3_000): print(n)\n"
        "sys.stdout.write('\\r10 %\\r20 %\\r30 %')\nsys.stdout.write('no end')"
    )
    assert terminal.end() == 0
    lines = terminal.screen.splitlines()
    assert [int(line) for line in lines[:3_000]] == list(range(3_000))
    assert lines[3_000:] == ["30 %no end", "code 0 lives True"]


def test_a_terminal_is_left_in_order_by_a_display_that_is_killed(small, tmp_path):
    terminal = small("import signal\nsignal.pause()\n")
    terminal.until("5 done")
    terminal.kill(signal.SIGKILL)
    assert terminal.end() == -signal.SIGKILL
    assert not terminal.hidden


def test_nothing_is_drawn_where_a_terminal_cannot_move_its_cursor(tmp_path):
    code = (
        "import os, sys; from scalable.session.progress import can_draw\n"
        "for os.environ['TERM'] in ('dumb', 'xterm'): print(can_draw(sys.stderr))"
    )
    terminal = Terminal("-c", code)
    assert terminal.end() == 0
    assert terminal.screen.split() == ["False", "True"]
    with (tmp_path / "file").open("w") as file:
        assert not can_draw(file)
