"""Detached clusters whose programs are killed, or whose files are damaged."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import pytest

import scalable
from detached import kill, nothing_is_left, processes_of, running_workers
from scalable.errors import ClusterError
from scalable.records import ClusterDirectory, find
from verbs import garbage, listed, program, status, up

CREATOR = """
    import os, time
    from scalable import ScalableSession

    def work(file):
        with open(file, "a") as starts:
            starts.write("began\\n")
        time.sleep(4)
        return "done"

    client = ScalableSession.from_yaml("scalable.yaml", "local").start(detach=True, name="one")
    future = client.submit(work, os.path.abspath("starts"), tag="a")
    client.publish_dataset(future, name="answer")
    print("published", flush=True)
    time.sleep(600)
"""


def test_the_creator_is_killed_while_a_call_runs(place, tmp_path, eventually):
    script = tmp_path / "creator.py"
    script.write_text(textwrap.dedent(CREATOR))
    creator = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    try:
        assert creator.stdout.readline() == "published\n"
        eventually((tmp_path / "starts").exists)
        before = {p.pid for p in processes_of(tmp_path, "scalable.worker.program")}
    finally:
        creator.kill()
        creator.wait()
        creator.stdout.close()
    fetch = "import scalable; print(scalable.connect('one').get_dataset('answer').result(60))"
    fetched = subprocess.run(
        [sys.executable, "-c", fetch], capture_output=True, text=True, timeout=100, check=False
    )
    assert fetched.stdout == "done\n", fetched.stderr
    assert (tmp_path / "starts").read_text() == "began\n"
    assert {p.pid for p in processes_of(tmp_path, "scalable.worker.program")} == before
    program("down", "one", "--yes")
    nothing_is_left(tmp_path)


def test_a_manager_is_killed_and_resumed(place, tmp_path, eventually):
    up("--name", "one")
    workers = {p.pid for p in processes_of(tmp_path, "scalable.worker.program")}
    with scalable.connect("one") as client:
        running = client.submit(time.sleep, 3, tag="a", pure=False)
        kill("managers/local/manager.json", "one")
        assert running.result(timeout=60) is None
        eventually(lambda: status("one")["state"] == "unmanaged", "lease", timeout=90)
        both = [
            subprocess.Popen([sys.executable, "-m", "scalable", "resume", "one"]) for _ in range(2)
        ]
        assert [resume.wait(timeout=60) for resume in both] == [0, 0]
        eventually(lambda: status("one")["state"] == "running", timeout=60)
        eventually(
            lambda: len(processes_of(tmp_path, "scalable.programs.manager")) == 1, timeout=60
        )
        assert {p.pid for p in processes_of(tmp_path, "scalable.worker.program")} == workers
        assert client.submit(abs, -1, tag="a").result(timeout=60) == 1
        program("scale", "one", "a=3")
        eventually(lambda: status("one")["pools"]["a"]["running"] == 3)
        assert workers < {p.pid for p in processes_of(tmp_path, "scalable.worker.program")}
    program("down", "one", "--yes")
    nothing_is_left(tmp_path)


def test_the_scheduler_is_killed(place, tmp_path, eventually):
    up("--name", "one")
    kill("scheduler.json", "one")
    eventually(lambda: status("one")["state"] == "failed", timeout=30)
    eventually(lambda: processes_of(tmp_path) == [], "workers and manager to end", timeout=90)
    assert [row["kind"] for row in garbage("--yes")] == ["failed"]
    nothing_is_left(tmp_path)
    assert program("down", "one", "--yes").returncode == 0


def test_down_clears_away_after_a_killed_scheduler_at_once(place, tmp_path):
    up("--name", "one")
    kill("scheduler.json", "one")
    assert program("down", "one", "--yes").returncode == 0
    nothing_is_left(tmp_path)


@pytest.mark.parametrize(
    "damages",
    [
        {"services.json": '{"sch', "tls/key.pem": "junk", "managers/local/manager.json": "[]"},
        {"scheduler.json": "", "status.json": '{"written_at": "x"}'},
    ],
    ids=["secondary", "primary"],
)
def test_down_ends_a_cluster_whose_files_are_damaged(place, tmp_path, damages):
    up("--name", "one")
    for name, text in damages.items():
        (find("one").path / name).write_text(text)
    done = program("down", "one", "--yes")
    assert done.returncode == 0, done.stderr
    nothing_is_left(tmp_path)


def test_down_ends_a_cluster_whose_disk_is_full(place, tmp_path):
    disk = tmp_path / "state"
    disk.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k,mode=700", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("NOT TESTED: a file system of one's own can only be mounted by root")
    try:
        up("--name", "one")
        fill = ["dd", "if=/dev/zero", f"of={disk}/fill", "bs=1k", "count=10000"]
        assert subprocess.run(fill, check=False, capture_output=True).returncode == 1
        done = program("down", "one", "--yes")
        assert done.returncode == 0, done.stderr
        nothing_is_left(tmp_path)
    finally:
        for process in processes_of(tmp_path):
            process.kill()
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_up_goes_on_with_what_a_killed_one_began(place, tmp_path):
    up("--name", "one")
    directory = find("one")
    gone = {**directory.record().creator, "start_ticks": 1}
    directory.write_record(replace(directory.record(), stage="creating", creator=gone))
    kill("managers/local/manager.json", "one").wait(30)
    with scalable.connect("one") as client:
        running = client.submit(lambda seconds: time.sleep(seconds) or seconds, 3.0, tag="a")
        again = up("--name", "one")
        assert "started manager local" in again.stderr
        assert running.result(timeout=60) == 3.0
    assert find("one").id == directory.id
    program("down", "one", "--yes")
    nothing_is_left(tmp_path)


def test_a_manager_that_fails_once_it_is_let_in_is_forgotten(place, tmp_path, eventually):
    up("--name", "one", "--no-workers")
    with scalable.connect("one") as client:
        lost = client.submit(abs, -1, tag="a")
        with pytest.raises(ClusterError, match="no pool 'a'; .*no manager is attached"):
            lost.result(timeout=60)
    managers = find("one").path / "managers"
    managers.mkdir(exist_ok=True)
    (managers / "odd").write_text("not a directory")
    done = program("manager", "attach", "one", "--target", "second", "--id", "odd")
    assert done.returncode != 0
    assert status("one")["managers"] == []
    refused = program("manager", "attach", "one", "--target", "second", "--id", "scheduler")
    assert "'scheduler' is taken" in refused.stderr
    again = up("--name", "one")  # one without managers gets those of its manifest
    assert "started manager local" in again.stderr
    eventually(lambda: running_workers("one") == {"a": 2, "b": 1})
    program("down", "one", "--yes")
    nothing_is_left(tmp_path)


def test_a_record_from_before_a_reboot_is_stale(place, tmp_path):
    """The number belongs to another process now: it gets no signal."""
    up("--name", "one")
    directory = find("one")
    record, scheduler = directory.record(), directory.scheduler()
    program("down", "one", "--yes")
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        again = ClusterDirectory.create(record)
        again.write_scheduler({**scheduler, "pid": bystander.pid})
        assert status("one")["state"] == "stale"
        again.write_scheduler({**scheduler, "pid": bystander.pid, "boot_id": "another"})
        assert status("one")["state"] == "stale"
        assert [(row["kind"], row["name"]) for row in garbage()] == [("stale", "one")]
        assert "one" in listed()
        garbage("--yes")
        assert listed() == {}
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


# Each is killed behind the step of that number; the last ones are beyond the end.
STEPS = """
    import os, sys
    from scalable.lifecycle import creation, ending, services
    from scalable.records import ClusterDirectory
    from scalable.cli.main import main

    count = 0

    def counted(owner, name):
        step = getattr(owner, name)

        def run(*args, **kwargs):
            global count
            answer = step(*args, **kwargs)
            count += 1
            if count == int(sys.argv[1]):
                os.kill(os.getpid(), 9)
            return answer

        setattr(owner, name, run)

    for owner, name in [
        (services, "_start_apart"), (ClusterDirectory, "write_services"), (ClusterDirectory, "create"),
        (ClusterDirectory, "set_stage"), (ending, "_ask_to_end"), (ending, "end_process"),
        (ClusterDirectory, "remove"),
    ]:
        counted(owner, name)
    sys.exit(main(sys.argv[2:]))
"""


LONG = pytest.mark.slow


@pytest.mark.parametrize("step", [pytest.param(n, marks=LONG) for n in (1, 3, 5)] + [2, 4, 6])
def test_up_killed_behind_each_step(place, tmp_path, step, eventually):
    steps = tmp_path / "steps.py"
    steps.write_text(textwrap.dedent(STEPS))
    command = [sys.executable, steps, str(step), "up", "--target", "local", "--name", "one"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    assert listed()["one"]["state"] in ("creating", "starting", "running")
    assert program("down", "one", "--yes").returncode == 0
    eventually(lambda: processes_of(tmp_path) == [], timeout=30)
    nothing_is_left(tmp_path)


@pytest.mark.parametrize("step", [1, pytest.param(2, marks=LONG), 3])
def test_down_killed_behind_each_step(place, tmp_path, step):
    up("--name", "one")
    steps = tmp_path / "steps.py"
    steps.write_text(textwrap.dedent(STEPS))
    command = [sys.executable, steps, str(step), "down", "one", "--yes"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (-signal.SIGKILL, 0)
    assert step > 1 or listed()["one"]["state"] == "deleting"
    assert program("down", "one", "--yes").returncode == 0
    nothing_is_left(tmp_path)
    assert program("down", "one", "--yes").returncode == 0
