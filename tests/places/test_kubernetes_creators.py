"""Creators of detached clusters on Kubernetes that are killed: a whole cluster is left, or none."""

import json
import os
import subprocess
import sys

import pytest
from place_objects import objects, root_of

import scalable
from verbs import garbage, listed, program, read

pytest.importorskip("kubernetes_asyncio")

MANIFEST = """
version: 1
project: {name: torn}
targets:
  k: {provider: kubernetes, image: "IMAGE", start_timeout: START}
components:
  crops: {cpus: 1, memory: 500M, workers: 1}
"""
#: The command `up` in a process for each point, killed when it has created some objects, or when its
#: manager was asked for. What they import is imported once.
CREATORS = """
import os, sys
from pathlib import Path
import kubernetes_asyncio.client, kubernetes_asyncio.config
from scalable.cli.main import main
from scalable.cli.commands import up
from scalable.clusters import creation
from scalable.providers.kubernetes import provider, remote, render, services
from scalable.providers.kubernetes.api import KubernetesApi
from scalable.session import detached, request

create, left = KubernetesApi.create, 0


async def dying(self, resource, body):
    global left
    made = await create(self, resource, body)
    left -= 1
    manages = resource.name == "jobs" and b"-manager-" in body
    if left == 0 or (point == "managed" and manages):
        os.kill(os.getpid(), 9)
    return made


KubernetesApi.create = dying
creators = {}
for point in sys.argv[1:]:
    creator = os.fork()
    if not creator:
        os.chdir(point)
        os.environ["XDG_STATE_HOME"] = os.getcwd()
        if point.isdigit():
            left, render.MARGIN_S, render.FAILED_KEPT_S = int(point), 1, 1
        sys.exit(main(["up", "--target", "k", "--name", f"torn-{point}", "--yes"]))
    creators[creator] = point
for _ in list(creators):
    creator, status = os.wait()
    print("ended", creators[creator], os.waitstatus_to_exitcode(status), flush=True)
"""
#: Points at which no manager has been asked for, and the one at which all is there.
TORN, WHOLE = ("1", "3", "6"), "managed"


@pytest.fixture(scope="module")
def creators(kubernetes_bed, tmp_path_factory):
    """Run and kill a creator for each point, side by side; return point -> its state directory."""
    base = tmp_path_factory.mktemp("creators")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig()))
        kubernetes_bed.image("slow/*", delay=600)  # no program runs while the deadline comes
        for point in (*TORN, WHOLE):
            (base / point).mkdir()
            start, image = ("1s", "slow/image:1") if point in TORN else ("2m", "site/scalable:1")
            text = MANIFEST.replace("START", start).replace("IMAGE", image)
            (base / point / "scalable.yaml").write_text(text)
        done = subprocess.run(
            [sys.executable, "-c", CREATORS, *TORN, WHOLE], cwd=base, check=False,
            capture_output=True, text=True, timeout=170,
        )  # fmt: skip
        killed = {f"ended {point} -9" for point in (*TORN, WHOLE)}
        assert killed <= set(done.stdout.splitlines()), done.stdout + done.stderr
        yield {point: base / point for point in (*TORN, WHOLE)}


@pytest.mark.parametrize("point", TORN)
def test_a_cluster_without_a_manager_is_gone_with_its_deadline(
    creators, point, kubernetes_bed, monkeypatch, eventually
):
    name = f"torn-{point}"
    eventually(lambda: not [each for each in objects(kubernetes_bed) if name in each[1]])
    monkeypatch.setenv("XDG_STATE_HOME", str(creators[point]))
    eventually(lambda: name not in listed() or listed()[name]["state"] in ("creating", "failed"))
    # Its creator's machine knows it until the remains are cleared away.
    for record in creators[point].rglob("record.json"):
        os.utime(record, (0, 0))
    garbage("--yes")
    assert name not in listed()
    left = {
        json.loads(record.read_text())["name"] for record in creators[point].rglob("record.json")
    }
    assert left <= {f"torn-{WHOLE}"}  # the copy of a cluster that can be used


def test_a_cluster_with_a_manager_is_usable_and_has_no_deadline(
    creators, kubernetes_bed, monkeypatch, tmp_path, eventually
):
    name = f"torn-{WHOLE}"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # another machine
    assert listed()[name]["state"] in ("starting", "running")
    with scalable.connect(name) as client:
        assert client.submit(abs, -1, tag="crops").result(timeout=120) == 1
    root = root_of(kubernetes_bed, name)
    assert "activeDeadlineSeconds" not in root["spec"]
    assert read("status", name)["state"] == "running"
    assert program("down", name, "--yes").returncode == 0
    eventually(lambda: not [each for each in objects(kubernetes_bed) if name in each[1]])
