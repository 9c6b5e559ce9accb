"""Real containers of podman, made of an empty image and this machine's programs."""

import asyncio
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import uuid

import distributed
import pytest

from scalable import ScalableClient, ScalableSession, SlurmCluster
from scalable.containers import (
    ContainerRequest,
    check_image,
    container_name,
    probe_versions,
    read_host_python,
    read_versions,
    render_batch,
    render_command,
    render_removal,
)
from scalable.errors import ProviderError
from scalable.manager.launcher import UnitState
from scalable.manager.pools import ManagerSite
from scalable.model import ComponentSpec, DeploymentSpec
from scalable.providers.local import LocalProvider
from scalable.providers.local.options import LocalOptions
from scalable.providers.local.processes import find_scratch, programs
from scalable.worker.config import WorkerConfig

INSTALL = "apt-get install --no-install-recommends podman runc catatonit"
INITS = ("/usr/libexec/podman/catatonit", "/usr/bin/catatonit", "/usr/bin/tini")

# Root's podman asks for more than a machine that is a container itself may give.
CONFIGURATION = """\
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc=4096:4096"]
init_path = "{init}"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""
ODD = 'it\'s "q", $HOME `id` * \n#; {x} & é'
IMMUNE = "trap '' TERM; echo ready; while :; do sleep 0.1; done"


def not_here():
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        return "they need root on Linux"
    missing = [name for name in ("podman", "runc") if not shutil.which(name)]
    if not any(os.access(path, os.X_OK) for path in INITS):
        missing.append("catatonit")
    return f"{', '.join(missing)} not installed; run: {INSTALL}" if missing else None


def podman(*words):
    return subprocess.run(
        ["podman", *words], capture_output=True, text=True, timeout=60, check=True
    )


def configure(directory, patch):
    """Let podman run here, or skip the test."""
    if reason := not_here():
        said = f"NOT TESTED WITH REAL CONTAINERS: {reason}"
        if os.environ.get("SCALABLE_REQUIRE_SLURM") == "1":
            pytest.fail(said)
        pytest.skip(said)
    configuration = directory / "containers.conf"
    files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 20000)
    init = next(path for path in INITS if os.access(path, os.X_OK))
    configuration.write_text(CONFIGURATION.format(files=files, init=init))
    patch.setenv("CONTAINERS_CONF", str(configuration))


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """An image of nothing but empty directories."""
    directory = tmp_path_factory.mktemp("podman")
    with pytest.MonkeyPatch.context() as patch:
        configure(directory, patch)
        name = f"localhost/scalable-test:{os.getpid()}"
        podman("import", empty_root(directory / "root.tar"), name)
        yield name
        podman("rmi", "--force", name)


def empty_root(path):
    with tarfile.open(path, "w") as archive:
        for name in ("dev", "etc", "proc", "root", "run", "sys", "tmp", "usr", "var/tmp"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
            archive.addfile(entry, io.BytesIO())
        for name in ("bin", "lib", "lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(entry)
    return str(path)


def containers():
    names = podman("ps", "--all", "--format", "{{.Names}}").stdout.split()
    return [name for name in names if name.startswith(f"scalable-test-{os.getpid()}")]


@pytest.fixture
def request_for(image, request):
    """Containers with this machine's libraries and Python; none may be left."""

    def make(mounts=None, **changes):
        unit = f"test-{os.getpid()}-{request.node.name}"
        libraries = {} if not os.path.isdir("/usr/lib64") else {"/usr": "/usr"}
        return ContainerRequest(
            "podman",
            image,
            container_name(unit),
            mounts={**(libraries or {"/usr": "/usr", "/lib": "/lib"}), **(mounts or {})},
            host_python=read_host_python(),
            **changes,
        )

    yield make
    left = containers()
    for name in left:
        podman("rm", "--force", "--time", "0", name)
    assert left == []


@pytest.fixture
def start():
    """Start commands; none of them is left."""
    started = []

    def do(command):
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        started.append(process)
        return process

    yield do
    for process in started:
        process.kill()
        process.wait(timeout=30)
        process.stdin.close()
        process.stdout.close()


def run(command):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_command_sees_what_was_asked_for_and_nothing_else(request_for, tmp_path, monkeypatch):
    monkeypatch.setenv("LOADED_OUTSIDE", "1")
    work = tmp_path / f"work {ODD.replace(chr(10), '')}"
    work.mkdir()
    program = (
        "import distributed, json, os, sys; open('made', 'w').write('inside');"
        "print(json.dumps([os.getcwd(), dict(os.environ), sys.executable, sys.argv[1]]))"
    )
    request = request_for({str(work): "/a work,dir"}, workdir="/a work,dir", env={"ODD": ODD})
    done = run(render_command(request, [request.python, "-c", program, ODD]))
    assert done.returncode == 0, done.stderr
    directory, environment, executable, argument = json.loads(done.stdout)
    assert (directory, executable, argument) == ("/a work,dir", sys.executable, ODD)
    assert environment["ODD"] == ODD
    assert "LOADED_OUTSIDE" not in environment
    assert (work / "made").read_text() == "inside"


def test_the_hosts_python_cannot_be_written_to(request_for):
    request = request_for()
    program = "import distributed, os, sys; open(os.path.join(sys.prefix, 'trace'), 'w')"
    done = run(render_command(request, [request.python, "-c", program]))
    assert "Read-only file system" in done.stderr


def test_the_exit_code_is_the_commands(request_for):
    assert run(render_command(request_for(), ["sh", "-c", "exit 7"])).returncode == 7


def test_an_entry_starts_the_command(request_for):
    request = request_for(entry=("env", "FROM=entry"))
    assert run(render_command(request, ["sh", "-c", "echo $FROM"])).stdout == "entry\n"


def test_the_python_inside_is_asked_what_it_has(request_for):
    assert probe_versions(request_for()) == read_versions()


def test_an_image_is_looked_for(request_for, image):
    request = request_for()
    check_image(request)
    missing = ContainerRequest("podman", "localhost:1/scalable-missing:1", request.name)
    with pytest.raises(ProviderError, match="localhost:1/scalable-missing:1.*cannot be fetched"):
        check_image(missing)


def test_a_worker_computes_inside(request_for, start, tmp_path):
    scratch = tmp_path / "cluster" / "worker"
    scratch.mkdir(parents=True)
    request = request_for({str(tmp_path): str(tmp_path)}, env={"PLACE": "inside"})
    command = [request.python, "-m", "scalable.worker.program"]

    async def compute():
        async with (
            distributed.Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0") as scheduler,
            distributed.Client(scheduler.address, asynchronous=True) as client,
        ):
            process = start(render_command(request, command))
            config = WorkerConfig(scheduler.address, "inside-0", local_directory=str(scratch))
            process.stdin.write(config.to_line())
            process.stdin.flush()
            assert await client.submit(os.getenv, "PLACE").result(timeout=30) == "inside"
            process.stdin.close()
            return await asyncio.to_thread(process.wait, 30)

    assert asyncio.run(compute()) == 128 + signal.SIGKILL
    assert not scratch.exists()


def read_line(process, expected):
    assert process.stdout.readline() == expected


def test_standard_input_is_a_lifeline(request_for, start, eventually):
    """The container learns that its client is gone, however that ended."""
    process = start(render_command(request_for(), ["cat"]))
    process.stdin.write(b"here\n")
    process.stdin.flush()
    read_line(process, b"here\n")
    process.kill()
    eventually(lambda: containers() == [], "the container to end after its client")


def test_a_polite_end_reaches_the_command(request_for, start):
    script = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.1; done"
    process = start(render_command(request_for(), ["sh", "-c", script]))
    read_line(process, b"ready\n")
    time.sleep(1)  # podman shows output shortly before it passes signals on
    process.terminate()
    assert process.wait(timeout=30) == 3


def test_a_container_that_does_not_end_is_removed(request_for, start):
    request = request_for()
    process = start(render_command(request, ["sh", "-c", IMMUNE]))
    read_line(process, b"ready\n")
    process.kill()
    assert containers() == [request.name]
    assert run(render_removal(request)).returncode == 0
    assert containers() == []
    assert run(render_removal(request)).returncode == 0, "gone already is removed"


def batch(request, script, start, **options):
    """Start a job as Slurm does: the script's end, in a group of its own."""
    text = render_batch(request, ["sh", "-c", script], **options)
    return start(["bash", "-euc", text])


@pytest.mark.parametrize("wholly", [False, True], ids=["script", "group"])
def test_a_cancelled_job_leaves_nothing(request_for, start, wholly):
    script = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.1; done"
    process = batch(request_for(), script, start)
    read_line(process, b"ready\n")
    if wholly:
        os.killpg(process.pid, signal.SIGTERM)
    else:
        process.terminate()
    code = process.wait(timeout=30)
    # In a group podman itself has the signal too, and may not learn the code of the command.
    assert wholly or code == 3
    assert containers() == []


def test_a_job_whose_command_does_not_end_is_ended(request_for, start):
    process = batch(request_for(), IMMUNE, start, grace_s=1)
    read_line(process, b"ready\n")
    began = time.monotonic()
    process.terminate()
    assert process.wait(timeout=30) == 128 + signal.SIGKILL
    assert 1 <= time.monotonic() - began < 10
    assert containers() == []


def test_a_job_hands_on_variables_and_exit_code(request_for, start, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    process = batch(
        request_for(), 'echo "$SLURM_JOB_ID ${NOT_SET-none}"; exit 5', start,
        inherit=["SLURM_JOB_ID", "NOT_SET"],
    )  # fmt: skip
    read_line(process, b"4711 none\n")
    assert process.wait(timeout=30) == 5


def where_am_i(_):
    with open("/proc/1/comm") as init:
        return init.read().strip(), os.environ.get("GREETING"), os.listdir("/given")


@pytest.fixture
def component(image, tmp_path):
    """A component that runs in the image, with this machine's libraries and Python."""
    given = tmp_path / "given"
    given.mkdir()
    (given / "input.csv").touch()
    return {
        "image": image,
        "runtime": "host",
        "env": {"GREETING": "from outside"},
        "mounts": {"/usr": "/usr", "/etc": "/etc", str(given): "/given"},
        "workers": 2,
    }


def all_containers():
    return podman("ps", "--all", "--format", "{{.Names}}").stdout.split()


def test_local_workers_run_in_containers_that_end_with_them(component, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    manifest = {
        "version": 1,
        "project": {"name": "boxed"},
        "targets": {"local": {"provider": "local", "processes": True, "containers": "podman"}},
        "components": {"model": component, "post": {}},
    }
    (tmp_path / "scalable.json").write_text(json.dumps(manifest))
    before = set(all_containers())
    with ScalableSession.from_yaml(tmp_path / "scalable.json") as client:
        seen = set(client.gather(client.map(where_am_i_flat, range(6), tag="model")))
        assert len(seen) == 1
        (init, greeting, files) = seen.pop()
        assert init in ("podman-init", "catatonit", "tini")
        assert (greeting, files) == ("from outside", ("input.csv",))
        assert client.submit(os.getpid, tag="post").result(timeout=60) > 0
        assert len(set(all_containers()) - before) == 2
    assert set(all_containers()) == before


def test_detached_workers_in_containers_are_taken_over_and_removed(
    component, tmp_path, monkeypatch, eventually
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = set(all_containers())
    values = {key: value for key, value in component.items() if key != "workers"}
    options = LocalOptions(processes=True, containers="podman").model_dump()
    spec = DeploymentSpec(
        "boxed", "local", "local", {"model": ComponentSpec("model", **values)}, options=options
    )
    cluster_id = str(uuid.uuid4())

    async def compute():
        async with (
            distributed.Scheduler(host="127.0.0.1", dashboard_address="127.0.0.1:0") as scheduler,
            distributed.Client(scheduler.address, asynchronous=True) as client,
        ):
            directory = tmp_path / "state" / "scalable" / "clusters" / cluster_id / "managers" / "m"
            site = ManagerSite(
                cluster_id=cluster_id, manager="m", incarnation="m-1", scheduler=scheduler.address,
                security=None, directory=directory, log_dir=None, sys_path=(), detached=True,
            )  # fmt: skip
            names = [f"model-{os.getpid()}-0", f"model-{os.getpid()}-1"]
            (first,) = LocalProvider().pools(spec, site)
            await first.launcher.launch(dict.fromkeys(names, first.template))
            await client.wait_for_workers(2, timeout=60)
            assert await client.submit(os.getenv, "GREETING").result() == "from outside"
            (second,) = LocalProvider().pools(spec, site)
            assert await second.launcher.adopt() == dict.fromkeys(names, "model")
            # Without its client a container is nobody's child.
            next(p for p in programs(directory) if p.process.name() == "podman").process.kill()
            while all(o.state is UnitState.RUNNING for o in second.launcher.observe().values()):
                await asyncio.sleep(0.05)
            await second.launcher.stop(names)
            first.launcher.observe()
            assert list(programs(directory)) == []

    asyncio.run(compute())
    assert set(all_containers()) == before
    assert find_scratch(cluster_id) == ()


def where_am_i_flat(i):
    init, greeting, files = where_am_i(i)
    return init, greeting, tuple(files)


def test_an_image_that_is_missing_is_named_before_there_is_any_worker(component, tmp_path):
    pools = {"model": {**component, "image": "localhost/no-such-image:1"}}
    session = ScalableSession.local(pools, processes=True)
    session.spec.options["containers"] = "podman"
    with pytest.raises(ProviderError, match="no-such-image"):
        session.start()


def test_jobs_run_in_containers_that_end_with_them(
    component, on_slurm, tmp_path, monkeypatch, eventually
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = set(all_containers())
    mounts = component["mounts"]
    with SlurmCluster(
        queue="batch", walltime="00:30:00", interface="lo", container_runtime="podman"
    ) as cluster:
        cluster.add_container(
            tag="model", image=component["image"], runtime="host", dirs=mounts, env=component["env"]
        )
        cluster.add_workers(n=2, tag="model")
        with ScalableClient(cluster) as client:
            seen = {
                client.submit(where_am_i_flat, i, tag="model").result(timeout=120) for i in range(3)
            }
            assert seen == {(next(iter(seen))[0], "from outside", ("input.csv",))}
            assert len(set(all_containers()) - before) >= 1
    eventually(lambda: set(all_containers()) == before)
