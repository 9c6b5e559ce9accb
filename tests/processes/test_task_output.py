"""What tasks print, where the user waits for them."""

import re
import subprocess
import sys

import pytest

from notebooks import execute, said
from python_runs import run_python
from scalable import ClusterError, ScalableClient, ScalableSession

WORK = """\
import logging, sys, warnings

def work(number):
    print("printed", number)
    print("to stderr", number, file=sys.stderr)
    logging.getLogger("model").warning("logged %d", number)
    return number

def sent(number):
    from distributed import print
    print("sent", number)

async def in_the_loop(number):
    print("awaited", number)

def with_a_bar():
    for share in range(50):
        sys.stderr.write(f"\\r{share} of 50")
    sys.stderr.write("\\n")
    sys.stdout.write("without newline")

def much():
    for number in range(20_000):
        print("x" * 50, number)
    print(chr(0xdc80))
"""
SCRIPT = (
    WORK
    + """
from scalable import ScalableSession

if __name__ == "__main__":
    with ScalableSession.local({"model": 1}, processes=True) as client:
        for function in (work, sent, in_the_loop):
            client.submit(function, 1, tag="model").result()
            print("result of", function.__name__)
        client.submit(with_a_bar, tag="model").result()
        client.submit(much, tag="model").result()
        client.pool(tag="model", stream_output=True).submit(work, 2).result()
        print("result of the executor")
        client.submit(print, "last", tag="model")
        import distributed
        distributed.wait(client.submit(work, 3, tag="model"))
"""
)


def test_output_of_processes_is_shown_before_their_results(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    done = run_python(path, check=True)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["[model] printed 1", "result of work"]
    assert lines[2:4] == ["[model] sent 1", "result of sent"]
    assert lines[4:6] == ["[model] awaited 1", "result of in_the_loop"]
    assert lines[6] == "[model] without newline"
    assert lines.count("[model] printed 2") == 1
    assert lines.index("[model] printed 2") < lines.index("result of the executor")
    assert "[model] last" in lines
    errors = done.stderr.splitlines()
    assert errors[:2] == ["[model] to stderr 1", "[model] logged 1"]
    assert "[model] 49 of 50" in errors
    assert "[model] 48 of 50" not in errors
    # A task that prints without end fills neither the terminal nor the memory.
    assert len(lines) < 20_000
    assert re.search(r"\[model\] \[\d+ lines are left out; see the log\]", done.stderr)


def test_other_clients_show_output_when_they_are_told(capfd):
    session = ScalableSession.local({"model": 1}, processes=True, show_output=False)
    with session as client, ScalableClient(session.cluster) as other:
        client.submit(print, "before", tag="model").result()
        client.pool("model", stream_output=True).submit(print, "asked for").result()
        other.show_output()
        client.submit(print, "after", tag="model").result()
        other.submit(print, "at last", tag="model").result()
    shown = capfd.readouterr().out.splitlines()
    assert shown == ["asked for", "[model] after", "[model] at last"]


def test_a_session_returns_the_output_of_its_workers(capfd):
    session = ScalableSession.local({"model": 1, "other": 1}, processes=True)
    with session as client:
        client.submit(print, "kept in the log", tag="model").result()
        (name,) = session.logs("model")
        assert "kept in the log" in session.logs("model")[name]
        assert len(session.logs()) == 2
    assert "kept in the log" in session.logs()[name]
    with pytest.raises(ClusterError, match="there is no pool 'moon'; known pools: model, other"):
        session.logs("moon")


def test_a_reader_that_is_gone_does_not_disturb_tasks(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace('print("result', '("result').replace("20_000", "20"))
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" "$1" >/dev/full', sys.executable, path],
        stderr=subprocess.PIPE, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr.partition("Exception ignored")[0]


@pytest.mark.parametrize("processes", [True, False])
def test_output_is_in_the_cell_that_waits(tmp_path, processes):
    session = f"session = ScalableSession.local({{'model': 1}}, processes={processes})"
    outputs = execute(
        tmp_path,
        {
            "start": f"from scalable import ScalableSession\n{WORK}\n{session}\n"
            "client = session.start()",
            "submitted": "first = client.submit(work, 1, tag='model')",
            "waits": "first.result()",
            "many": "client.gather(client.map(work, [2, 3], tag='model'));",
            "executor": "client.pool(tag='model').submit(work, 4).result();",
            "sent": "client.submit(sent, 5, tag='model').result()",
            "own": "print('of the cell')",
            "again": f"{session}\nclient = session.start()",
            "end": "session.close()",
        },
    )
    assert said(outputs["start"]) == ""
    assert "older session" not in said(outputs["start"], "stderr")
    older = "an older session on target 'local' is still running"
    assert older in said(outputs["again"], "stderr")
    assert said(outputs["submitted"]) == ""
    assert said(outputs["waits"]) == "[model] printed 1\n"
    assert "[model] to stderr 1" in said(outputs["waits"], "stderr")
    assert said(outputs["many"]) == "[model] printed 2\n[model] printed 3\n"
    assert said(outputs["executor"]) == "[model] printed 4\n"
    assert said(outputs["sent"]) == "[model] sent 5\n"
    assert said(outputs["own"]) == "of the cell\n"
    assert said(outputs["end"]) == ""
