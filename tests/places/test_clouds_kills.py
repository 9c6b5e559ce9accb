"""Processes that are killed at a request to the cloud: nothing is left, and nothing is doubled."""

import subprocess
import sys

import pytest
from clouds import CLOUDS

from verbs import program

COMPONENTS = "\ncomponents:\n  crops: {cpus: 0.5, memory: 1G, workers: 1}\n"
UP = ("up", "scalable.yaml", "--target", "there", "--name", "mown", "--yes", "--no-wait")
DOWN = ("down", "mown", "--yes")
#: A request in the middle of `up`: files, network and roles are there, and a machine may be.
MIDDLE = 30
#: More requests than any of the verbs sends.
MOST = 200


@pytest.fixture(scope="module", params=["aws-fargate", "gcp"])
def cloud(request):
    fixture, make = CLOUDS[request.param]
    return make(request.getfixturevalue(fixture))


@pytest.fixture(autouse=True)
def shell(cloud, monkeypatch, tmp_path):
    """The shell of a user, in a cloud whose machines never run their programs."""
    cloud.use(monkeypatch)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scalable.yaml").write_text(cloud.manifest(COMPONENTS))
    never_boot(cloud)
    yield
    cloud.clear()


def never_boot(cloud):
    if cloud.provider == "gcp":
        cloud.bed.never_boot("*", 10**6)
    else:
        cloud.bed.startup("*", never=True)


def started(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "scalable", *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def killed(cloud, number, *arguments):
    """Run a verb and kill it once its n-th request was carried out; False if it ended before."""
    process = started(*arguments)
    cloud.bed.kill_at(process.pid, number)
    code = process.wait(300)
    cloud.clear()
    never_boot(cloud)
    return code == -9


def check_up(cloud, number):
    whole = not killed(cloud, number, *UP)
    assert len(cloud.machines("scheduler")) <= 1
    assert program(*DOWN).returncode == 0
    assert cloud.bed.things() == []
    return whole


def check_down(cloud, number):
    assert program(*UP).returncode == 0
    whole = not killed(cloud, number, *DOWN)
    done = program(*DOWN)
    assert done.returncode == 0, done.stderr
    assert cloud.bed.things() == []
    return whole


def test_after_up_was_killed_in_the_middle_down_leaves_nothing(cloud):
    check_up(cloud, MIDDLE)


@pytest.mark.slow
@pytest.mark.parametrize("check", [check_up, check_down])
def test_no_request_is_one_after_which_a_kill_leaves_something(cloud, check):
    assert any(check(cloud, number) for number in range(1, MOST))


def test_prune_leaves_a_cluster_alone_that_is_being_started(cloud):
    process = started(*UP)
    while process.poll() is None:
        done = program("prune", "--yes")
        assert "mown" not in done.stdout
    assert process.returncode == 0
    assert len(cloud.machines("scheduler")) == 1
    assert program(*DOWN).returncode == 0


@pytest.mark.slow
def test_down_while_up_runs_leaves_nothing(cloud, eventually):
    process = started(*UP)
    eventually(cloud.files, timeout=120)
    program(*DOWN)
    process.wait(300)
    assert program(*DOWN).returncode == 0
    assert cloud.bed.things() == []
