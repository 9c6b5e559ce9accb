"""Pools whose workers are jobs of a real Slurm."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from scalable import ClusterError, ProviderError, ScalableClient, ScalableSession, SlurmCluster
from scalable.providers.slurm.api import Slurm


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    """An empty directory, and a state directory of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def double(x):
    time.sleep(0.2)
    return 2 * x, os.environ["SLURM_JOB_ID"]


def leave_a_mark(directory, i, seconds):
    """Leaves a file for each start, to count them."""
    with open(os.path.join(directory, f"{i}-{os.getpid()}-{time.time_ns()}"), "w"):
        time.sleep(seconds)
    return i, os.urandom(8)


def starts(directory):
    return sorted(int(name.split("-")[0]) for name in os.listdir(directory))


@pytest.fixture
def cluster(on_slurm):
    """A cluster without pools."""
    made = SlurmCluster(queue="batch", walltime="00:30:00", interface="lo")
    yield made
    made.close()


def test_the_imperative_interface(on_slurm, empty_directory):
    cluster = SlurmCluster(queue="batch", account="GCIMS", walltime="04:00:00", interface="lo")
    cluster.add_container(tag="demeter", cpus=10, memory="20G", dirs={"/tmp": "/work"})
    cluster.add_workers(n=5, tag="demeter")
    client = ScalableClient(cluster)
    futures = [client.submit(double, s, tag="demeter") for s in range(50)]
    results = client.gather(futures)
    assert [value for value, _ in results] == [2 * s for s in range(50)]
    assert len({job for _, job in results}) > 1
    cluster.remove_workers(n=3, tag="demeter")
    assert cluster.pools["demeter"].wanted == 2
    client.close()
    cluster.close()
    cluster.close()
    assert not [p for p in empty_directory.rglob("*") if p.is_file()]


def test_a_worker_maps_to_its_job_and_back(cluster, on_slurm, eventually):
    cluster.add_container(tag="a")
    cluster.add_workers(n=3, tag="a")
    eventually(lambda: cluster.pools["a"].running == 3)
    elements = {
        f"{e.job}_{e.index}": e for e in cluster.sync(Slurm().queue) if e.name.endswith("@a")
    }
    for name in cluster.manager.inventory.names("a"):
        element = elements[cluster.job_of(name)]
        assert element.name == f"{cluster.name}.scalable-{cluster.manager.incarnation}.embedded@a"
        assert name == f"a-{cluster.manager.incarnation}-{element.index}"


def test_jobs_are_found_by_the_uid_not_by_the_name_of_the_user(on_slurm, eventually, monkeypatch):
    for name in ("USER", "LOGNAME"):
        monkeypatch.setenv(name, "nobody")  # as after sudo -E or su
    for name in ("UNSEEN_GRACE_S", "SLOWEST_POLL_S"):
        monkeypatch.setattr(f"scalable.providers.slurm.launcher.{name}", 0.5)
    with SlurmCluster(queue="batch", walltime="00:30:00", interface="lo") as cluster:
        cluster.add_container(tag="a")
        cluster.add_workers(n=1, tag="a")
        eventually(lambda: cluster.pools["a"].running == 1)
        worker, polls = cluster.manager.inventory.names("a"), cluster.slurm.commands
        eventually(lambda: cluster.slurm.commands > polls + 4)
        assert cluster.manager.inventory.names("a") == worker


def test_a_suspended_job_is_neither_shown_as_running_nor_replaced(
    cluster, on_slurm, eventually, monkeypatch
):
    monkeypatch.setattr("scalable.providers.slurm.launcher.SLOWEST_POLL_S", 0.5)
    cluster.add_container(tag="a")
    cluster.add_workers(n=1, tag="a")
    eventually(lambda: cluster.pools["a"].running == 1)
    worker = cluster.manager.inventory.names("a")
    job = cluster.job_of(worker[0])
    on_slurm.command("scontrol", "suspend", job)
    eventually(lambda: cluster.pools["a"].running == 0)
    pool = cluster.pools["a"]
    assert (pool.suspended, pool.reason) == (1, None)
    assert "suspended (SUSPENDED)" in pool.waiting
    on_slurm.command("scontrol", "resume", job)
    eventually(lambda: cluster.pools["a"].running == 1)
    assert cluster.manager.inventory.names("a") == worker


def test_a_hundred_workers_are_one_array(cluster, eventually):
    cluster.add_container(tag="a")
    before = cluster.slurm.commands
    cluster.add_workers(n=100, tag="a")
    assert cluster.slurm.commands - before <= 3  # one sbatch, the array size, perhaps a poll
    jobs = {cluster.job_of(name).split("_")[0] for name in cluster.manager.inventory.names("a")}
    assert len(jobs) == 1
    cluster.scale("a", 2)
    eventually(lambda: cluster.pools["a"].running == 2)


def test_pools_of_different_shape_and_prefix_do_not_touch_each_other(cluster, eventually):
    cluster.add_container(tag="gcam", cpus=2)
    cluster.add_container(tag="gcam-large", cpus=8)
    cluster.add_workers(n=2, tag="gcam")
    cluster.add_workers(n=1, tag="gcam-large")
    eventually(lambda: cluster.pools["gcam-large"].running == 1)
    kept = cluster.manager.inventory.names("gcam-large")
    cluster.remove_workers(n=2, tag="gcam")
    eventually(lambda: cluster.pools["gcam"].running == 0)
    assert cluster.manager.inventory.names("gcam-large") == kept
    eventually(lambda: cluster.pools["gcam-large"].running == 1)
    with pytest.raises(ClusterError, match="unknown tag 'gca'; known tags: 'gcam', 'gcam-large'"):
        cluster.remove_workers(n=1, tag="gca")


def test_those_that_wait_in_the_queue_go_first(cluster, eventually):
    cluster.add_container(tag="wide", cpus=64)
    cluster.add_workers(n=6, tag="wide")
    eventually(lambda: cluster.pools["wide"].running == 4)
    sentences = ("Resources: it waits for nodes", "Priority: jobs of higher priority")
    eventually(lambda: any(s in (cluster.pools["wide"].waiting or "") for s in sentences))
    alive = {
        n for n, u in cluster.manager.inventory.existing().items() if u.connected_at is not None
    }
    cluster.remove_workers(n=2, tag="wide")
    eventually(lambda: cluster.pools["wide"].launching == 0)
    assert set(cluster.manager.inventory.names("wide")) == alive


MANIFEST = """
version: 1
project: {name: forecast}
targets:
  hpc: {provider: slurm, queue: batch, walltime: "00:20:00", interface: lo}
components:
  model: {cpus: 4, memory: 2G, workers: 2, env: {GREETING: "it's here"}}
  post: {workers: 1}
"""


def greeting(_):
    return os.environ["GREETING"], os.environ["OMP_NUM_THREADS"], os.environ["SLURM_JOB_ID"]


def test_a_session_on_slurm_is_the_same_workflow(on_slurm, empty_directory):
    (empty_directory / "scalable.yaml").write_text(MANIFEST)
    session = ScalableSession.from_yaml(target="hpc")
    with session as client:
        model = [client.submit(greeting, i, tag="model") for i in range(8)]
        count = client.submit(len, model, tag="post")
        assert count.result(timeout=120) == 8
        assert {r[:2] for r in client.gather(model)} == {("it's here", "4")}
    rows = (session.run_path / "workers.jsonl").read_text()
    assert rows.count('"started"') == 3
    logs = list((session.run_path / "logs").iterdir())
    named = {log.name: log.resolve() for log in logs if log.is_symlink()}
    assert {name.split("-")[0] for name in named} == {"model", "post"}
    assert set(named.values()) == {log for log in logs if not log.is_symlink()}
    assert len(named) == 3
    assert not list((empty_directory / "state" / "scalable").glob("*/[!.]*"))


# What goes wrong on a cluster ---------------------------------------------------------------------


def until_there(path):
    while not os.path.exists(path):
        time.sleep(0.05)


def test_cancelling_a_busy_worker_s_job_four_times_loses_nothing(
    cluster, on_slurm, tmp_path, eventually
):
    over = tmp_path / "over"
    cluster.add_container(tag="a")
    cluster.add_workers(n=2, tag="a")
    with ScalableClient(cluster) as client:
        future = client.submit(until_there, str(over), tag="a")
        cancelled = set()
        for _ in range(4):
            busy = eventually(lambda: busy_worker(cluster) - cancelled)
            (name,) = busy
            on_slurm.command("scancel", cluster.job_of(name))
            cancelled.add(name)
            eventually(lambda: name not in cluster.manager.inventory.existing())  # noqa: B023
        over.touch()
        assert future.result(timeout=120) is None
        assert len(cancelled) == 4
        eventually(lambda: cluster.pools["a"].running == 2)


def busy_worker(cluster):
    return {str(ws.name) for ws in cluster.scheduler.workers.values() if ws.executing}


def test_a_node_that_goes_down_is_survived(own_slurm, tmp_path, eventually):
    slurm = own_slurm()
    marks = tmp_path / "marks"
    marks.mkdir()
    with SlurmCluster(queue="batch", walltime="00:30:00", interface="lo") as cluster:
        cluster.add_container(tag="a", cpus=40)  # one worker a node
        cluster.add_workers(n=3, tag="a")
        with ScalableClient(cluster) as client:
            eventually(lambda: cluster.pools["a"].running == 3)
            futures = client.map(leave_a_mark, [str(marks)] * 12, range(12), [1.0] * 12, tag="a")
            time.sleep(1.5)
            slurm.node_down("node1")
            assert [i for i, _ in client.gather(futures)] == list(range(12))
            eventually(lambda: cluster.pools["a"].running == 3)
    assert set(starts(marks)) == set(range(12))


@pytest.mark.slow
def test_a_controller_that_is_away_for_a_while_costs_nothing(
    own_slurm, tmp_path, eventually, caplog
):
    slurm = own_slurm()
    marks = tmp_path / "marks"
    marks.mkdir()
    with SlurmCluster(queue="batch", walltime="00:30:00", interface="lo") as cluster:
        cluster.add_container(tag="a")
        cluster.add_workers(n=2, tag="a")
        with ScalableClient(cluster) as client:
            eventually(lambda: cluster.pools["a"].running == 2)
            futures = client.map(leave_a_mark, [str(marks)] * 60, range(60), [0.7] * 60, tag="a")
            slurm.stop_controller()
            cluster.scale("a", 3)
            time.sleep(20)
            assert cluster.pools["a"].reason is None
            slurm.start_controller()
            assert [i for i, _ in client.gather(futures)] == list(range(60))
            eventually(lambda: cluster.pools["a"].running == 3, timeout=120)
        assert len(cluster.manager.inventory.existing()) == 3
        assert len(slurm.jobs()) == 3
    assert starts(marks) == list(range(60))
    assert "it is retried" in caplog.text or "states are read again" in caplog.text


def test_a_drained_partition_is_named_while_calls_wait(own_slurm, eventually, caplog):
    slurm = own_slurm()
    slurm.drain("batch")
    with SlurmCluster(queue="batch", walltime="00:30:00", interface="lo") as cluster:
        cluster.add_container(tag="a")
        cluster.add_workers(n=1, tag="a")
        with ScalableClient(cluster) as client:
            future = client.submit(double, 4, tag="a")
            eventually(lambda: "1 task is queued for pool 'a'" in caplog.text)
            assert "Required partition not available" in caplog.text
            slurm.undrain("batch")
            assert future.result(timeout=120)[0] == 8


def test_two_clusters_of_one_user_do_not_mix(on_slurm, eventually):
    with (
        SlurmCluster(queue="batch", walltime="00:30:00", interface="lo") as one,
        SlurmCluster(queue="batch", walltime="00:30:00", interface="lo") as two,
    ):
        assert one.scheduler_address != two.scheduler_address
        for cluster in (one, two):
            cluster.add_container(tag="a")
            cluster.add_workers(n=2, tag="a")
        for cluster in (one, two):
            eventually(lambda: cluster.pools["a"].running == 2)  # noqa: B023
        one.close()
        time.sleep(2)
        assert two.pools["a"].running == 2
        assert len(on_slurm.jobs()) == 2


@pytest.mark.parametrize(
    ("options", "component", "words"),
    [
        ({"queue": "nowhere"}, {}, "invalid partition"),
        ({}, {"memory": "900G"}, "node configuration is not available"),
        ({"directives": ("--no-such-option",)}, {}, "no-such-option"),
    ],
)
def test_a_refused_submission_fails_at_once_with_slurms_message(
    on_slurm, options, component, words
):
    given = {"queue": "batch", "walltime": "00:30:00", "interface": "lo"} | options
    with SlurmCluster(**given) as cluster:
        cluster.add_container(tag="a", **component)
        with pytest.raises(ProviderError, match=words):
            cluster.add_workers(n=3, tag="a")
        assert cluster.pools["a"].wanted == 0
        assert on_slurm.jobs() == []


def test_a_missing_interface_lists_those_that_exist(on_slurm):
    with pytest.raises(
        ProviderError, match=r"no network interface 'ib9'.*choose one of: .*lo \(127"
    ):
        SlurmCluster(interface="ib9")


def test_without_slurm_the_question_is_where_we_are(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with SlurmCluster(interface="lo") as cluster:
        cluster.add_container(tag="a")
        with pytest.raises(ProviderError, match="not on PATH.*run this on a login node"):
            cluster.add_workers(n=1, tag="a")


SCRIPT = """
import os, time
from scalable import ScalableClient, SlurmCluster
cluster = SlurmCluster(queue="batch", walltime="00:30:00", interface="lo")
cluster.add_container(tag="wide", cpus=64)
cluster.add_workers(n=5, tag="wide")
while cluster.pools["wide"].running < 4:
    time.sleep(0.1)
print("up", flush=True)
time.sleep(600)
"""


def test_a_killed_client_leaves_no_job_and_no_secret(own_slurm, empty_directory, eventually):
    slurm = own_slurm()
    client = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
    try:
        assert client.stdout.readline() == "up\n"
        assert len(slurm.jobs()) == 5
        client.send_signal(signal.SIGKILL)
        # The fifth starts when the others are gone, finds no scheduler, and ends without work.
        eventually(lambda: not slurm.jobs(), timeout=120)
    finally:
        client.kill()
        client.communicate(timeout=30)
    eventually(lambda: not list(empty_directory.glob("state/scalable/*/*")))


def test_the_scripts_and_logs_hold_no_secret(cluster, eventually):
    cluster.add_container(tag="a")
    cluster.add_workers(n=1, tag="a")
    eventually(lambda: cluster.pools["a"].running == 1)
    needle = cluster.security.tls_worker_key.splitlines()[1]
    script = cluster.scripts()["a"]
    assert needle not in script
    config = next(word for word in script.split() if word.endswith("a.json"))
    assert os.stat(config).st_mode & 0o077 == 0
    assert os.stat(os.path.dirname(config)).st_mode & 0o077 == 0
    with open(config) as file:
        assert needle in json.load(file)["security"]["tls_worker_key"]


@pytest.mark.slow
def test_a_walltime_is_planned_for_and_not_suffered(on_slurm, tmp_path, eventually):
    """One minute, calls of 15 s: each is executed once, on several generations of workers."""
    marks = tmp_path / "marks"
    marks.mkdir()
    (tmp_path / "scalable.yaml").write_text(
        "version: 1\nproject: {name: wall}\n"
        'targets: {hpc: {provider: slurm, queue: batch, walltime: "00:01:00", interface: lo}}\n'
        "components: {model: {workers: 2}}\n"
        "tasks: {run: {component: model, count: 16, duration: 15s}}\n"
    )
    session = ScalableSession.from_yaml()
    with session as client:
        futures = client.map(leave_a_mark, [str(marks)] * 16, range(16), [15.0] * 16, task="run")
        results = client.gather(futures)
    assert [i for i, _ in results] == list(range(16))
    assert starts(marks) == list(range(16))
    workers = (session.run_path / "workers.jsonl").read_text()
    assert workers.count("its walltime is nearly over") >= 2
    assert "lost" not in workers


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        (
            "queue: batch",
            "queue: nowhere",
            "targets.hpc.queue",
            "known partitions: batch, requeue, scavenge, short, tight",
        ),
        ('"00:20:00"', '"8-00:00:00"', "targets.hpc.walltime", "the limit is 7-00:00:00"),
        ("memory: 2G", "memory: 900G", "components.model.memory", "the largest node has"),
        ("cpus: 4", "cpus: 400", "components.model.cpus", "the largest node has 64"),
        ("interface: lo", "interface: ib7", "targets.hpc.interface", "choose one of:.*lo"),
        (
            "cpus: 4",
            "mounts: {/no/such/place: /x}",
            "components.model.mounts",
            "/no/such/place does not exist",
        ),
    ],
)
def test_a_live_check_finds_what_this_slurm_cannot_give(
    on_slurm, empty_directory, old, new, place, words
):
    (empty_directory / "scalable.yaml").write_text(MANIFEST.replace(old, new))
    session = ScalableSession.from_yaml()
    assert session.validate().ok
    (found,) = session.check().errors
    assert found.dotted_path.startswith(place)
    assert re.search(words, found.render())
    assert found.line is not None


def test_a_live_check_finds_nothing_in_a_good_request(on_slurm, empty_directory):
    (empty_directory / "scalable.yaml").write_text(MANIFEST)
    assert ScalableSession.from_yaml().check().ok
    done = subprocess.run(
        [sys.executable, "-m", "scalable", "validate", "--check"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "scalable.yaml is valid for target hpc\n"), (
        done.stderr
    )


def test_the_same_script_runs_on_slurm_from_the_command_line(on_slurm, empty_directory):
    (empty_directory / "scalable.yaml").write_text(MANIFEST)
    (empty_directory / "mymodel.py").write_text("def run(x):\n    return 2 * x\n")
    (empty_directory / "workflow.py").write_text(
        "import mymodel\nfrom scalable import ScalableSession\n"
        "with ScalableSession.from_yaml() as client:\n"
        "    client.wait_for_workers(3)\n"
        "    doubled = [client.submit(mymodel.run, i, tag='model') for i in range(4)]\n"
        "    print(client.submit(sum, doubled, tag='post').result())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "scalable", "run", "--target", "hpc"],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("12\n")
    assert ["model", "2", "2", "2"] in map(str.split, done.stdout.splitlines())


def test_workers_keep_to_the_range_of_ports(on_slurm, eventually):
    options = {"queue": "batch", "walltime": "00:30:00", "interface": "lo"}
    with SlurmCluster(**options, worker_port_range="41000-41050") as cluster:
        cluster.add_container(tag="a")
        cluster.add_workers(n=2, tag="a")
        eventually(lambda: cluster.pools["a"].running == 2)
        ports = {int(address.rsplit(":", 1)[1]) for address in cluster.scheduler.workers}
        assert ports < set(range(41000, 41051))


def test_a_pool_whose_jobs_die_at_once_is_degraded_with_their_last_words(
    on_slurm, tmp_path, monkeypatch
):
    monkeypatch.setattr("scalable.manager.pools.backoff_s", lambda _: 0.0)
    script = tmp_path / "broken.py"
    script.write_text("raise RuntimeError('no licence for the model')\n")
    with SlurmCluster(queue="batch", walltime="00:30:00", interface="lo") as cluster:
        cluster.add_container(tag="a", preload_script=str(script))
        cluster.add_workers(n=1, tag="a")
        with ScalableClient(cluster) as client:
            future = client.submit(double, 1, tag="a")
            with pytest.raises(ClusterError, match="no licence for the model"):
                future.result(timeout=150)
        assert cluster.pools["a"].failed == 1
        assert on_slurm.jobs() == []


def test_the_cluster_closes_inside_a_running_event_loop(on_slurm):
    async def work():
        cluster = SlurmCluster(queue="batch", walltime="00:30:00", interface="lo")
        cluster.add_container(tag="a")
        cluster.add_workers(n=1, tag="a")
        with ScalableClient(cluster) as client:
            assert client.submit(double, 4, tag="a").result(timeout=120)[0] == 8
        cluster.close()
        cluster.close()

    asyncio.run(work())


def test_an_adaptive_pool_grows_from_zero(cluster, eventually):
    cluster.add_container(tag="a")
    with ScalableClient(cluster) as client:
        cluster.adapt("a", minimum=0, maximum=2)
        futures = [client.submit(double, s, tag="a") for s in range(20)]
        assert [value for value, _ in client.gather(futures)] == [2 * s for s in range(20)]
        assert 1 <= cluster.pools["a"].wanted <= 2
        assert cluster.manager.controller.managers.pools()["a"].slots == 1
        cluster.adapt("a", 0, 0)
        del futures
        eventually(lambda: cluster.pools["a"].running == 0)


def test_the_script_of_a_pool_is_what_sbatch_gets(on_slurm):
    with SlurmCluster(queue="batch", walltime="00:30:00", interface="lo") as cluster:
        with pytest.raises(ClusterError, match="there is no pool 'm'; known pools: none"):
            cluster.job_script("m")
        cluster.add_container(tag="m", memory="100M", setup=["cd /"], python="/opt/python3")
        script = cluster.job_script("m")
    assert "#SBATCH --partition=batch\n" in script
    assert '\n    echo "setup failed with' in script
    assert " bash /opt/python3 -m scalable.worker.program " in script


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wall_time": "1:00"}, "has no option 'wall_time' (did you mean walltime?)"),
        ({"nodes": 3}, "the options are queue, account, walltime"),
        ({"walltime": "soon"}, "walltime: "),
    ],
)
def test_a_wrong_keyword_names_the_right_ones(options, message):
    with pytest.raises(ClusterError) as caught:
        SlurmCluster(**options)
    assert message in str(caught.value)
    assert "pydantic" not in str(caught.value)


def step(_):
    done = subprocess.run(
        ["srun", "-n1", "--overlap", "echo", "ran"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_calls_start_steps_where_the_session_is_in_a_job(on_slurm, empty_directory, monkeypatch):
    (empty_directory / "scalable.yaml").write_text(MANIFEST)
    # As in a step of another job; srun refuses two of these together.
    outer = {"JOB_ID": "1", "MEM_PER_CPU": "50", "MEM_PER_GPU": "50", "CPU_BIND": "map_cpu:9"}
    for name, value in (outer | {"NTASKS": "5", "STEP_ID": "0"}).items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SBATCH_CPUS_PER_GPU", "3")
    monkeypatch.setenv("SLURM_CLUSTERS", "nowhere")
    with ScalableSession.from_yaml() as client:
        assert client.submit(step, 1, tag="model").result(timeout=90) == "ran\n"


def job_id(_):
    return os.environ["SLURM_JOB_ID"]


def test_a_target_has_at_most_so_many_jobs_at_once(on_slurm, empty_directory, eventually):
    (empty_directory / "scalable.yaml").write_text(
        "version: 1\nproject: {name: few}\n"
        "targets:\n  hpc: {provider: slurm, queue: batch, interface: lo, at_most: 2}\n"
        "components:\n  a: {memory: 200M, workers: 2}\n  b: {memory: 200M, workers: 1}\n"
    )
    session = ScalableSession.from_yaml()
    with session as client:
        client.wait_for_workers(2, timeout=120)
        pools = session.cluster.pools
        eventually(lambda: any("at_most allows 2 jobs" in str(pools[t].waiting) for t in pools))
        assert len(on_slurm.jobs()) == 2
        session.scale("a", 1)
        assert client.submit(job_id, 1, tag="b").result(timeout=120)
        assert len(on_slurm.jobs()) == 2
