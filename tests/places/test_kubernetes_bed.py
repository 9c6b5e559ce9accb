"""The Kubernetes test bed runs pods for a client library that knows nothing of it."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("kubernetes_asyncio")
from kubernetes_asyncio import client
from kubernetes_asyncio.stream import WsApiClient
from pods import (
    SLEEP,
    SOON,
    core,
    ended,
    followed,
    holds,
    on_bed,
    pod,
    secret,
    unschedulable,
    until,
    waiting,
)


@on_bed
async def test_a_pod_runs_with_its_environment_and_its_secrets(bed, api):
    await api.create_namespaced_secret("default", secret("keys", word="open sesame"))
    code = "import os; print(os.environ['WORD'], open('/keys/word').read(), os.getpid())"
    environment = {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "word"}}}
    container = {"env": [environment], "volumeMounts": [{"name": "keys", "mountPath": "/keys"}]}
    volumes = [{"name": "keys", "secret": {"secretName": "keys"}}]
    status, log = await ended(api, pod("reads", code, container=container, volumes=volumes))
    assert (status.phase, log) == ("Succeeded", "open sesame open sesame 1\n")


@on_bed
async def test_a_pod_sees_neither_the_home_nor_the_temporary_files_of_this_machine(bed, api):
    code = "import pathlib, tempfile; print('seen:', *pathlib.Path(tempfile.gettempdir()).glob('kube*'))"
    assert list(bed.directory.parent.glob("kubernetes-bed-*"))
    assert (await ended(api, pod("alone", code)))[1] == "seen:\n"


@on_bed
async def test_the_exit_code_of_a_pod_is_reported(bed, api):
    status, _ = await ended(api, pod("fails", "raise SystemExit(3)"))
    state = status.container_statuses[0].state.terminated
    assert (status.phase, state.exit_code, state.reason) == ("Failed", 3, "Error")


@on_bed
async def test_a_pod_that_is_told_to_go_may_end_by_itself(bed, api):
    code = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("bye", flush=True)))
print("here", flush=True)
while True:
    signal.pause()
"""
    await api.create_namespaced_pod("default", pod("polite", code))
    await until(api, "polite", "Running")

    async def log(**options):
        return await api.read_namespaced_pod_log("polite", "default", **options)

    async def begun():
        return "here" in await log()

    await holds(begun)
    follow = await log(follow=True, _preload_content=False)
    await api.delete_namespaced_pod("polite", "default")
    async with asyncio.timeout(SOON):
        assert (await follow.read()).decode().split() == ["here", "bye"]

    async def gone():
        return not (await api.list_namespaced_pod("default", label_selector="app=polite")).items

    await holds(gone)


@on_bed
async def test_a_pod_that_uses_more_memory_than_its_limit_is_killed(bed, api):
    resources = {"limits": {"memory": "64Mi"}}
    code = f"kept = bytes(1) * 2**27; {SLEEP}"
    status, _ = await ended(api, pod("hungry", code, container={"resources": resources}))
    state = status.container_statuses[0].state.terminated
    assert (status.phase, state.reason, state.exit_code) == ("Failed", "OOMKilled", 137)


@on_bed
async def test_a_pod_ends_at_its_deadline(bed, api):
    status, _ = await ended(api, pod("brief", SLEEP, activeDeadlineSeconds=1))
    assert (status.phase, status.reason) == ("Failed", "DeadlineExceeded")


@on_bed
async def test_the_scheduler_says_why_a_pod_has_no_node(bed, api):
    asked = {"limits": {"cpu": "1000", "memory": "1Gi"}}
    body = pod("huge", SLEEP, container={"resources": asked})
    await api.create_namespaced_pod("default", body)
    status = await followed(api, "huge", unschedulable)
    assert unschedulable(status) == "0/2 nodes are available: 2 Insufficient cpu."
    await api.delete_namespaced_pod("huge", "default")


@on_bed
async def test_images_that_do_not_exist_are_told(bed, api):
    bed.image("nowhere/*", error="not found")
    await api.create_namespaced_pod("default", pod("lost", SLEEP, {}, {"image": "nowhere/it:1"}))
    status = await followed(api, "lost", lambda status: waiting(status) == "ImagePullBackOff")
    assert "nowhere/it:1" in status.container_statuses[0].state.waiting.message
    await api.delete_namespaced_pod("lost", "default", grace_period_seconds=0)


@on_bed
async def test_a_pod_whose_image_takes_long_can_be_deleted(bed, api):
    bed.image("slow/*", delay=600)
    await api.create_namespaced_pod("default", pod("slow", SLEEP, {}, {"image": "slow/it"}))
    await followed(api, "slow", lambda status: waiting(status) == "ContainerCreating")
    await api.delete_namespaced_pod("slow", "default")

    async def gone():
        return not (await api.list_namespaced_pod("default", label_selector="app=slow")).items

    await holds(gone)


@on_bed
async def test_a_pod_is_ready_when_its_probe_is_answered(bed, api):
    code = f"import os, socket; server = socket.create_server((os.environ['IP'], 7100)); {SLEEP}"
    address = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    container = {"env": [address], "readinessProbe": {"tcpSocket": {"port": 7100}}}
    await api.create_namespaced_pod("default", pod("probed", code, container=container))
    seen = []

    def ready(status):
        if status.phase == "Running":
            seen.append({c.type: c.status for c in status.conditions}["Ready"])
        return "True" in seen

    await followed(api, "probed", ready, "0")
    assert seen[-1] == "True"
    body = pod("hooked", SLEEP, container={"lifecycle": {"preStop": {"exec": {"command": ["x"]}}}})
    with pytest.raises(client.ApiException, match="does not serve"):
        await api.create_namespaced_pod("default", body)


@on_bed
async def test_a_container_that_fails_is_restarted_and_its_old_log_is_kept(bed, api):
    code = """
import os
turn = len(os.listdir("/kept"))
open(f"/kept/{turn}", "w")
print("turn", turn)
raise SystemExit(turn == 0)
"""
    container = {"volumeMounts": [{"name": "kept", "mountPath": "/kept"}]}
    volumes = [{"name": "kept", "emptyDir": {}}]
    body = pod("again", code, container=container, volumes=volumes, restartPolicy="OnFailure")
    await api.create_namespaced_pod("default", body)
    status = await until(api, "again", "Succeeded", "Failed")
    old = await api.read_namespaced_pod_log("again", "default", previous=True)
    assert (status.phase, status.container_statuses[0].restart_count, old) == (
        "Succeeded",
        1,
        "turn 0\n",
    )


@on_bed
async def test_a_container_waits_for_a_secret_of_its_environment(bed, api):
    container = {"envFrom": [{"secretRef": {"name": "later"}}]}
    code = "import os; print(os.environ['word'])"
    await api.create_namespaced_pod("default", pod("early", code, container=container))
    await followed(api, "early", lambda status: waiting(status) == "CreateContainerConfigError")
    await api.create_namespaced_secret("default", secret("later", word="here"))
    assert (await until(api, "early", "Succeeded", "Failed")).phase == "Succeeded"
    assert await api.read_namespaced_pod_log("early", "default") == "here\n"


@on_bed
async def test_an_evicted_pod_says_so(bed, api):
    await api.create_namespaced_pod("default", pod("pushed", SLEEP))
    await until(api, "pushed", "Running")
    bed.evict("pushed")
    status = await until(api, "pushed", "Failed")
    assert status.reason == "Evicted"
    assert "DisruptionTarget" in {condition.type for condition in status.conditions}


@on_bed
async def test_the_pods_of_a_lost_node_are_given_up(bed, api):
    taint = {"key": "alone", "value": "yes", "effect": "NoSchedule"}
    bed.add_node("doomed", labels={"kind": "doomed"}, taints=[taint])
    options = {"tolerations": [{"key": "alone", "operator": "Exists"}]}
    body = pod("there", SLEEP, nodeSelector={"kind": "doomed"}, **options)
    await api.create_namespaced_pod("default", body)
    await until(api, "there", "Running")
    since = (await api.list_namespaced_pod("default")).metadata.resource_version
    bed.lose_node("doomed", after=0.2)
    await followed(api, "there", lambda status: status.reason == "NodeLost", since)

    async def gone():
        return not (await api.list_namespaced_pod("default", label_selector="app=there")).items

    await holds(gone)


@on_bed
async def test_a_claim_keeps_files_for_the_next_pod(bed, api):
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"metadata": {"name": "kept"}, "spec": spec}
    await api.create_namespaced_persistent_volume_claim("default", claim)
    options = {
        "container": {"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "kept"}}],
    }
    await ended(api, pod("writes", "open('/data/x', 'w').write('kept')", **options))
    assert (await ended(api, pod("finds", "print(open('/data/x').read())", **options)))[
        1
    ] == "kept\n"


SERVER = """
import socket
server = socket.create_server(("", 7000))
while True:
    connection, _ = server.accept()
    connection.sendall(server.getsockname()[0].encode())
    connection.close()
"""
CLIENT = """
import os, socket, time
def ask(host, port):
    while True:
        try:
            return socket.create_connection((host, port)).recv(100).decode()
        except OSError:
            time.sleep(0.05)
print(ask("server", 7000), ask("server.default.svc", 7000))
print(ask("other.default", 80), ask(os.environ["OTHER_SERVICE_HOST"], 80))
"""


@on_bed
async def test_pods_reach_each_other_by_the_names_of_services(bed, api):
    for name, port in (("server", 7000), ("other", 80)):
        ports = [{"port": port, "targetPort": 7000}]
        spec = {"selector": {"app": "server"}, "ports": ports}
        body = {"metadata": {"name": name}, "spec": spec}
        await api.create_namespaced_service("default", body)

    async def given():
        return (await api.read_namespaced_service("other", "default")).spec.cluster_ip

    await holds(given)
    for name, code in (("server", SERVER), ("asks", CLIENT)):
        body = pod(name, code)
        body["spec"]["containers"][0]["command"].remove("-S")  # the hook is a sitecustomize
        await api.create_namespaced_pod("default", body)
    await until(api, "asks", "Succeeded", "Failed")
    address = (await api.read_namespaced_pod("server", "default")).status.pod_ip
    log = await api.read_namespaced_pod_log("asks", "default")
    assert (log.split(), address[:4]) == ([address] * 4, "127.")

    async with WsApiClient(api.api_client.configuration) as web:
        forward = await client.CoreV1Api(web).connect_get_namespaced_pod_portforward(
            "server", "default", ports="7000", _preload_content=False
        )
        async with forward as tunnel, asyncio.timeout(SOON):
            frames = [await tunnel.receive_bytes() for _ in range(3)]
    port = (7000).to_bytes(2, "little")
    assert frames == [b"\0" + port, b"\1" + port, b"\0" + address.encode()]


@on_bed
async def test_a_job_that_is_deleted_takes_along_what_it_owns(bed, api):
    jobs = client.BatchV1Api(api.api_client)
    template = {"spec": pod("", SLEEP)["spec"], "metadata": {"labels": {"app": "job"}}}
    spec = {"backoffLimit": 0, "template": template}
    job = await jobs.create_namespaced_job("default", {"metadata": {"name": "root"}, "spec": spec})
    body = secret("owned", word="x")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "root", "uid": job.metadata.uid}
    body["metadata"]["ownerReferences"] = [owner]
    await api.create_namespaced_secret("default", body)

    async def pods(phase):
        found = await api.list_namespaced_pod("default", label_selector="job-name=root")
        return [one for one in found.items if one.status.phase == phase]

    async def running():
        return await pods("Running")

    await holds(running)
    await jobs.delete_namespaced_job("root", "default", propagation_policy="Background")

    async def gone():
        secrets = (await api.list_namespaced_secret("default")).items
        return "owned" not in {one.metadata.name for one in secrets}

    await holds(gone)

    async def ending():
        found = await api.list_namespaced_pod("default", label_selector="job-name=root")
        return all(one.metadata.deletion_timestamp for one in found.items)

    await holds(ending)


@on_bed
async def test_a_job_whose_pod_failed_is_failed(bed, api):
    jobs = client.BatchV1Api(api.api_client)
    template = {"spec": pod("", "raise SystemExit(1)")["spec"]}
    body = {"metadata": {"name": "bad"}, "spec": {"backoffLimit": 0, "template": template}}
    await jobs.create_namespaced_job("default", body)

    async def failed():
        status = (await jobs.read_namespaced_job("bad", "default")).status
        return [c.reason for c in status.conditions or () if c.type == "Failed"]

    assert await holds(failed) == ["BackoffLimitExceeded"]


def test_a_test_bed_that_is_killed_leaves_no_process(eventually):
    from kubernetes_bed import KubernetesBed

    with KubernetesBed() as bed:

        async def run():
            async with core(bed) as api:
                code = f"import sys; print({sys.executable!r}, flush=True); {SLEEP}"
                await api.create_namespaced_pod("default", pod("orphan", code))
                await until(api, "orphan", "Running")

        asyncio.run(run())
        mark = str(bed.directory)

        def processes():
            found = []
            for entry in os.listdir("/proc"):
                with contextlib.suppress(OSError):
                    if entry.isdigit() and mark in Path("/proc", entry, "cmdline").read_text():
                        found.append(int(entry))
            return found

        assert len(processes()) > 1
        os.kill(bed.process.pid, signal.SIGKILL)
        eventually(lambda: not processes(), "the end of all processes")
