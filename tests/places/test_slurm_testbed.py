"""The test bed itself: a real Slurm that starts, works, and leaves nothing behind."""

import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "slurm-testbed"


def submit(testbed, tmp_path, command, *options):
    output = ["--output", str(tmp_path / "%A-%a.out")]
    return testbed.command("sbatch", "--parsable", *output, *options, "--wrap", command).strip()


def test_commands_of_the_test_lead_to_it(on_slurm):
    listed = subprocess.run(
        ["sinfo", "-h", "-o", "%P %l"], capture_output=True, text=True, timeout=30, check=True
    ).stdout
    listed, preempting = listed.splitlines()[:3], listed.splitlines()[3:]
    assert listed == ["batch* 7-00:00:00", "short 30:00", "tight 1:00"]
    assert preempting == [f"{name} 7-00:00:00" for name in ("urgent", "scavenge", "requeue")]


def test_stop_ends_daemons_and_jobs(own_slurm, tmp_path, eventually):
    testbed = own_slurm(nodes=2, kill_wait=2)
    job = submit(testbed, tmp_path, "trap '' TERM; sleep 600; sleep 600")
    eventually(lambda: testbed.job_states(job) == {job: "RUNNING"})
    eventually(lambda: "sleep" in testbed.daemons().values())
    before = testbed.daemons()
    assert {"munged", "slurmctld", "slurmd", "slurmstepd", "sleep"} <= set(before.values())
    assert testbed.stop()
    assert testbed.daemons() == {}
    assert [pid for pid in before if lives(pid)] == []
    assert not testbed.stop()


def lives(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_stop_ends_jobs_that_the_controller_does_not_know_of(own_slurm, tmp_path, eventually):
    testbed = own_slurm(nodes=1)
    submit(testbed, tmp_path, "sleep 600")
    eventually(lambda: "sleep" in testbed.daemons().values())
    testbed.stop_controller()
    assert testbed.stop()
    assert testbed.daemons() == {}


def test_two_side_by_side(own_slurm, tmp_path, eventually):
    one, other = own_slurm(nodes=1), own_slurm(nodes=2)
    job = submit(one, tmp_path, "sleep 600")
    eventually(lambda: one.job_states(job) == {job: "RUNNING"})
    assert other.jobs() == []
    assert other.stop()
    assert one.job_states(job) == {job: "RUNNING"}


def test_starting_twice_and_again(own_slurm, tmp_path, eventually):
    testbed = own_slurm(nodes=1)
    before = testbed.daemons()
    assert not testbed.start()
    assert testbed.daemons() == before
    submit(testbed, tmp_path, "sleep 600")
    assert testbed.stop()
    assert testbed.start()
    assert testbed.jobs() == []
    job = submit(testbed, tmp_path, "true")
    eventually(lambda: testbed.job_states(job) == {job: "COMPLETED"})


def test_a_failed_start_leaves_nothing_and_shows_why(own_slurm):
    testbed = own_slurm(nodes=1)
    testbed.stop()
    testbed.cpus = "many"
    with pytest.raises(RuntimeError) as raised:
        testbed.start()
    assert "slurmctld" in raised.value.__notes__[0]
    assert testbed.daemons() == {}


@pytest.mark.usefixtures("slurm")
def test_it_overwrites_nothing():
    with tempfile.TemporaryDirectory() as short:  # a path of sockets has at most 66 characters
        directory = Path(short)
        (directory / "slurm.conf").write_text("ClusterName=production\n")
        done = script("start", "--directory", directory)
        assert done.returncode == 1
        assert "holds another Slurm" in done.stderr
        assert [path.name for path in directory.iterdir()] == ["slurm.conf"]


def script(*words):
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, words)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_the_script(own_slurm):
    testbed = own_slurm(nodes=1)
    where = ("--directory", testbed.directory)
    assert "runs already" in script("start", *where).stdout
    assert script("env", *where).stdout == f"export SLURM_CONF={testbed.directory}/slurm.conf\n"
    shown = script("status", *where).stdout
    assert all(word in shown for word in ("slurmctld", "munged", "batch*", "node1"))
    assert script("stop", *where).stdout == "stopped\n"
    assert script("stop", *where).stdout == "was not running\n"
    assert script("status", *where).returncode == 1
    assert testbed.daemons() == {}


def test_without_the_packages_it_says_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setattr("slurm_testbed._search_path", lambda: str(tmp_path))
    testbed = sys.modules["slurm_testbed"].SlurmTestbed(tmp_path / "testbed")
    with pytest.raises(RuntimeError, match="sbatch.* not found.*apt-get install"):
        testbed.start()


def test_it_ends_with_the_process_that_it_was_started_for(own_slurm):
    testbed = own_slurm(nodes=1)
    owner = subprocess.Popen(["sleep", "600"])
    command = [sys.executable, SCRIPT, "stop", "--directory", testbed.directory]
    stop = subprocess.Popen([*command, "--after", str(owner.pid)], stdout=subprocess.DEVNULL)
    assert testbed.running
    owner.kill()
    assert stop.wait(timeout=60) == 0
    owner.wait(timeout=60)
    assert testbed.daemons() == {}
