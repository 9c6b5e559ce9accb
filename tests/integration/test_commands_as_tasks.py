"""Programs as tasks: `scalable.command`."""

import gc
import os
import signal
import sys

import psutil
import pytest
from distributed import LocalCluster

import scalable
from scalable import File, RunError, ScalableClient
from scalable.model.cache_settings import CacheSettings

COPY = "import sys; data = open(sys.argv[1]).read(); open(sys.argv[2], 'w').write(data.upper()); print(len(data))"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    store = CacheSettings(str(tmp_path_factory.mktemp("results")))
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        ScalableClient(cluster, remembering=store) as made,
    ):
        yield made


@pytest.fixture
def copy(tmp_path):
    (tmp_path / "copy.py").write_text(COPY)
    return scalable.command(
        f"{sys.executable} copy.py {{source}} {{target}}",
        inputs=[tmp_path / "copy.py"],
        outputs=["target"],
        cwd=tmp_path,
    )


def test_output_exit_code_and_files_are_returned(client, copy, tmp_path):
    (tmp_path / "in").write_text("abc")
    found = client.submit(copy, source=File(tmp_path / "in"), target="new/out").result()
    assert (found.returncode, found.stdout, found.stderr) == (0, "3\n", "")
    assert found.outputs == {"target": File(tmp_path / "new" / "out")}
    assert found.outputs["target"].path.read_text() == "ABC"


def test_commands_are_mapped_over_their_arguments(client):
    echo = scalable.command(
        f"{sys.executable} -c 'import sys; print(sys.argv[1:])' {{}} x={{}} '{{}}'"
    )
    found = client.gather(client.map(echo, [1, 2], ["a b", "$c"], [["p", "q"], []]))
    assert [each.stdout for each in found] == ["['1', 'x=a b', 'p', 'q']\n", "['2', 'x=$c']\n"]


def held(dask_worker):
    return len(dask_worker.state.tasks)


def test_equal_command_is_cached_until_a_file_changes(client, copy, tmp_path, eventually):
    source, target = tmp_path / "in", tmp_path / "out"

    def ran():
        before = target.stat().st_mtime_ns if target.exists() else None
        client.submit(copy, source=File(source), target=str(target), cache=True).result()
        # Dask would answer with a result that it, or a worker, still holds.
        gc.collect()  # a future may be in a cycle
        eventually(lambda: not client.cluster.scheduler.tasks)
        eventually(lambda: not any(client.run(held).values()))
        return target.stat().st_mtime_ns != before

    source.write_text("one")
    assert [ran(), ran()] == [True, False]
    source.write_text("two")  # an input
    assert [ran(), ran()] == [True, False]
    (tmp_path / "copy.py").write_text(COPY + "\n# changed")  # another input
    assert [ran(), ran()] == [True, False]
    target.write_text("changed by somebody")  # the output
    assert [ran(), ran()] == [True, False]
    target.unlink()
    assert ran()
    assert target.read_text() == "TWO"


@pytest.mark.parametrize(
    ("template", "options", "words"),
    [
        ("sh -c 'echo bad input >&2; exit 3'", {}, "exited with code 3: bad input"),
        ("sh -c 'kill -9 $$'", {}, "was killed by SIGKILL"),
        ("/nosuch/program", {}, "/nosuch/program cannot be started: .*No such file"),
        ("true", {"inputs": ["/nosuch/file"]}, "its input /nosuch/file does not exist"),
        ("sh -c 'echo done'", {"outputs": ["out/nothing"]}, "did not write its output .*done"),
    ],
)
def test_failures_are_errors_that_say_why(client, tmp_path, template, options, words):
    run = scalable.command(template, cwd=tmp_path, **options)
    with pytest.raises(RunError, match=words):
        client.submit(run).result()


def test_exit_codes_are_results_on_request(client):
    run = scalable.command("sh -c 'echo out; echo err >&2; exit {}'", check=False)
    found = client.submit(run, 4).result()
    assert (found.returncode, found.stdout, found.stderr) == (4, "out\n", "err\n")


def alive(pid):
    """Return whether a process runs: an orphan that nobody has waited for does not."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_program_that_takes_too_long_is_killed_with_its_children(client, tmp_path):
    script = "tail -f /dev/null & echo $! > child; echo $$ > parent; wait"
    run = scalable.command(f"sh -c '{script}'", timeout="1s", cwd=tmp_path)
    with pytest.raises(RunError, match=r"sh was killed after 1 s"):
        client.submit(run).result()
    for name in ("child", "parent"):
        assert not alive(int((tmp_path / name).read_text()))


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {"b": 1}, "needs more positional arguments"),
        ((1,), {}, "needs an argument 'b'"),
        ((1, 2), {"b": 1, "c": 3}, "does not use: 2, c"),
    ],
)
def test_arguments_that_do_not_fit_are_type_errors(args, kwargs, words):
    with pytest.raises(TypeError, match=words):
        scalable.command("true {} {b}")(*args, **kwargs)


def test_an_empty_template_is_refused():
    with pytest.raises(ValueError, match="empty"):
        scalable.command(" ")


def test_a_program_in_the_background_does_not_hold_up_the_timeout(tmp_path):
    line = f"sh -c 'tail -f /dev/null & echo $! > {tmp_path}/pid; echo started'"
    try:
        with pytest.raises(RunError, match="sh was killed after 1 s"):
            scalable.command(line, timeout="1s")()  # its child holds the output
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 1e308])
def test_a_timeout_is_a_positive_number_of_seconds(timeout):
    with pytest.raises(ValueError, match="timeout must be a positive number of seconds"):
        scalable.command("true", timeout=timeout)
