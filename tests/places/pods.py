"""Pods for the Kubernetes test bed, and waiting for what becomes of them."""

import asyncio
import base64
import contextlib

import pytest

client = pytest.importorskip("kubernetes_asyncio.client")
from kubernetes_asyncio import config, watch  # noqa: E402

#: Seconds in which everything happens even on a busy machine.
SOON = 90
SLEEP = "import time; time.sleep(600)"


def pod(name, code, labels=None, container=None, **spec):
    """A pod that runs Python code."""
    command = ["python", "-S", "-c", code]
    main = {"name": "main", "image": "any", "command": command, **(container or {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name, **(labels or {})}},
        "spec": {"restartPolicy": "Never", "containers": [main], **spec},
    }


def secret(name, **entries):
    """A secret of texts."""
    data = {key: base64.b64encode(text.encode()).decode() for key, text in entries.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


@contextlib.asynccontextmanager
async def core(bed, user="alice"):
    """The core API as a user has it."""
    configuration = client.Configuration()
    await config.load_kube_config(str(bed.kubeconfig(user)), client_configuration=configuration)
    async with client.ApiClient(configuration) as api:
        yield client.CoreV1Api(api)
    # TLS connections that were left in the middle of an answer close in the background.
    await asyncio.sleep(0.1)


async def followed(api, name, condition, since=None):
    """Follow a pod until a condition holds for its status, or held after a version; return it."""
    async with asyncio.timeout(SOON), watch.Watch() as stream:
        selector = f"metadata.name={name}"
        async for event in stream.stream(
            api.list_namespaced_pod, "default", field_selector=selector, resource_version=since
        ):
            if condition(event["object"].status):
                return event["object"].status
    return None


async def until(api, name, *phases):
    """Follow a pod until it has one of these phases; return its status."""
    return await followed(api, name, lambda status: status.phase in phases)


async def ended(api, body):
    """Create a pod, wait for its end and return its status and its log."""
    name = body["metadata"]["name"]
    await api.create_namespaced_pod("default", body)
    status = await until(api, name, "Succeeded", "Failed")
    return status, await api.read_namespaced_pod_log(name, "default")


def waiting(status):
    """The reason for which the first container of a pod waits."""
    state = status.container_statuses and status.container_statuses[0].state.waiting
    return state.reason if state else None


def unschedulable(status):
    """The scheduler's words on a pod that it cannot place, "" if it can."""
    found = [c for c in status.conditions or () if (c.type, c.status) == ("PodScheduled", "False")]
    return found[0].message if found else ""


async def holds(condition):
    """Wait until a coroutine function returns something true; return that."""
    async with asyncio.timeout(SOON):
        while not (answer := await condition()):
            await asyncio.sleep(0.05)
        return answer


def on_bed(function):
    """Make a test of a coroutine function that takes the bed and the core API of alice."""

    def test(kubernetes_bed):
        async def run():
            async with core(kubernetes_bed) as api:
                await function(kubernetes_bed, api)

        asyncio.run(run())

    test.__name__ = function.__name__
    return test
