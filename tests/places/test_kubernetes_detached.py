"""Detached clusters on Kubernetes: used from any machine that has access to the place."""

import asyncio
import base64
import importlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
import uuid

import pytest
from place_objects import JOBS, KINDS, RBAC, asked, objects

import scalable
from scalable import ScalableSession, settings
from scalable.client.attached import AttachedCluster
from scalable.clusters.creation import DetachOptions
from scalable.clusters.remote import RemoteCluster
from scalable.errors import UnknownClusterError
from scalable.model import ClusterRecord
from scalable.providers.kubernetes import objects as drafts
from scalable.providers.kubernetes.api import KubernetesApi, Resource
from scalable.records import ClusterDirectory, find
from scalable.runs.reading import read_run
from scalable.session.detached import create_cluster
from scalable.session.request import Request
from verbs import program, read

pytest.importorskip("kubernetes_asyncio")

MANIFEST = """
version: 1
project: {name: harvest}
targets:
  k: {provider: kubernetes, image: "site/scalable:1"}
components:
  crops: {cpus: 1, memory: 500M, workers: 2}
  statistics: {cpus: 1, memory: 400M, workers: 1}
"""
WORK = """
import os
import time
from pathlib import Path


def beside():
    return (Path(__file__).parent / "table.csv").read_text()


def where(_):
    print("said by a call")
    return os.uname().nodename


def after(seconds, value):
    time.sleep(seconds)
    return value
"""
NAME = "harvest-k"


@pytest.fixture(scope="module")
def place(kubernetes_bed, tmp_path_factory):
    """A directory with the manifest, and the kubeconfig of a user."""
    directory = tmp_path_factory.mktemp("detached")
    (directory / "scalable.yaml").write_text(MANIFEST)
    (directory / "work.py").write_text(WORK)
    (directory / "table.csv").write_text("1,2")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.syspath_prepend(directory)
        patch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig()))
        patch.setenv("XDG_STATE_HOME", str(directory / "creator"))
        yield directory


@pytest.fixture(scope="module")
def work(place):
    """The module of the workflow, whose files are not in the pods."""
    return importlib.import_module("work")


@pytest.fixture(scope="module")
def cluster(place):
    """A cluster that a process started which has ended."""
    done = up(place, NAME)
    assert done.returncode == 0, done.stderr
    yield NAME
    program("down", NAME, "--yes")


@pytest.fixture
def elsewhere(cluster, tmp_path, monkeypatch):
    """Another machine: nothing is known there but the kubeconfig."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pods(bed, role):
    """Names of the pods with a role."""
    return sorted(name for kind, name in objects(bed) if kind == "pods" and role in name)


def up(place, name):
    """Start a cluster, and return when its workers run."""
    manifest = str(place / "scalable.yaml")
    return program("up", manifest, "--target", "k", "--name", name, "--yes", here=name != NAME)


def test_the_live_page_is_served_through_the_tunnel_until_it_is_interrupted(elsewhere):
    """From another machine: nothing is open on it before, and nothing is left afterwards."""
    command = [sys.executable, "-m", "scalable", "dashboard", NAME]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        try:
            page = it.stdout.readline().strip()
            assert page.startswith("http://127.0.0.1:"), it.stderr.read()
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with opener.open(page, timeout=60) as answer:
                assert "Timeline of workers" in answer.read().decode()
            base = page.partition("?")[0]
            with opener.open(f"{base}overview.json?since=0", timeout=60) as answer:
                told = json.load(answer)
            assert told["page"]["name"] == NAME
            (pools,) = told["page"]["parts"]["pools"]
            counts = {row["key"]: row["values"][1] for row in pools["table"]["rows"]}
            assert counts == {"crops": 2, "statistics": 1}
            assert told["pages_of_dask"] is False
            with opener.open(f"{base}call.json?key=none", timeout=60) as answer:
                assert json.load(answer)["state"] == "unknown"
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(f"{base}overview.json", timeout=60)
            it.send_signal(signal.SIGINT)
            assert it.wait(60) == 0
        finally:
            it.kill()
        words = it.stderr.read()
    assert "until you press Ctrl-C" in words
    assert "Traceback" not in words
    with pytest.raises(OSError, match="refused"):
        opener.open(base, timeout=60)


# From another machine -----------------------------------------------------------------------------


def test_a_cluster_is_listed_and_shown_where_nothing_is_known_of_it(elsewhere):
    (row,) = read("list")["clusters"]
    assert (row["name"], row["provider"], row["state"]) == (NAME, "kubernetes", "running")
    status = read("status", NAME)
    assert {tag: pool["running"] for tag, pool in status["pools"].items()} == {
        "crops": 2,
        "statistics": 1,
    }
    assert [manager["state"] for manager in status["managers"]] == ["attached"]


def test_a_client_connects_by_the_name_and_its_code_is_carried(elsewhere, work):
    with scalable.connect(NAME) as client:
        names = client.gather(client.map(work.where, range(4), tag="crops"))
        assert all("-crops-" in name for name in names)
    with AttachedCluster.from_name(f"kubernetes/{NAME}") as found:
        assert found.pools["crops"].running == 2


def test_a_client_that_connects_carries_the_files_of_its_workflow(
    elsewhere, work, place, monkeypatch
):
    monkeypatch.chdir(place)
    with scalable.connect(NAME) as client:
        assert client.submit(work.beside, tag="crops").result(timeout=60) == "1,2"


def test_the_copy_of_the_credentials_is_the_users_alone(elsewhere):
    read("list")
    directory = find(NAME)
    assert isinstance(directory, RemoteCluster)
    for path in [*directory.path.rglob("*"), directory.path]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_logs_are_read_from_the_pods_and_each_line_once(elsewhere, work):
    with scalable.connect(NAME) as client:
        assert client.submit(work.where, 0, tag="statistics").result()
    first = program("logs", NAME, "--pool", "statistics").stdout
    again = program("logs", NAME, "--pool", "statistics").stdout
    assert first.count("said by a call") == again.count("said by a call") == 1
    for name in ("scheduler", "manager-k"):
        assert "is attached" in program("logs", NAME, "--worker", name).stdout


def test_pools_are_scaled_from_another_machine(elsewhere, eventually):
    for count in (1, 2):
        assert program("scale", NAME, f"crops={count}").returncode == 0
        eventually(lambda n=count: read("status", NAME)["pools"]["crops"]["running"] == n)


def test_a_manager_that_died_is_started_again_and_takes_over_the_workers(
    elsewhere, kubernetes_bed, work, eventually
):
    before = pods(kubernetes_bed, "-crops-")
    with scalable.connect(NAME) as client:
        call = client.submit(work.after, 3, "done", tag="crops")
        for name in pods(kubernetes_bed, "-manager-"):
            kubernetes_bed.kill(name)
        assert call.result(timeout=60) == "done"

    def attached():
        return [m["state"] for m in read("status", NAME)["managers"]] == ["attached"]

    eventually(attached)
    assert pods(kubernetes_bed, "-crops-") == before


def test_a_deleted_pod_of_a_manager_leaves_the_workers_to_the_next(
    elsewhere, kubernetes_bed, work, eventually
):
    def failures():
        jobs = asked(kubernetes_bed, lambda api: api.request("GET", JOBS))["items"]
        return sum(job["status"].get("failed", 0) for job in jobs)

    def manager():
        return read("status", NAME)["managers"][0]

    def running(role):
        found = asked(kubernetes_bed, lambda api: api.request("GET", Resource("pods", "default")))
        return [
            pod["metadata"]["name"]
            for pod in found["items"]
            if role in pod["metadata"]["name"] and pod["status"]["phase"] == "Running"
        ]

    eventually(lambda: manager()["state"] == "attached")
    before, failed = pods(kubernetes_bed, "-crops-"), failures()
    # A pod of an earlier process, which has failed, may still be there.
    (gone,) = running("-manager-")
    with scalable.connect(NAME) as client:
        call = client.submit(work.after, 3, "moved", tag="crops")
        asked(kubernetes_bed, lambda api: api.delete(Resource("pods", "default"), gone))
        assert call.result(timeout=60) == "moved"
    scaled = program("scale", NAME, "statistics=2")
    assert scaled.returncode == 0, scaled.stderr
    eventually(lambda: read("status", NAME)["pools"]["statistics"]["running"] == 2, timeout=90)
    assert program("scale", NAME, "statistics=1").returncode == 0
    assert pods(kubernetes_bed, "-crops-") == before
    # The next process has not been refused meanwhile.
    assert failures() == failed + 1


def test_resume_starts_no_manager_that_runs(elsewhere, eventually):
    # The container of one that was killed may still wait for its next start.
    eventually(lambda: program("manager", "restart", NAME).stdout == "all managers are running\n")


def test_calls_are_recorded_and_the_record_is_copied(elsewhere, place, work):
    session = ScalableSession.from_yaml(place / "scalable.yaml", target="k")
    client = session.start(detach=True)
    assert client.gather(client.map(work.after, [0] * 3, range(3), tag="crops")) == [0, 1, 2]
    history = session.scaling_history
    path = session.run_path
    session.close()
    record = read_run(path)
    assert "after" in {row["task_name"] for row in record.tasks if row["state"] == "succeeded"}
    assert {row["source"] for row in history} >= {"plan"}
    assert path.parent == settings.runs_dir().absolute()


def test_a_second_cluster_of_the_name_is_refused(elsewhere, place, kubernetes_bed):
    """Two machines know nothing of each other: the place decides."""
    before = objects(kubernetes_bed)
    session = ScalableSession.from_yaml(place / "scalable.yaml", target="k")
    client = session.start(detach=True, name=NAME)
    try:
        assert session.cluster.id == read("list")["clusters"][0]["id"]
    finally:
        client.close()
        session.close()
    assert {kind for kind, _ in objects(kubernetes_bed) - before} <= {"pods"}


def test_another_user_of_the_namespace_neither_sees_nor_ends_it(
    elsewhere, kubernetes_bed, monkeypatch
):
    before = objects(kubernetes_bed)
    monkeypatch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig("bob")))
    assert read("list")["clusters"] == []
    with pytest.raises(UnknownClusterError):
        find(NAME)
    program("down", NAME, "--yes")
    # Kubernetes may start a manager of an earlier test again meanwhile.
    kept = {each for each in before if each[0] != "pods"}
    assert kept <= objects(kubernetes_bed)
    assert pods(kubernetes_bed, "-crops-")


def test_what_others_write_into_the_namespace_is_not_believed(
    elsewhere, kubernetes_bed, monkeypatch
):
    """A user who may write there makes objects with the labels of another."""
    monkeypatch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig("bob")))
    mine = find_id(kubernetes_bed)
    forged = ClusterRecord(
        id=mine, name="forged", provider="local", target="k", project="p", owner="alice",
        created_at="2026-01-01T00:00:00+00:00", remote=True,
    )  # fmt: skip

    async def forge(api):
        other = str(uuid.uuid4())
        labels = {
            "scalable/cluster": other, "scalable/owner": "alice", "scalable/role": "scheduler"
        }  # fmt: skip
        pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "forged", "labels": labels},
            "spec": {"suspend": True, "template": {"spec": pod}},
        }
        made = await api.create(Resource("jobs", "default", "batch/v1"), json.dumps(job).encode())
        owner = {
            "apiVersion": "batch/v1", "kind": "Job", "name": "forged",
            "uid": made["metadata"]["uid"],
        }  # fmt: skip
        place = {"root_uid": made["metadata"]["uid"], "root_name": "forged"}
        texts = {"record.json": json.dumps(forged.to_dict()), "place.json": json.dumps(place)}
        data = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        for name, more in (("f1", {}), ("f2", {"spec.json": "//79"})):
            body = {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
                "data": data | more,
            }
            await api.create(Resource("secrets", "default"), json.dumps(body).encode())

    async def as_bob():
        api = KubernetesApi(None)
        try:
            await forge(api)
        finally:
            await api.close()

    asyncio.run(as_bob())
    monkeypatch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig()))
    assert [row["name"] for row in read("list")["clusters"]] == [NAME]
    assert find(mine).record().provider == "kubernetes"

    async def remove(api):
        await api.delete(Resource("jobs", "default", "batch/v1"), "forged")

    asked(kubernetes_bed, remove)


def find_id(bed):
    """The id of the shared cluster."""
    (name,) = [name for kind, name in objects(bed) if kind == "services" and "scalable-" in name]
    return name.removeprefix("scalable-")


def test_credentials_are_in_secrets_alone(cluster, kubernetes_bed):
    key = next(
        line for line in find(NAME).pem()["tls_client_key"].splitlines() if "-----" not in line
    )

    async def bodies(api):
        texts = {}
        for plural, group in KINDS.items():
            answer = await api.request("GET", Resource(plural, "default", group))
            texts[plural] = json.dumps(answer)
        return texts

    found = asked(kubernetes_bed, bodies)
    secret = json.loads(found.pop("secrets"))
    held = [
        base64.b64decode(text).decode(errors="replace")
        for item in secret["items"]
        for text in (item.get("data") or {}).values()
    ]
    assert any(key in text for text in held)
    assert not any(key in text for text in found.values())


def test_what_plan_shows_is_what_up_sends_byte_for_byte(
    kubernetes_bed, place, tmp_path, monkeypatch
):
    sent = []
    create = KubernetesApi.create

    async def remembered(self, resource, body):
        sent.append(body.decode())
        return await create(self, resource, body)

    monkeypatch.setattr(KubernetesApi, "create", remembered)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    manifest = MANIFEST.replace("name: harvest", "name: shown")
    (tmp_path / "scalable.yaml").write_text(manifest)
    request = Request.read(tmp_path / "scalable.yaml", "k")
    plan = request.plan()
    made = create_cluster(request, plan, DetachOptions())
    try:
        facts = json.loads((made.path / "place.json").read_text())
        nonce = re.search(r'manager-k-([0-9a-f]{6})"', "".join(sent)).group(1)
        checksum = re.compile(r"scalable-(owner|alice)-shown-k(-[0-9a-f]{6})*")
        expected = [
            checksum.sub("ROOT", text)
            .replace(drafts.ROOT_UID, facts["root_uid"])
            .replace(drafts.DETACHED_ID, made.id)
            .replace(drafts.DETACHED_ID[:8], made.id[:8])
            .replace(f"manager-k-{drafts.NONCE}", f"manager-k-{nonce}")
            .replace(drafts.OWNER, "alice")
            for text in (body.decode() for body in request.objects(plan, detached=True).values())
        ]
        seen = [checksum.sub("ROOT", text) for text in sent if json.loads(text)["kind"] != "Pod"]
        shown = [text for text in expected if json.loads(text)["kind"] != "Pod"]
        assert [_without_files(text) for text in seen] == [_without_files(t) for t in shown]
        units = [t for t in expected if json.loads(t)["kind"] == "Pod"]
        assert len(units) == 3
    finally:
        program("down", "shown-k", "--yes", env=os.environ | {"XDG_STATE_HOME": str(tmp_path)})


def _without_files(text):
    thing = json.loads(text)
    if thing["kind"] == "Secret":
        thing["data"] = dict.fromkeys(thing["data"], "")
        return json.dumps(thing, indent=2, sort_keys=True)
    return text


# Managers -----------------------------------------------------------------------------------------


def as_bob(bed, directory, monkeypatch, more):
    """A user who may make no roles, with options of the target."""
    monkeypatch.setenv("KUBECONFIG", str(bed.kubeconfig("bob")))
    monkeypatch.setenv("XDG_STATE_HOME", str(directory / "state"))
    (directory / "scalable.yaml").write_text(MANIFEST.replace("image:", f"{more}, image:"))
    return directory / "scalable.yaml"


def test_a_manager_is_a_process_of_this_machine_where_asked_and_takes_over(
    kubernetes_bed, tmp_path, monkeypatch, work, eventually
):
    manifest = as_bob(kubernetes_bed, tmp_path, monkeypatch, "manager: here")
    done = program("up", str(manifest), "--target", "k", "--name", "mine", "--yes")
    assert done.returncode == 0, done.stderr
    mark = find("mine").id[:8]
    try:
        made = {kind for kind, name in objects(kubernetes_bed) if mark in name}
        assert "secrets" in made
        assert "roles" not in made
        with scalable.connect("mine") as client:
            before = client.gather(client.map(work.where, range(4), tag="crops"))
        (identity,) = find("mine").managers().values()
        os.kill(identity["pid"], 9)
        eventually(lambda: "started manager k" in program("manager", "restart", "mine").stdout)
        with scalable.connect("mine") as client:
            after = client.gather(client.map(work.where, range(4), tag="crops"))
        assert set(before) == set(after)
    finally:
        assert program("down", "mine", "--yes").returncode == 0
    eventually(lambda: not [name for _, name in objects(kubernetes_bed) if mark in name])


def test_an_account_of_the_administrator_serves_a_user_without_rights_to_make_one(
    kubernetes_bed, tmp_path, monkeypatch, work, eventually
):
    manifest = as_bob(kubernetes_bed, tmp_path, monkeypatch, "start_timeout: 5m")
    refused = program("up", str(manifest), "--target", "k", "--name", "ours", "--yes", here=True)
    assert refused.returncode == 4
    assert "may not create serviceaccounts" not in refused.stderr  # "edit" may
    assert "may not create roles" in refused.stderr
    assert 'resources: ["rolebindings"]' in refused.stderr
    eventually(lambda: not [n for _, n in objects(kubernetes_bed) if "bob" in n])
    checked = program("validate", str(manifest), "--target", "k", "--check")
    assert "manager_service_account" in checked.stdout + checked.stderr

    async def make(api):
        base = {"metadata": {"name": "managers", "namespace": "default"}}
        for plural, group, body in (
            ("serviceaccounts", "", {"apiVersion": "v1", "kind": "ServiceAccount"}),
            ("rolebindings", RBAC, {
                "apiVersion": RBAC,
                "kind": "RoleBinding",
                "subjects": [
                    {"kind": "ServiceAccount", "name": "managers", "namespace": "default"}
                ],
                "roleRef": {"apiGroup": RBAC.partition("/")[0], "kind": "ClusterRole", "name": "edit"},
            }),
        ):  # fmt: skip
            await api.create(Resource(plural, "default", group), json.dumps(body | base).encode())

    asked(kubernetes_bed, make)
    as_bob(kubernetes_bed, tmp_path, monkeypatch, "manager_service_account: managers")
    done = program("up", str(manifest), "--target", "k", "--name", "ours", "--yes", here=True)
    assert done.returncode == 0, done.stderr
    with scalable.connect("ours") as client:
        assert client.submit(work.where, 0, tag="crops").result()
    assert program("down", "ours", "--yes").returncode == 0


def test_a_second_manager_adds_workers_of_this_machine(elsewhere, work, eventually):
    """The bed's pods reach this machine; on most real networks they do not."""
    manifest = elsewhere / "scalable.yaml"
    manifest.write_text(
        MANIFEST.replace("targets:", "targets:\n  here: {provider: local, processes: true}")
    )
    attach = ["manager", "attach", NAME, "--target", "here", "--id", "here"]
    command = [sys.executable, "-m", "scalable", *attach, "--max", "crops=1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as manager:
        try:
            eventually(lambda: {m["id"] for m in read("status", NAME)["managers"]} == {"k", "here"})
            with scalable.connect(NAME) as client:
                assert program("scale", NAME, "crops=3").returncode == 0
                eventually(lambda: read("status", NAME)["pools"]["crops"]["running"] == 3)
                hosts = client.gather(client.map(work.where, range(12), tag="crops"))
                assert os.uname().nodename in hosts
                assert any("-crops-" in host for host in hosts)
                values = client.map(work.after, [0.1] * 30, range(30), tag="crops")
                manager.terminate()
                assert client.gather(values) == list(range(30))
        finally:
            manager.terminate()
            assert manager.wait(60) == 0, manager.stderr.read()
    program("scale", NAME, "crops=2")


def test_an_image_without_the_package_is_told_and_nothing_is_left(
    kubernetes_bed, tmp_path, monkeypatch, eventually
):
    kubernetes_bed.content("site/other:*", packages=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "scalable.yaml").write_text(MANIFEST.replace("site/scalable:1", "site/other:1"))
    done = up(tmp_path, "bad")
    assert done.returncode == 5
    assert "does not have the package scalable" in done.stderr
    assert "does not have the package scalable" in read("status", "bad")["reason"]
    assert program("down", "bad", "--yes").returncode == 0


def test_a_namespace_without_rights_leaves_nothing_to_remove(kubernetes_bed, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    text = MANIFEST.replace("image:", "namespace: resaerch, image:")
    (tmp_path / "scalable.yaml").write_text(text)
    done = up(tmp_path, "nowhere")
    assert done.returncode == 4
    assert "continues" not in done.stderr
    assert "nowhere" not in {row["name"] for row in read("list")["clusters"]}


# Ends ---------------------------------------------------------------------------------------------


def test_down_from_another_machine_leaves_nothing_anywhere(
    kubernetes_bed, place, tmp_path, monkeypatch, eventually
):
    assert up(place, "short").returncode == 0
    mine = {name for _, name in objects(kubernetes_bed)}
    there = find("short").id
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    done = program("down", "short", "--yes")
    assert done.returncode == 0, done.stderr
    assert any(there[:8] in name for name in mine)
    # What the root object owns is collected behind it.
    eventually(lambda: not any(there[:8] in name for _, name in objects(kubernetes_bed)))
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "creator"))
    assert "short" not in [row["name"] for row in read("list")["clusters"]]
    assert not (ClusterDirectory.parent() / there).exists()


def test_a_second_container_in_the_pods_keeps_nothing(
    kubernetes_bed, place, tmp_path, monkeypatch, eventually
):
    forever = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.2; done"]
    mesh = {"name": "mesh", "image": "site/mesh:1", "command": forever}
    (tmp_path / "pod.yaml").write_text(json.dumps({"spec": {"containers": [mesh]}}))
    text = MANIFEST.replace('scalable:1"', 'scalable:1", pod_template: pod.yaml')
    (tmp_path / "scalable.yaml").write_text(text.replace("workers: 2", "workers: 1"))
    monkeypatch.chdir(tmp_path)
    warnings = ScalableSession.from_yaml(target="k").check().warnings
    assert "also have the container mesh" in "".join(each.message for each in warnings)
    names = ("--target", "k", "--name", "meshed", "--yes", "--idle-timeout", "30s")
    started = program("up", *names, here=True)
    assert started.returncode == 0, started.stderr
    mark = find("meshed").id[:8]
    (lost,) = pods(kubernetes_bed, f"{mark}-crops")
    with scalable.connect("meshed") as client:
        crash = client.submit(os._exit, 3, tag="crops", pure=False)
        eventually(lambda: pods(kubernetes_bed, f"{mark}-crops") not in ([], [lost]))
        crash.cancel()
        eventually(lambda: lost not in pods(kubernetes_bed, f"{mark}-crops"))

    def left():
        return [name for _, name in objects(kubernetes_bed) if mark in name or "meshed" in name]

    eventually(lambda: not left(), timeout=110)


def test_a_deleted_scheduler_is_told(kubernetes_bed, place, eventually):
    manifest = str(place / "scalable.yaml")
    started = program("up", manifest, "--target", "k", "--name", "deleted", "--yes", here=True)
    assert started.returncode == 0, started.stderr
    (scheduler,) = [n for n in pods(kubernetes_bed, "deleted") if "manager" not in n]
    asked(kubernetes_bed, lambda api: api.delete(Resource("pods", "default"), scheduler))
    eventually(lambda: read("status", "deleted")["state"] == "failed", timeout=60)
    eventually(lambda: scheduler not in pods(kubernetes_bed, "deleted"))
    assert "its pod was deleted" in read("status", "deleted")["reason"]
    assert program("down", "deleted", "--yes").returncode == 0


def test_a_killed_scheduler_is_told_and_its_workers_go(kubernetes_bed, place, eventually):
    assert up(place, "doomed").returncode == 0
    mark = find("doomed").id[:8]
    (scheduler,) = [n for n in pods(kubernetes_bed, "doomed") if "manager" not in n]
    kubernetes_bed.kill(scheduler)
    eventually(lambda: read("status", "doomed")["state"] == "failed", timeout=60)
    eventually(
        lambda: not [n for n in pods(kubernetes_bed, mark) if "-crops-" in n or "-stat" in n],
        timeout=120,
    )
    assert program("down", "doomed", "--yes").returncode == 0
    eventually(lambda: not [n for _, n in objects(kubernetes_bed) if mark in n or "doomed" in n])
