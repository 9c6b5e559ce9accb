"""Detached clusters whose programs are killed, or whose files are damaged."""

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import scalable
from detached import change_constants, kill, nothing_is_left, processes_of, running_workers
from scalable.errors import ClusterError
from scalable.liveness import identify_process
from scalable.model import ClusterRecord
from scalable.records import ClusterDirectory, find
from verbs import garbage, listed, program, status, up

CREATOR = """
    import os, signal, time
    from scalable import ScalableSession

    def work(directory):
        with open(f"{directory}/starts", "a") as starts:
            starts.write("began\\n")
        while not os.path.exists(f"{directory}/over"):
            time.sleep(0.02)
        return "done"

    client = ScalableSession.from_yaml("scalable.yaml", "local").start(detach=True, name="one")
    future = client.submit(work, os.getcwd(), tag="a")
    client.publish_dataset(future, name="answer")
    print("published", flush=True)
    signal.pause()
"""


def wait_for(path):
    """Run until a file is there."""
    while not os.path.exists(path):
        time.sleep(0.02)
    return "done"


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
    (tmp_path / "over").touch()
    with scalable.connect("one") as client:
        assert client.get_dataset("answer").result(timeout=60) == "done"
    assert (tmp_path / "starts").read_text() == "began\n"
    assert {p.pid for p in processes_of(tmp_path, "scalable.worker.program")} == before
    program("down", "one", "--yes")
    nothing_is_left(tmp_path)


def test_a_manager_is_killed_and_resumed_and_up_goes_on_with_what_a_killed_one_began(
    place, tmp_path, eventually, monkeypatch
):
    change_constants(tmp_path, monkeypatch, scheduler__managers={"LEASE_S": 3.0})
    up("--name", "one")
    workers = {p.pid for p in processes_of(tmp_path, "scalable.worker.program")}
    with scalable.connect("one") as client:
        running = client.submit(wait_for, str(tmp_path / "over"), tag="a", pure=False)
        eventually(client.processing)
        kill("managers/local/manager.json", "one")
        eventually(lambda: status("one")["state"] == "unmanaged", "lease", timeout=90)
        (tmp_path / "over").touch()
        assert running.result(timeout=60) == "done"
        with ThreadPoolExecutor(2) as threads:
            both = list(
                threads.map(lambda _: program("manager", "restart", "one", timeout=60), range(2))
            )
        assert [resume.returncode for resume in both] == [0, 0], both
        eventually(lambda: status("one")["state"] == "running")
        eventually(lambda: len(processes_of(tmp_path, "scalable.clusters.programs.manager")) == 1)
        assert {p.pid for p in processes_of(tmp_path, "scalable.worker.program")} == workers
        assert client.submit(abs, -1, tag="a").result(timeout=60) == 1
        program("scale", "one", "a=3")
        eventually(lambda: status("one")["pools"]["a"]["running"] == 3)
        assert workers < {p.pid for p in processes_of(tmp_path, "scalable.worker.program")}

        directory = find("one")
        gone = {**directory.record().creator, "start_ticks": 1}
        directory.write_record(replace(directory.record(), stage="creating", creator=gone))
        kill("managers/local/manager.json", "one").wait(30)
        running = client.submit(wait_for, str(tmp_path / "again"), tag="a", pure=False)
        again = up("--name", "one")
        assert "started manager local" in again.stderr
        assert "Tasks:     1 running" in again.stdout
        assert "unless it gets work" not in again.stdout
        (tmp_path / "again").touch()
        assert running.result(timeout=60) == "done"
    assert find("one").id == directory.id
    program("down", "one", "--yes")
    nothing_is_left(tmp_path)


def test_the_scheduler_is_killed(place, tmp_path, eventually, monkeypatch):
    change_constants(
        tmp_path,
        monkeypatch,
        clusters__managing={"SCHEDULER_LOST_S": 1.0, "CONNECT_TIMEOUT_S": 1.0},
        worker__program={"LAST_ANSWER_TIMEOUT_S": 1.0},
    )
    up("--name", "one")
    kill("scheduler.json", "one")
    eventually(lambda: status("one")["state"] == "failed", timeout=30)
    eventually(lambda: processes_of(tmp_path) == [], "workers and manager to end", timeout=90)
    assert [row["kind"] for row in garbage("--yes")] == ["failed"]
    nothing_is_left(tmp_path)
    assert program("down", "one", "--yes").returncode == 0


@pytest.fixture
def quick_kills(monkeypatch):
    """Kill programs that do not end at once, as managers without their scheduler."""
    monkeypatch.setattr("scalable.clusters.ending.TERM_S", 0.2)


@pytest.mark.slow
def test_down_clears_away_after_a_killed_scheduler_at_once(place, tmp_path, quick_kills):
    up("--name", "one")
    kill("scheduler.json", "one").wait(30)
    assert program("down", "one", "--yes").returncode == 0
    nothing_is_left(tmp_path)


@pytest.mark.parametrize(
    "damages",
    [
        pytest.param(
            {"services.json": '{"sch', "tls/key.pem": "junk", "managers/local/manager.json": "[]"},
            marks=pytest.mark.slow,
        ),
        {"scheduler.json": "", "status.json": '{"written_at": "x"}'},
    ],
    ids=["secondary", "primary"],
)
def test_down_ends_a_cluster_whose_files_are_damaged(place, tmp_path, damages, quick_kills):
    up("--name", "one")
    for name, text in damages.items():
        (find("one").path / name).write_text(text)
    done = program("down", "one", "--yes")
    assert done.returncode == 0, done.stderr
    nothing_is_left(tmp_path)


def test_down_ends_a_cluster_whose_disk_is_full(place, tmp_path, quick_kills):
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


def test_a_manager_that_fails_once_it_is_let_in_is_forgotten(
    place, tmp_path, eventually, monkeypatch
):
    change_constants(tmp_path, monkeypatch, scheduler__explaining={"WAIT_BEFORE_WORD_S": 0.1})
    up("--name", "one", "--no-workers")
    with scalable.connect("one") as client:
        lost = client.submit(abs, -1, tag="a")
        with pytest.raises(ClusterError, match="no pool 'a'; .*no manager is attached"):
            lost.result(timeout=60)
    managers = find("one").path / "managers"
    managers.mkdir(exist_ok=True)
    (managers / "odd").write_text("not a directory")
    attach = ("manager", "attach", "one", "--target", "second", "--id")
    done = program(*attach, "odd")
    assert done.returncode != 0
    assert status("one")["managers"] == []
    refused = program(*attach, "scheduler", here=True)
    assert "'scheduler' is taken" in refused.stderr
    again = up("--name", "one")  # one without managers gets those of its manifest
    assert "started manager local" in again.stderr
    eventually(lambda: running_workers("one") == {"a": 2, "b": 1})
    program("down", "one", "--yes")
    nothing_is_left(tmp_path)


def test_a_record_from_before_a_reboot_is_stale(place):
    """The number belongs to another process now: it gets no signal."""
    values = dict.fromkeys(("provider", "target", "project", "owner"), "local")
    made_at = "2026-01-01T00:00:00+00:00"
    record = ClusterRecord(id=str(uuid.uuid4()), name="one", created_at=made_at, **values)
    bystander = subprocess.Popen(["sleep", "infinity"])
    try:
        directory = ClusterDirectory.create(record)
        scheduler = {**identify_process(), "address": "tls://127.0.0.1:1", "pid": bystander.pid}
        directory.write_scheduler({**scheduler, "start_ticks": 1, "process_started_at": 1.0})
        assert status("one")["state"] == "stale"
        directory.write_scheduler({**scheduler, "boot_id": "another"})
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
    from scalable.clusters import creation, ending, services
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


@pytest.mark.parametrize("step", [pytest.param(n, marks=LONG) for n in (1, 2, 3, 5, 6)] + [4])
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


@pytest.mark.parametrize("step", [1, *(pytest.param(n, marks=LONG) for n in (2, 3))])
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


def test_a_scheduler_stopped_by_somebody_else_has_failed(place, tmp_path, eventually):
    up("--name", "one")
    eventually(lambda: running_workers("one") == {"a": 2, "b": 1})
    kill("scheduler.json", "one", signal.SIGTERM)  # as scancel does
    eventually(lambda: not processes_of(tmp_path))
    found = status("one")
    assert found["state"] == "failed"
    assert "its scheduler got SIGTERM from outside; its logs are in" in found["reason"]
    assert f"{find('one').path}/logs" in found["reason"]
    assert program("logs", "one").returncode == 0
    assert program("down", "one", "--yes").returncode == 0
    nothing_is_left(tmp_path)
