"""Failed tasks in the user's process, under a debugger."""

import subprocess
import sys
import traceback

import pytest

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


@pytest.fixture(scope="module")
def client():
    with ScalableSession.local({"m": 1}, processes=True) as client:
        yield client


def test_debugger_opens_in_the_function_that_failed(tmp_path):
    (tmp_path / "work.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "work.py"],
        input="p inside\nlist\nq\n",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
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


def test_breakpoint_in_a_worker_names_what_works(client):
    with pytest.raises(RuntimeError, match=r"client\.debug\(future\).*processes: false"):
        client.submit(stop_here, tag="m").result()
