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
from pods import (
    SLEEP,
    core,
    ended,
    followed,
    holds,
    on_bed,
    pod,
    until,
    waiting,
)


@on_bed
async def test_a_pod_sees_neither_the_home_nor_the_temporary_files_of_this_machine(bed, api):
    code = "import pathlib, tempfile; print('seen:', *pathlib.Path(tempfile.gettempdir()).glob('kube*'))"
    assert list(bed.directory.parent.glob("kubernetes-bed-*"))
    assert (await ended(api, pod("alone", code)))[1] == "seen:\n"


@on_bed
async def test_a_pod_ends_at_its_deadline(bed, api):
    status, _ = await ended(api, pod("brief", SLEEP, activeDeadlineSeconds=1))
    assert (status.phase, status.reason) == ("Failed", "DeadlineExceeded")


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
