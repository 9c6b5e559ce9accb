"""Failed tasks in the user's process, under a debugger."""

import threading
import traceback

import pytest
from distributed import as_completed, get_client

from python_runs import run_python
from scalable import ClusterError, ScalableSession

SCRIPT = """\
import sys
from scalable import ScalableSession

def base(x):
    return x + 1

def model(x):
    inside = x * 2
    raise ValueError(f"no {inside}")

if __name__ == "__main__":
    with ScalableSession.local({"m": 1}, processes=True) as client:
        failed = client.submit(base, client.submit(model, client.submit(base, 3, tag="m"), tag="m"))
        client.debug(failed)
        print("still here")
"""


def model(x):
    raise ValueError(x)


def fine(x):
    return x


def stop_here():
    breakpoint()  # noqa: T100


KINDS = {"processes": {"processes": True}, "threads": {}, "synchronous": {"synchronous": True}}


@pytest.fixture(scope="module", params=KINDS)
def client(request):
    with ScalableSession.local({"m": 1}, **KINDS[request.param]) as client:
        yield client


def test_debugger_opens_in_the_function_that_failed(tmp_path):
    (tmp_path / "work.py").write_text(SCRIPT)
    done = run_python("work.py", input="p inside\nlist\nq\n", cwd=tmp_path, check=True)
    assert "ValueError: no 8" in done.stdout
    assert "(Pdb) 8\n" in done.stdout
    assert '->\t    raise ValueError(f"no {inside}")' in done.stdout
    assert "still here" in done.stdout


@pytest.mark.parametrize("options", [{}, {"errors": "keep"}, {"cache": True}], ids=str)
def test_a_failed_task_runs_again_here(client, options):
    failed = client.submit(model, 5, tag="m", **options)
    with pytest.raises(ValueError, match="5") as caught:
        client.recreate_error_locally(failed)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].filename == __file__


def test_a_task_is_run_with_the_results_that_it_needs(client):
    failed = client.submit(model, client.submit(fine, [6], tag="m"), tag="m")
    with pytest.raises(ValueError, match=r"\[6\]"):
        client.recreate_error_locally(client.submit(fine, failed, tag="m"))


def test_only_failed_tasks_of_the_client_run_again(client):
    with pytest.raises(ClusterError, match="no task of these futures has failed"):
        client.recreate_error_locally(client.submit(fine, 1, tag="m"))
    with pytest.raises(ClusterError, match=r"submit the task with client\.submit"):
        client.debug(client.pool("m").submit(model, 1))


def test_a_mapped_task_that_fails_at_once_runs_once(client):
    story = client.cluster.scheduler.story
    futures = client.map(model, range(3), tag="m", pure=False)
    with pytest.raises(ValueError, match="0"):
        futures[0].result()
    for future in futures:
        assert future.exception() is not None
        assert not any("retry" in str(row[-2]) for row in story(future.key))


@pytest.mark.parametrize("client", ["processes"], indirect=True)
def test_breakpoint_in_a_worker_names_what_works(client):
    with pytest.raises(RuntimeError, match=r"synchronous=True.*client\.debug\(future\)"):
        client.submit(stop_here, tag="m").result()


# Tasks in the caller's thread ---------------------------------------------------------------------

ran = []


def note(number):
    ran.append(number)
    assert threading.current_thread() is threading.main_thread()
    return number


def nested(number):
    client = get_client()
    return sum(client.gather(client.map(note, range(number), tag="other")))


@pytest.fixture
def here():
    ran.clear()
    with ScalableSession.local({"m": 2, "other": 1}, processes=True, synchronous=True) as client:
        yield client


def test_a_synchronous_task_has_run_when_it_is_submitted(here):
    assert here.submit(note, 1, tag="m").done()
    futures = here.map(note, range(2, 6), tag="m")
    assert ran == [1, 2, 3, 4, 5]
    assert here.gather(futures) == [2, 3, 4, 5]
    assert [future.result() for future in as_completed(futures)] == [2, 3, 4, 5]


def test_every_way_to_submit_runs_tasks_in_this_thread(here):
    assert here.submit(nested, 4, tag="m").result() == 6
    assert here.get({"a": (note, 1), "b": (note, "a")}, "b", tag="m") == 1
    assert len(here.sweep(note, [{"number": 7}], tag="m").wait().table()) == 1
    with here.pool(tag="m") as pool:
        assert pool.submit(note, 8).done()
        assert list(pool.map(note, range(3))) == list(pool.imap(note, range(3))) == [0, 1, 2]
        assert pool.submit(nested, 3).result() == 3


def test_synchronous_tasks_are_checked_as_on_the_target(here):
    with pytest.raises(ClusterError, match="no pool has the tag 'moon'"):
        here.submit(note, 1, tag="moon")
    failed = here.submit(model, 5, tag="m")
    assert failed.status == "error"
    with pytest.raises(ValueError, match="5"):
        failed.result()
    with pytest.raises(ClusterError, match="slots"):
        here.submit(note, 1, tag="m", n=2)


def test_a_synchronous_session_starts_nothing_on_its_target(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scalable.yaml").write_text(
        "version: 1\nproject: {name: p}\ntargets:\n  hpc: {provider: slurm, queue: nowhere}\n"
        "components:\n  m: {cpus: 64, memory: 1T, slots: 4, env: {A: b}, workers: 9}\n"
    )
    with ScalableSession.from_yaml(target="hpc", synchronous=True) as client:
        assert client.submit(note, 1, tag="m", n=4).result() == 1
        assert len(client.scheduler_info()["workers"]) == 1
    assert "component 'm': env is not applied to tasks that run synchronously" in caplog.text


def test_a_debugger_stops_in_a_synchronous_task_of_a_run(tmp_path):
    (tmp_path / "scalable.yaml").write_text(
        "version: 1\nproject: {name: p}\n"
        "targets:\n  local: {provider: local, processes: true}\ncomponents:\n  m: {workers: 2}\n"
    )
    (tmp_path / "workflow.py").write_text(
        "from scalable import ScalableSession\n\ndef model(x):\n    inside = x * 2\n"
        "    breakpoint()\n    return inside + 1\n\nif __name__ == '__main__':\n"
        "    with ScalableSession.from_yaml() as client:\n"
        "        print('result', client.submit(model, 4, tag='m').result())\n"
    )
    done = run_python(
        "-m",
        "scalable",
        "run",
        "--synchronous",
        input="p inside\nlist\nc\n",
        cwd=tmp_path,
        check=True,
    )
    assert "(Pdb) 8\n" in done.stdout
    assert "breakpoint()\n" in done.stdout
    assert "result 9\n" in done.stdout
