"""Whatever is closed first, and whatever has ended already: nothing is printed about it."""

import re
import subprocess
import sys
import textwrap

import pytest

MANIFEST = """\
version: 1
project: {name: tests}
targets: {local: {provider: local, max_workers: 2, processes: %s}}
components: {small: {cpus: 1, memory: 300M}}
"""

SESSION = """
    import operator
    from scalable import ScalableSession

    if __name__ == "__main__":
        session = ScalableSession.from_yaml("scalable.yaml", "local")
        client = session.start()
        future = client.submit(operator.neg, 1, tag="small")
        assert future.result() == -1
        CLOSING
"""

#: A client whose scheduler is in another process, which then ends or is killed.
LOST = """
    import os, signal, subprocess, sys, time
    from scalable.client.client import ScalableClient

    SCHEDULER = '''
    import asyncio, logging
    from scalable.scheduler.pool_scheduler import PoolScheduler

    async def main():
        PoolScheduler.cluster_name = "one"
        async with PoolScheduler(port=0, dashboard=False, host="127.0.0.1") as scheduler:
            print(scheduler.address, flush=True)
            await scheduler.finished()

    logging.disable()
    asyncio.run(main())
    '''

    import textwrap
    scheduler = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCHEDULER)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )
    client = ScalableClient(scheduler.stdout.readline().strip())
    future = client.submit(abs, -1)
    scheduler.send_signal(signal.SIG{signal})
    scheduler.wait()
    while client.status != "connecting":
        time.sleep(0.01)
    CLOSING
"""


def said_by(tmp_path, program, *closing):
    """Return what a program writes to its standard error, from its start to its exit."""
    script = tmp_path / "workflow.py"
    script.write_text(textwrap.dedent(program).replace("CLOSING", "; ".join(closing) or "pass"))
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run([sys.executable, script], check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("processes", ["true", "false"])
@pytest.mark.parametrize(
    "closing",
    [
        ("client.close()", "session.close()"),
        ("session.close()", "client.close()"),
        ("session.cluster.close()", "client.close()", "session.close()"),
        ("client.cluster.close()", "session.close()"),
        (),
    ],
    ids=["client first", "session first", "cluster first", "cluster of the client", "nothing"],
)
def test_a_session_ends_silently_in_each_order(tmp_path, monkeypatch, processes, closing):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SCALABLE_RUNS_DIR", str(tmp_path / "runs"))
    (tmp_path / "scalable.yaml").write_text(MANIFEST % processes)
    assert said_by(tmp_path, SESSION, *closing) == ""


@pytest.mark.parametrize("signal", ["KILL", "TERM"])
@pytest.mark.parametrize("closing", [("client.close()",), ()], ids=["closed", "left open"])
def test_a_client_ends_silently_after_its_scheduler(tmp_path, signal, closing):
    program = LOST.replace("SIG{signal}", f"SIG{signal}")
    assert said_by(tmp_path, program, *closing) == ""


ASKING = """
    def raised(ask):
        try:
            ask()
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    print(raised(waiting.result), raised(lambda: executor.submit(abs, 1)),
        raised(lambda: client.submit(abs, 1).result()), sep="\\n", file=sys.stderr)
    print(raised(executor.shutdown), raised(client.close), file=sys.stderr)
"""


def test_tasks_of_a_killed_scheduler_name_the_cluster_and_the_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT", "2s")
    program = LOST.replace("SIG{signal}", "SIGKILL").replace("    CLOSING\n", ASKING)
    program = program.replace(
        "    scheduler.send",
        "    executor = client.pool()\n    waiting = executor.submit(abs, 1)\n    scheduler.send",
    )
    *errors, ended = said_by(tmp_path, program).splitlines()
    for error, kind in zip(errors, ("ClusterError", "RuntimeError", "ClusterError"), strict=True):
        assert error.startswith(kind)
        assert re.search(
            r"cluster 'one' is lost: its scheduler at \S+ has not answered for 2 s", error
        )
    assert ended == "None None"


def test_an_exit_after_a_submission_is_silent_but_for_the_unfinished_tasks(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SCALABLE_RUNS_DIR", str(tmp_path / "runs"))
    (tmp_path / "scalable.yaml").write_text(MANIFEST % "true")
    last = "import time; client.map(time.sleep, [30] * 5, tag='small')"
    assert "ERROR" not in said_by(tmp_path, SESSION, last)
