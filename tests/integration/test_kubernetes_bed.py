"""The Kubernetes test bed serves a client library that knows nothing of it."""

import asyncio
import base64
import contextlib

import pytest

client = pytest.importorskip("kubernetes_asyncio.client")
from kubernetes_asyncio import config, watch  # noqa: E402

SOON = 60


def pod(name, code, **spec):
    container = {"name": "main", "image": "any", "command": ["python", "-S", "-c", code]}
    container |= spec.pop("container", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"restartPolicy": "Never", "containers": [container]} | spec,
    }


def secret(name, **entries):
    data = {key: base64.b64encode(text.encode()).decode() for key, text in entries.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


@contextlib.asynccontextmanager
async def core(bed, user="alice"):
    """The core API of a user."""
    configuration = client.Configuration()
    await config.load_kube_config(str(bed.kubeconfig(user)), client_configuration=configuration)
    async with client.ApiClient(configuration) as api:
        yield client.CoreV1Api(api)


async def until(api, name, *phases):
    """Follow a pod by a watch until it has one of these phases."""
    async with asyncio.timeout(SOON), watch.Watch() as stream:
        selector = f"metadata.name={name}"
        async for event in stream.stream(
            api.list_namespaced_pod, "default", field_selector=selector
        ):
            if event["object"].status.phase in phases:
                return event["object"]
    return None


def on_bed(function):
    """Run a coroutine function of a test with the core API of alice."""

    def test(kubernetes_bed):
        async def run():
            async with core(kubernetes_bed) as api:
                await function(api)

        asyncio.run(run())

    test.__name__ = function.__name__
    return test


@on_bed
async def test_a_pod_runs_with_its_environment_and_its_secrets(api):
    await api.create_namespaced_secret("default", secret("keys", word="open sesame"))
    code = "import os; print(os.environ['WORD'], open('/keys/word').read(), os.getpid())"
    environment = {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "word"}}}
    container = {"env": [environment], "volumeMounts": [{"name": "keys", "mountPath": "/keys"}]}
    volumes = [{"name": "keys", "secret": {"secretName": "keys"}}]
    await api.create_namespaced_pod(
        "default", pod("reads", code, container=container, volumes=volumes)
    )
    ended = await until(api, "reads", "Succeeded", "Failed")
    log = await api.read_namespaced_pod_log("reads", "default")
    assert (ended.status.phase, log) == ("Succeeded", "open sesame open sesame 1\n")


@on_bed
async def test_the_exit_code_of_a_pod_is_reported(api):
    await api.create_namespaced_pod("default", pod("fails", "raise SystemExit(3)"))
    ended = await until(api, "fails", "Succeeded", "Failed")
    state = ended.status.container_statuses[0].state.terminated
    assert (ended.status.phase, state.exit_code, state.reason) == ("Failed", 3, "Error")


@on_bed
async def test_a_pod_that_is_told_to_go_may_end_by_itself(api):
    code = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("bye", flush=True)))
print("here", flush=True)
while True:
    signal.pause()
"""
    await api.create_namespaced_pod("default", pod("polite", code))
    await until(api, "polite", "Running")
    async with asyncio.timeout(SOON):
        while "here" not in await api.read_namespaced_pod_log("polite", "default"):
            await asyncio.sleep(0.05)
        follow = await api.read_namespaced_pod_log(
            "polite", "default", follow=True, _preload_content=False
        )
        await api.delete_namespaced_pod("polite", "default")
        assert (await follow.read()).decode().split() == ["here", "bye"]
        while (await api.list_namespaced_pod("default", label_selector="app=polite")).items:
            await asyncio.sleep(0.05)


@on_bed
async def test_bodies_that_kubernetes_would_refuse_are_refused(api):
    body = pod("wrong", "pass", container={"volumeMounts": [{"name": "no", "mountPath": "/x"}]})
    with pytest.raises(client.ApiException, match=r"422[\s\S]*Not found: 'no'"):
        await api.create_namespaced_pod("default", body)
    body = pod("wrong", "pass", container={"imagee": "x"})
    with pytest.raises(client.ApiException, match=r"422[\s\S]*imagee"):
        await api.create_namespaced_pod("default", body)


def test_who_has_no_role_is_refused(kubernetes_bed):
    async def run():
        async with core(kubernetes_bed, "viewer") as api:
            await api.list_namespaced_pod("default")
            message = r'403[\s\S]*cannot create resource \\"pods\\"'
            with pytest.raises(client.ApiException, match=message):
                await api.create_namespaced_pod("default", pod("mine", "pass"))

    asyncio.run(run())
