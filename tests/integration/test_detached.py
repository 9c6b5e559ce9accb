"""Clusters that outlive their creator, as their users meet them: real processes, real signals."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from verbs import garbage, listed, program, status, up

import scalable
from scalable import ScalableSession
from scalable.errors import ClusterError
from scalable.records import ClusterDirectory, find

MANIFEST = """\
version: 1
project: {name: tests}
targets:
  local: {provider: local, processes: true, max_workers: 4, %s}
  second: {provider: local, processes: true, max_workers: 4}
  threads: {provider: local}
components:
  a: {cpus: 1, workers: 2}
  b: {cpus: 1, workers: 1}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A user's directory and state; whatever a test leaves of its clusters is ended behind it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SCALABLE_RUNS_DIR", str(tmp_path / "runs"))

    def write(options="", text=MANIFEST):
        (tmp_path / "scalable.yaml").write_text(text % options if "%s" in text else text)
        return tmp_path

    write()
    yield write
    for process in processes_of(tmp_path):
        process.kill()


def processes_of(place, *words):
    """Processes of any cluster whose state is below a directory."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        ours = f"{place}/state/scalable/clusters" in line and process.pid != os.getpid()
        if ours and all(word in line for word in words):
            found.append(process)
    return found


def nothing_is_left(place):
    clusters = place / "state" / "scalable" / "clusters"
    assert [p.name for p in clusters.iterdir() if p.name != ".lock"] == []
    assert processes_of(place) == []


def kill(service, name, number=signal.SIGKILL):
    process = psutil.Process(json.loads((find(name).path / service).read_text())["pid"])
    process.send_signal(number)
    return process


def running_workers(name):
    return {tag: pool["running"] for tag, pool in status(name)["pools"].items()}


def test_the_verbs_from_up_to_down(place, tmp_path, eventually):
    shown = up("--name", "one")
    assert "without work" in shown.stderr  # the idle timeout is part of what is shown first
    # It returned with the first worker of each pool.
    running = {"a": 2, "b": 1}
    eventually(
        lambda: {t: p["running"] for t, p in listed()["one"]["pools"].items()} == running,
        timeout=60,
    )
    row = listed()["one"]
    assert (row["state"], row["provider"], row["embedded"]) == ("running", "local", False)
    assert [(m["id"], m["state"]) for m in row["managers"]] == [("local", "attached")]

    again = up("--name", "one")
    assert "nothing to change" in again.stderr
    assert len(processes_of(tmp_path, "scalable.worker.program")) == 3

    assert program("scale", "one", "a=1", "b=2").stdout == "a: 2 -> 1\nb: 1 -> 2\n"
    assert {t: p["wanted"] for t, p in status("one")["pools"].items()} == {"a": 1, "b": 2}
    eventually(lambda: len(processes_of(tmp_path, "scalable.worker.program")) == 3)
    refused = program("scale", "one", "c=1")
    assert refused.returncode == 5
    assert "cluster 'one' has no pool 'c'" in refused.stderr
    assert "its pools: 'a', 'b'" in refused.stderr

    with scalable.connect("one") as client:
        assert client.submit(os.getpid, tag="a").result(timeout=60) != os.getpid()
        client.submit(print, "hello from afar", tag="b").result(timeout=60)
    logs = program("logs", "one", "--pool", "b").stdout
    assert "hello from afar" in logs

    asked = program("down", "one", stdin=subprocess.DEVNULL)
    assert asked.returncode == 2
    assert "--yes" in asked.stderr
    assert program("down", "one", "--yes").returncode == 0
    nothing_is_left(tmp_path)
    assert program("down", "one", "--yes").returncode == 0
    assert program("status", "one").returncode == 5


def test_two_ups_of_one_name_at_once_make_one_cluster(place, tmp_path):
    command = [sys.executable, "-m", "scalable", "up", "--target", "local", "--name", "one"]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert list(listed()) == ["one"]
    program("down", "one", "--yes")
    nothing_is_left(tmp_path)


def test_logs_of_workers_that_are_gone(place, eventually):
    def say(words):
        from distributed import get_worker

        print(words, flush=True)
        return str(get_worker().name)

    up("--name", "one")
    with scalable.connect("one") as client:
        worker = client.submit(say, "the last words", tag="b").result(timeout=60)
    program("scale", "one", "b=0")
    eventually(lambda: status("one")["pools"]["b"]["running"] == 0)
    assert "the last words" in program("logs", "one", "--worker", worker).stdout
    program("down", "one", "--yes")


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


def test_idle_clusters_end_by_themselves(place, tmp_path, eventually):
    up("--name", "one", "--idle-timeout", "15s")
    eventually(lambda: processes_of(tmp_path) == [], "the idle cluster to end", timeout=90)
    nothing_is_left(tmp_path)


def test_work_and_clients_keep_a_cluster(place, tmp_path, eventually):
    up("--name", "one", "--idle-timeout", "15s")
    with scalable.connect("one") as client:
        assert client.submit(time.sleep, 20, tag="a").result(timeout=60) is None
    eventually(lambda: processes_of(tmp_path) == [], timeout=90)


def test_a_time_to_live_ends_even_a_busy_cluster(place, tmp_path, eventually):
    up("--name", "one", "--ttl", "20s")
    eventually(lambda: processes_of(tmp_path) == [], timeout=90)
    nothing_is_left(tmp_path)


def test_threads_cannot_be_detached(place, tmp_path):
    done = program("up", "--target", "threads", "--name", "one")
    assert done.returncode == 2
    assert "set processes: true on target 'threads'" in done.stderr
    assert not (tmp_path / "state").exists()
    assert program("up", "--target", "threads", "--name", "one", "--processes").returncode == 0
    with scalable.connect("one") as client:
        assert client.submit(os.getpid, tag="a").result(timeout=60) != os.getpid()
    program("down", "one", "--yes")


def test_a_scheduler_alone(place, tmp_path):
    up("--name", "one", "--no-workers")
    assert processes_of(tmp_path, "scalable.worker.program") == []
    assert processes_of(tmp_path, "scalable.programs.manager") == []
    row = status("one")
    assert (row["state"], row["managers"]) == ("running", [])
    program("down", "one", "--yes")


def test_sessions_attach_and_only_delete_ends_the_cluster(place, tmp_path):
    session = ScalableSession.from_yaml("scalable.yaml", "local")
    client = session.start(detach=True, name="one")
    assert client.submit(abs, -2, tag="a").result(timeout=60) == 2
    session.close()
    with ScalableSession.attach("one") as client:
        assert client.submit(abs, -3, tag="a").result(timeout=60) == 3
    attached = ScalableSession.attach("one")
    attached.scale("a", 1)
    assert status("one")["pools"]["a"]["wanted"] == 1
    cluster = scalable.PoolCluster.from_name("one")
    assert cluster.pools["a"].wanted == 1
    cluster.close()
    assert [row.name for row in scalable.list_clusters()] == ["one"]
    attached.delete()
    nothing_is_left(tmp_path)
    with pytest.raises(ClusterError, match="there is no cluster 'one'"):
        ScalableSession.attach("one")


def test_a_workflow_runs_on_a_cluster_that_goes_on(place, tmp_path):
    up("--name", "one")
    (tmp_path / "workflow.py").write_text(
        "import scalable\n"
        "with scalable.ScalableSession.from_yaml() as client:\n"
        "    print(client.submit(abs, -7, tag='a').result())\n"
    )
    done = program("run", "--cluster", "one")
    assert done.returncode == 0, done.stderr
    assert "7\n" in done.stdout
    assert status("one")["state"] == "running"
    program("down", "one", "--yes")


# Managers ---------------------------------------------------------------------------------------


def attach(*arguments):
    command = [sys.executable, "-m", "scalable", "manager", "attach", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_managers_come_and_go(place, tmp_path, eventually):
    up("--name", "one", "--no-workers")
    first = attach("one", "--target", "local", "--id", "first", "--max", "a=1")
    access = tmp_path / "access"
    program("connect", "one", "--export", str(access))
    assert access.stat().st_mode & 0o777 == 0o600
    other = attach(str(access), "--target", "second", "--id", "other")
    try:
        eventually(lambda: {m["id"] for m in status("one")["managers"]} == {"first", "other"})
        with scalable.connect("one") as client:
            eventually(lambda: program("scale", "one", "a=3", "b=0").returncode == 0)
            eventually(lambda: status("one")["pools"]["a"]["running"] == 3)
            shares = {m["id"]: m["pools"]["a"]["running"] for m in status("one")["managers"]}
            assert shares == {"first": 1, "other": 2}

            second = attach("one", "--target", "local", "--id", "first")
            assert "another process" in second.communicate(timeout=60)[1]
            assert second.returncode == 5
            assert status("one")["pools"]["a"]["running"] == 3

            before = {w["name"] for w in client.scheduler_info(n_workers=-1)["workers"].values()}
            busy = client.map(time.sleep, [2] * 3, tag="a")
            first.send_signal(signal.SIGTERM)
            client.gather(busy)
            assert first.wait(timeout=60) == 0
            eventually(lambda: [m["id"] for m in status("one")["managers"]] == ["other"])
            eventually(lambda: status("one")["pools"]["a"]["running"] == 3)
            after = {w["name"] for w in client.scheduler_info(n_workers=-1)["workers"].values()}
            assert {n for n in before if "other" in n} <= after
    finally:
        for process in (first, other):
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
        program("down", "one", "--yes")


def test_a_manager_without_the_clusters_directory(place, tmp_path, eventually):
    """As on another machine: all that it has is the access file."""
    up("--name", "one", "--no-workers")
    access, elsewhere = tmp_path / "access", tmp_path / "elsewhere"
    program("connect", "one", "--export", str(access))
    environment = {**os.environ, "XDG_STATE_HOME": str(elsewhere)}
    command = [sys.executable, "-m", "scalable", "manager", "attach", str(access)]
    manager = subprocess.Popen(
        [*command, "--target", "second", "--id", "guest"], env=environment, stderr=subprocess.PIPE
    )
    try:
        eventually(lambda: [m["id"] for m in status("one")["managers"]] == ["guest"])
        program("scale", "one", "a=1")
        with scalable.connect("one") as client:
            assert client.submit(abs, -9, tag="a").result(timeout=60) == 9
    finally:
        manager.send_signal(signal.SIGTERM)
        manager.communicate(timeout=60)
    assert manager.returncode == 0
    assert list(elsewhere.rglob("*.json")) == []  # no credential is left behind
    program("down", "one", "--yes")
    nothing_is_left(tmp_path)


def test_one_file_brings_several_managers(place, tmp_path, eventually):
    place(
        "",
        MANIFEST + "managers:\n"
        "  - {target: local, priority: 0, limits: {a: 1}}\n"
        "  - {target: second, priority: 1}\n",
    )
    up("--name", "one")
    eventually(lambda: status("one")["pools"]["a"]["running"] == 2)
    shares = {m["id"]: m["pools"]["a"]["running"] for m in status("one")["managers"]}
    assert shares == {"local": 1, "second": 1}
    kill("managers/second/manager.json", "one")
    with scalable.connect("one") as client:
        assert client.gather(client.map(abs, range(-8, 0), tag="a")) == list(range(8, 0, -1))
    program("down", "one", "--yes")
    nothing_is_left(tmp_path)


def test_adding_a_manager_disturbs_nothing(place, tmp_path, eventually):
    def note(file, number):
        with Path(file).open("a") as starts:
            starts.write(f"{number}\n")
        time.sleep(0.5)

    up("--name", "one")
    with scalable.connect("one") as client:
        before = {p.pid for p in processes_of(tmp_path, "scalable.worker.program")}
        starts = tmp_path / "starts"
        futures = client.map(note, [str(starts)] * 12, range(12), tag="a")
        more = attach("one", "--target", "second", "--id", "more", "--priority", "1")
        eventually(lambda: len(status("one")["managers"]) == 2)
        program("scale", "one", "a=3", "b=1")
        client.gather(futures)
        assert sorted(map(int, starts.read_text().split())) == list(range(12))
        assert before <= {p.pid for p in processes_of(tmp_path, "scalable.worker.program")}
        more.send_signal(signal.SIGTERM)
        more.communicate(timeout=60)
    program("down", "one", "--yes")


def test_idle_workers_of_a_manager_that_stays_away_retire(place, tmp_path, eventually):
    place("manager_grace: 2s")
    up("--name", "one")
    with scalable.connect("one") as client:
        busy = client.submit(time.sleep, 6, tag="a")
        eventually(client.processing)
        kill("managers/local/manager.json", "one")
        eventually(lambda: len(processes_of(tmp_path, "scalable.worker.program")) == 1, timeout=60)
        assert busy.result(timeout=60) is None  # whose only copy is there
        busy.release()
        eventually(lambda: processes_of(tmp_path, "scalable.worker.program") == [], timeout=60)
    program("down", "one", "--yes")
    nothing_is_left(tmp_path)


BURST = """\
version: 1
project: {name: tests}
targets:
  local: {provider: local, processes: true, max_workers: 4, spill_after: 3s}
  slow:
    provider: local
    processes: true
    max_workers: 4
    overlay: slow
overlays:
  slow:
    components:
      a: {preload_script: never.py}
components:
  a: {cpus: 1, workers: 2}
managers:
  - {target: slow, priority: 0}
  - {target: local, priority: 1}
"""


@pytest.mark.slow
def test_a_place_that_does_not_deliver_bursts_to_the_next(place, tmp_path, eventually):
    (tmp_path / "never.py").write_text("import time\ntime.sleep(600)\n")
    place("", BURST)
    up("--name", "one", "--no-wait")
    eventually(lambda: status("one")["pools"]["a"]["running"] == 2, timeout=90)
    shares = {m["id"]: m["pools"]["a"]["running"] for m in status("one")["managers"]}
    assert shares == {"slow": 0, "local": 2}
    program("down", "one", "--yes")
    nothing_is_left(tmp_path)


def test_an_embedded_cluster_is_listed_while_its_process_lives(place, tmp_path, eventually):
    with ScalableSession.from_yaml("scalable.yaml", "threads"):

        def runs(row):
            counts = {tag: pool["running"] for tag, pool in row["pools"].items()}
            return row["embedded"] and (row["state"], counts) == ("running", {"a": 2, "b": 1})

        # The status is written in the background.
        eventually(lambda: any(map(runs, listed().values())))
        (row,) = listed().values()
        for refused in (("scale", row["name"], "a=1"), ("down", row["name"], "--yes")):
            done = program(*refused)
            assert done.returncode == 5
            assert "lives in process" in done.stderr
    assert listed() == {}
