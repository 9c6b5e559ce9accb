"""Failed calls of each kind are recorded once, with arguments, frame, output and tries."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import dask
import pytest
from click.testing import CliRunner
from distributed import get_client

from python_runs import run_python
from scalable import ScalableSession
from scalable.cli.main import cli
from scalable.runs.failed import causes as causes_of
from scalable.runs.overview import find_run
from scalable.runs.reading import read_run
from scalable.runs.summary import summarize

MANIFEST = """\
version: 1
project: {name: failures}
targets:
  local: {provider: local, processes: true}
components:
  a: {cpus: 1, workers: 2}
"""
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e\n" + "x" * 10_000


def fit(year, *, region):
    print("fitting", year)
    raise LookupError(f"no {year} in {region}")


def run_child(path):
    subprocess.run(
        ["sh", "-c", f"echo reading {path} >&2; exit 3"], check=True, capture_output=True
    )


def read(path):
    return Path(path).read_text()


async def fit_soon(year):
    print("soon", year)
    await asyncio.sleep(0)
    raise LookupError(f"no {year} soon")


def nested(year):
    return get_client().submit(fit, year, region="nested", tag="a", pure=False).result()


def spoil(text):
    raise ValueError(text)


def double(x):
    return 2 * x


def fail_until(path, tries):
    with Path(path).open("a") as file:
        file.write(".")
    if Path(path).stat().st_size < tries:
        raise LookupError("not yet")
    return "done"


def mark_and_wait(path):
    with Path(path).open("a") as file:
        file.write(".")
    if Path(path).stat().st_size < 2:
        threading.Event().wait()
    return os.getpid()


@pytest.fixture(scope="module")
def where(tmp_path_factory):
    return tmp_path_factory.mktemp("failures")


@pytest.fixture(scope="module")
def causes(where):
    """Run every kind of failing call in one session, and return the causes of its failures."""
    monkeypatch = pytest.MonkeyPatch()
    (where / "scalable.yaml").write_text(MANIFEST)
    monkeypatch.chdir(where)
    monkeypatch.setenv("XDG_STATE_HOME", str(where / "state"))
    with ScalableSession.from_yaml() as client:
        plain = client.submit(fit, 2050, region="north", tag="a")
        dependent = client.submit(double, plain, tag="a")
        mapped = client.map(fit, [1, 2, 3], region="mapped", tag="a")
        graph = dask.delayed(fit)(dask.delayed(double)(1000), region="graph")
        client.wait_for_workers(2, timeout=120)
        others = [
            dependent,
            client.submit(run_child, "a.nc", tag="a"),
            client.submit(read, "/no/a.nc", tag="a"),
            client.submit(fit_soon, 2051, tag="a"),
            client.submit(nested, 2052, tag="a"),
            client.submit(spoil, HOSTILE, tag="a"),
            client.submit(fail_until, str(where / "never"), 9, tag="a", retries=2),
            client.compute(graph),
        ]
        for future in (*mapped, *others):
            assert future.exception(timeout=120) is not None
        retried = client.submit(fail_until, str(where / "retried"), 2, tag="a")
        assert retried.exception(timeout=120) is not None
        retried.retry()
        assert retried.result(timeout=120) == "done"
        with client.pool("a") as executor:
            calls = [executor.submit(fit, year, region="bundled") for year in range(700)]
            assert all(call.exception(timeout=120) for call in calls)
        killed = client.submit(mark_and_wait, str(where / "killed"), tag="a")
        address = _where_it_runs(client, killed, where / "killed")
        os.kill(client.run(os.getpid, workers=[address])[address], signal.SIGKILL)
        kept = client.submit(double, 21, tag="a", pure=False)
        assert kept.result(timeout=120) == 42
        assert killed.result(timeout=120)
        client.run_on_scheduler(lambda: None)
    monkeypatch.undo()
    return causes_of(read_run(find_run(where / ".scalable" / "runs")).failures)


def _where_it_runs(client, future, mark):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        places = [a for a, keys in client.processing().items() if future.key in keys]
        if mark.exists() and places:
            return places[0]
        time.sleep(0.05)
    raise AssertionError("the call does not begin")


def found(causes, text):
    """Return the failures whose message contains the text."""
    return [one for cause in causes for one in cause.failures if text in one.message]


@pytest.mark.parametrize(
    ("text", "arguments", "function"),
    [
        ("no 2050 in north", "(2050, region='north')", "fit"),
        ("no 2 in mapped", "(2, region='mapped')", "fit"),
        ("no 2000 in graph", "(2000, region='graph')", "fit"),
        ("no 2051 soon", "(2051)", "fit_soon"),
        ("no 3 in bundled", "(3, region='bundled')", "fit"),
        ("no 2052 in nested", "(2052, region='nested')", "fit"),
        # What repr() of an error leaves out.
        ("No such file or directory: '/no/a.nc'", "('/no/a.nc')", "read"),
        ("returned non-zero exit status 3", "('a.nc')", "run_child"),
    ],
)
def test_a_failed_call_tells_arguments_and_the_users_frame(causes, text, arguments, function):
    failures = found(causes, text)
    assert arguments in [failure.details.arguments for failure in failures]
    for failure in failures:
        assert failure.details.frame.startswith(f"{__file__}:")
        assert failure.details.worker.startswith("a-")
    assert any(failure.details.frame.endswith(f" in {function}") for failure in failures)


def test_each_failed_call_is_counted_once(causes, where):
    assert len(found(causes, "no 2050 in north")) == 1  # not again for the task that needed it
    assert len(found(causes, "in mapped")) == 3
    assert len(found(causes, "no 2052 in nested")) == 2  # the call, and the one that waited for it
    bundled = found(causes, "in bundled")
    bundled += found(causes, "not described")
    assert sum(failure.count for failure in bundled) == 700
    summary = summarize(read_run(find_run(where / ".scalable" / "runs")))
    counts = {k: v["count"] for k, v in summary.to_dict()["failures"]["classes"].items()}
    assert counts["WorkerLost"] == 1
    # 1 plain, 3 mapped, 2 nested, 700 bundled, 1 graph, 1 coroutine; then the others.
    assert counts["LookupError"] == 708 + 2
    assert counts["CalledProcessError"] == 1
    # Failed in the end: the task that only needed another's result too, and not the retried one.
    assert summary.tasks["failed"] == 708 + 1 + 1 + 1 + 1 + 1


def test_standard_error_of_a_child_is_kept(causes):
    (child,) = found(causes, "sh")
    assert child.details.stderr == "reading a.nc"
    assert child.details.frame.endswith(" in run_child")


def test_failure_has_the_lines_that_its_task_printed(causes):
    def printed(text):
        return [failure.details.output for failure in found(causes, text)]

    assert printed("no 2050 in north") == ["fitting 2050"]
    assert sorted(printed("in mapped")) == ["fitting 1", "fitting 2", "fitting 3"]
    assert printed("no 2051 soon") == ["soon 2051"]
    assert printed("/no/a.nc") == printed("sh") == [None]
    bundled = [output for output in printed("in bundled") if output]
    assert bundled
    assert not any("\n" in output for output in bundled)


def test_tries_and_reruns_are_right_to_the_number(causes, where):
    (never, retried) = sorted(found(causes, "not yet"), key=lambda f: -f.details.tries)
    assert (never.details.tries, retried.details.tries) == (3, 1)
    summary = summarize(read_run(find_run(where / ".scalable" / "runs")))
    assert summary.rerun_reasons["failed, retried"] == 2
    assert summary.rerun_reasons["retried by the user"] == 1
    assert summary.rerun_reasons["worker lost"] == 1


@pytest.mark.parametrize("options", [[], ["--all"]])
def test_hostile_messages_leave_the_terminal_alone(causes, where, options):
    described = [failure for cause in causes for failure in cause.failures]
    runs = ["--runs-dir", str(where / ".scalable" / "runs")]
    result = CliRunner().invoke(cli, ["report", "--failed", *options, *runs])
    assert result.exit_code == 0, result.output
    assert all(line.isprintable() for line in result.output.split("\n"))
    assert max(map(len, result.output.split("\n"))) <= 400
    # One example of each cause, or each of the failures that are described.
    assert result.output.count("  message: ") == (len(described) if options else len(causes))
    assert "arguments: (" in result.output


if sys.platform != "linux":
    pytestmark = pytest.mark.skip("the output of workers is read on Linux")


class Noted(Exception):
    """An error whose objects can be counted."""


def fail_with_note(number):
    raise Noted(number)


def test_a_client_keeps_nothing_of_failed_calls_whose_errors_were_raised(eventually):
    with ScalableSession.local({"a": 1}) as client:
        for way in (lambda f: f.result(timeout=60), lambda f: client.gather([f])):
            for number in range(3):
                future = client.submit(fail_with_note, number, tag="a")
                with pytest.raises(Noted, match=str(number)):
                    way(future)
                with pytest.raises(Noted, match=str(number)) as caught:
                    way(future)
                assert any("fail_with_note" in str(entry) for entry in caught.traceback)
                assert "fail_with_note" in caught.value.__notes__[0]
                del future, caught
        gc.collect()
        eventually(lambda: gc.collect() is not None and not client.futures)


SCRIPT = """\
import dask

from scalable import ScalableSession


def fit(year):
    raise LookupError(f"no {year}")


if __name__ == "__main__":
    with ScalableSession.local({"a": 1}, processes=True) as client:
        client.submit(fit, 1, tag="a").exception()
        client.compute(dask.delayed(fit)(2)).exception()
        client.pool("a").submit(fit, 3).result()
"""


def test_failures_of_a_script_name_its_file_and_line(tmp_path):
    script = tmp_path / "workflow.py"
    script.write_text(SCRIPT)
    done = run_python(script, cwd=tmp_path)
    assert f'File "{script}", line 7, in fit\n    raise LookupError' in done.stderr
    frames = {
        failure.details.frame
        for cause in causes_of(read_run(find_run(tmp_path / ".scalable" / "runs")).failures)
        for failure in cause.failures
    }
    assert frames == {f"{script}:7 in fit"}
