"""Calls through a tunnel to a scheduler in Kubernetes that is cut again and again."""

import asyncio
import contextlib
import importlib
import json
import subprocess
import sys
import threading
from collections import Counter

import pytest
from place_objects import grant, objects
from pods import core, ended, pod

from scalable import ScalableSession
from scalable.client.tunnel import TunnelClosedError
from scalable.errors import ProviderError
from scalable.protocol.streams import RELAY_PORT
from scalable.providers.kubernetes.api import KubernetesApi
from scalable.providers.kubernetes.permissions import DETACHED_RULES
from scalable.providers.kubernetes.remote import PodDial
from scalable.records.directory import pem_fields
from verbs import program, read

MANIFEST = """
version: 1
project: {name: cuts}
targets:
  k:
    provider: kubernetes
    image: site/scalable:1
    reconnect_within: 20s
    mounts: {"hostpath://COUNTS": /counts}
components:
  crops: {cpus: 1, memory: 1G, workers: 2}
"""
WORK = """
import os
import time


def counted(number):
    with open("/counts/numbers", "a") as file:
        file.write(f"{number}\\n")
    return -number


def sum_of(data):
    return len(data), sum(data[::1000])


def until_ended():
    for _ in range(6000):
        time.sleep(0.01)
"""
MB = 10**6


@pytest.fixture(scope="module")
def session(kubernetes_bed, tmp_path_factory):
    """A session with two workers, which have a directory of this machine."""
    directory = tmp_path_factory.mktemp("tunnel")
    (directory / "counts").mkdir(mode=0o777)
    manifest = MANIFEST.replace("COUNTS", str(directory / "counts"))
    (directory / "scalable.yaml").write_text(manifest)
    (directory / "cut_work.py").write_text(WORK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.syspath_prepend(directory)
        patch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig()))
        session = ScalableSession.from_yaml(target="k")
        session.start().wait_for_workers(2, timeout=120)
        session.counts = directory / "counts" / "numbers"
        try:
            yield session
        finally:
            session.close()


@pytest.fixture
def work(session):
    """The module of the workflow."""
    return importlib.import_module("cut_work")


@pytest.fixture
def cut(session, kubernetes_bed):
    """Cut all tunnels again and again while a block runs, at least three times."""

    @contextlib.contextmanager
    def cutting(seconds):
        stop, enough = threading.Event(), threading.Event()
        cuts = []

        def run():
            while not stop.wait(seconds):
                cuts.append(kubernetes_bed.cut_tunnels())
                if sum(cut > 0 for cut in cuts) >= 3:
                    enough.set()

        before = session.cluster.tunnel.tunnel.resumed
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield enough
        finally:
            stop.set()
            thread.join()
        assert session.cluster.tunnel.tunnel.resumed > before

    return cutting


def each_once(session, numbers):
    """Whether each call has run once; forgets them."""
    found = Counter(map(int, session.counts.read_text().split()))
    session.counts.unlink()
    return found == Counter(numbers)


def test_ten_thousand_calls_run_once_each_while_the_tunnel_is_cut(session, work, cut):
    numbers = range(10_000)
    with cut(0.5) as enough:
        assert list(session.client.pool(tag="crops").map(work.counted, numbers)) == [
            -n for n in numbers
        ]
        done = len(numbers)
        while not enough.is_set():
            more = range(done, done + 100)
            calls = [session.client.submit(work.counted, n, tag="crops") for n in more]
            assert session.client.gather(calls) == [-n for n in more]
            done += 100
    assert each_once(session, range(done))
    assert session.client.status == "running"


def test_large_arguments_and_results_arrive_while_the_tunnel_is_cut(session, work, cut):
    client, pool = session.client, session.client.pool(tag="crops")
    data = bytes(range(256)) * (30 * MB // 256)
    expected = (len(data), sum(data[::1000]))
    with cut(0.3) as enough:
        while not enough.is_set():
            assert pool.submit(work.sum_of, data).result(timeout=120) == expected
            made = client.submit(bytes, len(data), tag="crops", pure=False)
            assert made.result(timeout=120) == bytes(len(data))


def test_calls_go_on_although_the_api_server_was_away(session, work, kubernetes_bed, eventually):
    numbers = range(5000)
    results = session.client.pool(tag="crops").map(work.counted, numbers)
    kubernetes_bed.down(3)
    assert list(results) == [-n for n in numbers]
    assert each_once(session, numbers)
    eventually(lambda: session.cluster.tunnel.tunnel.fault is None)


@pytest.mark.slow
def test_calls_go_on_although_the_api_server_was_away_for_ten_seconds(
    session, work, kubernetes_bed, cut
):
    numbers = range(20_000)
    with cut(1.0):
        results = session.client.pool(tag="crops").map(work.counted, numbers)
        kubernetes_bed.down(10)
        assert list(results) == [-n for n in numbers]
    assert each_once(session, numbers)


def test_no_tunnel_is_tried_again_to_a_pod_that_has_ended_or_is_gone(session, kubernetes_bed):
    async def dial():
        async with core(kubernetes_bed) as core_api:
            await ended(core_api, pod("short", "pass"))
        api = KubernetesApi(None)
        try:
            with pytest.raises(TunnelClosedError, match="has stopped"):
                await PodDial(api, "default", "short", RELAY_PORT)()
            with pytest.raises(TunnelClosedError, match="no longer exists"):
                await PodDial(api, "default", "absent", RELAY_PORT)()
        finally:
            await api.close()

    asyncio.run(dial())


# Without permission -------------------------------------------------------------------------------

WORDS = "this user may not get pods/portforward in namespace 'walled'"


@pytest.fixture(scope="module")
def walled(kubernetes_bed, tmp_path_factory):
    """A directory of a user who may do all that is needed in a namespace but port-forwards."""
    grant(kubernetes_bed, "walled", DETACHED_RULES, without="pods/portforward")
    directory = tmp_path_factory.mktemp("walled")
    manifest = MANIFEST.partition("    reconnect_within")[0] + "    namespace: walled\n"
    (directory / "scalable.yaml").write_text(
        manifest + "components:\n  crops: {cpus: 1, memory: 1G, workers: 1}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.setenv("KUBECONFIG", str(kubernetes_bed.kubeconfig("nobody")))
        patch.setenv("XDG_STATE_HOME", str(directory))
        yield directory


def test_a_session_without_the_right_to_forward_ports_names_it(walled, kubernetes_bed):
    with pytest.raises(ProviderError) as caught:
        ScalableSession.from_yaml(target="k").start()
    assert WORDS in caught.value.message
    assert 'resources: ["pods/portforward"]' in caught.value.hint
    assert not objects(kubernetes_bed, "walled")


def test_up_without_the_right_to_forward_ports_names_it(walled, kubernetes_bed, eventually):
    done = program("up", "--target", "k", "--name", "walled", "--yes", here=True)
    assert done.returncode != 0
    assert WORDS in done.stderr
    status = read("status", "walled")
    assert (status["state"], WORDS in status["reason"]) == ("unreachable", True)
    assert WORDS in program("connect", "walled").stderr
    assert program("down", "walled", "--yes").returncode == 0
    eventually(lambda: not objects(kubernetes_bed, "walled"))


CLIENT = """
import json, sys, time
from distributed import Client
from cut_work import until_ended
from scalable import ScalableClient
from scalable.protocol.credentials import security_of
from scalable.protocol.streams import RELAY_PORT
from scalable.providers.kubernetes.remote import tunnel_to

pod, pem = json.loads(sys.stdin.readline())
port = tunnel_to(None, "default", pod, RELAY_PORT).open()
client = ScalableClient(f"tls://127.0.0.1:{port}", security=security_of(pem))
calls = [client.submit(until_ended, tag="crops", pure=False) for _ in range(2)]
while not any(client.processing().values()):
    time.sleep(0.1)
print("runs", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_the_calls_of_a_client_that_was_killed_are_ended(session, work, eventually):
    (pod,) = (name for name in session.cluster.site.watch.pods if "crops" not in name)
    killed = subprocess.Popen(
        [sys.executable, "-c", CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    killed.stdin.write(
        json.dumps([pod, dict(pem_fields(*session.cluster._credentials))]).encode() + b"\n"
    )
    killed.stdin.flush()
    assert killed.stdout.readline() == b"runs\n"
    killed.kill()
    killed.communicate()
    assert session.client.submit(work.counted, 1, tag="crops").result(timeout=50) == -1
