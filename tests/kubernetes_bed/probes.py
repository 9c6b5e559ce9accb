"""Probes of containers: whether one is ready, and whether it lives."""

import asyncio
import contextlib

from .networking import target_port

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


async def ask(pod, address, probe):
    """Return whether a container answers a probe (`tcpSocket` or `httpGet`)."""
    wanted = probe.get("httpGet") or probe["tcpSocket"]
    port = target_port(pod, {"port": 0, "targetPort": wanted["port"]})
    with contextlib.suppress(OSError, TimeoutError, ValueError, IndexError):
        async with asyncio.timeout(probe.get("timeoutSeconds", 1)):
            reader, writer = await asyncio.open_connection(address, port)
            try:
                if "httpGet" not in probe:
                    return True
                path = wanted.get("path", "/")
                writer.write(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
                code = int((await reader.readline()).split()[1])
                return 200 <= code < 400
            finally:
                writer.close()
    return False


async def times(pod, address, probe, success, failure):
    """Call `success` or `failure` when a probe was answered, or not, as often as its spec says."""
    wins = losses = 0
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    while True:
        if await ask(pod, address, probe):
            wins, losses = wins + 1, 0
            if wins >= probe.get("successThreshold", 1):
                success()
        else:
            wins, losses = 0, losses + 1
            if losses >= probe.get("failureThreshold", 3):
                failure()
        await asyncio.sleep(probe.get("periodSeconds", 10) if wins else 0.25)


async def watch(run, entry):
    """Follow the probes of a container that has just been started, until cancelled."""
    spec, pod, address = entry.spec, run.pod, run.address
    started = asyncio.Event()

    def lives():
        started.set()

    def is_ready(value):
        if entry.ready != value:
            entry.ready = value
            run.report()

    def dies():
        entry.container.kill()

    def nothing():
        pass

    async with asyncio.TaskGroup() as group:
        if "startupProbe" in spec:
            first = group.create_task(times(pod, address, spec["startupProbe"], lives, dies))
            await started.wait()
            first.cancel()
        if "readinessProbe" in spec:
            probe = spec["readinessProbe"]
            yes, no = (lambda: is_ready(True)), (lambda: is_ready(False))
            group.create_task(times(pod, address, probe, yes, no))
        else:
            is_ready(True)
        if "livenessProbe" in spec:
            group.create_task(times(pod, address, spec["livenessProbe"], nothing, dies))
