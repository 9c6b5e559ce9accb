"""``scalable run --detach``: a cluster for one run."""

import os

import pytest

from detached import nothing_is_left
from python_runs import run_python
from verbs import program


@pytest.mark.parametrize("end", ["", "os.kill(os.getppid(), signal.SIGTERM)"])
def test_run_detach_deletes_its_own_cluster(place, tmp_path, end):
    (tmp_path / "workflow.py").write_text(
        "import os, signal, time, scalable\n"
        "with scalable.ScalableSession.from_yaml() as client:\n"
        "    print(client.submit(os.getppid, tag='a').result(), os.environ['SCALABLE_CLUSTER'])\n"
        f"    {end}\n    time.sleep({60 if 'kill' in end else 0})\n"
    )
    done = program("run", "--target", "local", "--detach")
    pid, cluster = done.stdout.split("\n", 1)[0].split()
    assert int(pid) != os.getpid()
    assert len(cluster) == 36
    assert done.returncode == (130 if end else 0), done.stderr
    assert f"Status:   {'cancelled' if end else 'completed'}" in done.stdout
    assert "Tasks:    1 done" in done.stdout
    nothing_is_left(tmp_path)


def test_run_detach_deletes_a_cluster_whose_creation_is_interrupted(place, tmp_path):
    (tmp_path / "workflow.py").touch()
    code = (
        "import os, signal, sys\n"
        "from scalable.clusters import creation\n"
        "from scalable.cli.main import main\n"
        "start = creation.services.start_manager\n"
        "def interrupted(*args):\n"
        "    start(*args)\n    os.kill(os.getpid(), signal.SIGTERM)\n"
        "creation.services.start_manager = interrupted\n"
        "main(['run', '--target', 'local', '--detach'])\n"
    )
    done = run_python("-c", code)
    assert done.returncode == 143, done.stderr
    nothing_is_left(tmp_path)
