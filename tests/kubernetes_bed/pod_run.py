"""The life of one pod on its node: from images to exit codes."""

import asyncio
import contextlib
import json
import logging
import os
import sys
import time

from .container import Container
from .nodes import condition
from .probes import PROBES, watch
from .store import now
from .volumes import NotYetError, expand

#: Seconds before a failed step is tried again; before a first restart, twice as long each time.
RETRY = 0.25
RESTARTS = 0.5
#: Words of containerd and runc about a program that an image does not have.
NOT_STARTED = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc "
    "create failed: unable to start container process: exec: {}: executable file not found in "
    "$PATH: unknown"
)
logger = logging.getLogger("kubernetes_bed")


class ContainerRun:
    """What the kubelet knows of one container of a pod."""

    def __init__(self, spec):
        self.spec = spec
        self.name = spec["name"]
        self.state = {"waiting": {"reason": "ContainerCreating"}}
        self.last = {}
        self.restarts = 0
        self.container = None
        #: Whether it answers its readiness probe; without one, whether it runs.
        self.ready = False
        self.probing = None

    @property
    def running(self):
        return "running" in self.state

    @property
    def terminated(self):
        return self.state.get("terminated")

    def status(self):
        return {
            "name": self.name,
            "image": self.spec["image"],
            "imageID": f"bed://{self.spec['image']}",
            "ready": self.running and self.ready,
            "started": self.running,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last,
        }


class PodRun:
    """One pod that a node runs."""

    def __init__(self, kubelet, pod):
        self.kubelet = kubelet
        self.pod = pod
        metadata = pod["metadata"]
        self.key = metadata["namespace"], metadata["name"]
        self.folder = kubelet.folder(pod)
        self.address = kubelet.addresses.take(metadata["uid"])
        self.initial = [ContainerRun(spec) for spec in pod["spec"].get("initContainers") or ()]
        self.containers = [ContainerRun(spec) for spec in pod["spec"]["containers"]]
        self.started = now()
        #: Why the pod was ended as a whole: (reason, message), None while it was not.
        self.ended = None
        self.stopping = False
        #: The node is lost: nothing is reported any more.
        self.silent = False
        #: Set when nothing is waited for any more.
        self.halt = asyncio.Event()
        self.finished = False
        self.task = asyncio.create_task(self.run())
        self.task.add_done_callback(self.log_failure)

    # Life -----------------------------------------------------------------------------------------

    async def run(self):
        deadline = self.pod["spec"].get("activeDeadlineSeconds")
        timer = None
        if deadline is not None:
            text = "Pod was active on the node longer than the specified deadline"
            loop = asyncio.get_running_loop()
            timer = loop.call_later(deadline, self.end, "DeadlineExceeded", text)
        self.report()
        try:
            for entry in self.initial:
                await self.live(entry, "OnFailure")
                if not self.going or entry.terminated["exitCode"]:
                    break
            else:
                policy = self.pod["spec"].get("restartPolicy", "Always")
                await asyncio.gather(*(self.live(entry, policy) for entry in self.containers))
        finally:
            if timer:
                timer.cancel()
            for entry in self.containers + self.initial:
                if entry.container:
                    entry.container.kill()
        self.finished = True
        self.report()
        if self.stopping and not self.silent:
            self.kubelet.gone(self)

    def log_failure(self, task):
        if not task.cancelled() and task.exception():
            logger.error("pod %s", self.key, exc_info=task.exception())

    async def pause(self, seconds):
        """Wait some seconds, or until the pod is told to go."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.halt.wait(), seconds)

    @property
    def going(self):
        return not self.stopping and self.ended is None

    async def live(self, entry, policy):
        """Start a container, and again as its restart policy says, until it has ended."""
        while self.going:
            if not await self.prepare(entry):
                return
            await self.exited(entry)
            code = entry.terminated["exitCode"]
            again = policy == "Always" or (policy == "OnFailure" and code)
            if not (again and self.going):
                return
            self.report()
            entry.last, entry.state = entry.state, {"waiting": {"reason": "CrashLoopBackOff"}}
            entry.restarts += 1
            await self.pause(min(RESTARTS * 2 ** (entry.restarts - 1), 10))

    async def prepare(self, entry):
        """Pull the image, fill the mounts, start; return whether the container was started."""
        while self.going:
            try:
                await self.kubelet.images.pull(self.pod, entry.spec, self.pause)
                if self.going:
                    self.begin(entry)
            except NotYetError as error:
                self.kubelet.tell(self.pod, "Warning", error.reason, error.message)
                if error.reason != "FailedMount":
                    waiting = {"reason": error.reason, "message": error.message}
                    entry.state = {"waiting": waiting}
                    self.report()
                await self.pause(RETRY)
            else:
                return entry.running
        return False

    def begin(self, entry):
        spec = entry.spec
        folder = self.folder / entry.name
        folder.mkdir(parents=True, exist_ok=True)
        volumes = self.kubelet.volumes
        status = self.pod["status"] | {"podIP": self.address, "hostIP": "127.0.0.1"}
        pod = self.pod | {"status": status}
        mounts = volumes.mounts(pod, spec, self.folder)
        base = self.kubelet.environment(pod, self.address)
        environment = volumes.environment(pod, spec, base)
        hook = base["PYTHONPATH"]
        if environment["PYTHONPATH"] != hook:
            environment["PYTHONPATH"] = f"{hook}{os.pathsep}{environment['PYTHONPATH']}"
        words = [*(spec.get("command") or ()), *(spec.get("args") or ())] or ["python"]
        command = [expand(word, environment) for word in words]
        python, packages = self.kubelet.images.content_of(spec["image"])
        if command[0] in {"python", "python3"} and python:
            command[:1] = [sys.executable] if packages else [sys.executable, "-S"]
        elif not python:
            command[0] = f"/not-in-this-image/{command[0]}"
        log = folder / f"{entry.restarts}.log"
        container = Container(folder / f"run-{entry.restarts}", log)
        container.start(command, environment, mounts, self.key[1], spec.get("workingDir") or "/")
        entry.container = container
        entry.state = {"running": {"startedAt": now()}}
        probed = any(name in spec for name in PROBES)
        entry.ready = not probed
        entry.probing = asyncio.create_task(watch(self, entry)) if probed else None
        self.report()

    async def exited(self, entry):
        """Wait for a container's end and note how it ended."""
        container = entry.container
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        descriptor = os.pidfd_open(container.process.pid)
        loop.add_reader(descriptor, lambda: ended.done() or ended.set_result(None))
        try:
            await ended
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            if container.process.poll() is not None:
                container.ended = time.time()
        if entry.probing is not None:
            entry.probing.cancel()
        code = container.exit_code()
        reason = container.reason or ("Error" if code else "Completed")
        if code == 128 and not container.reason:
            reason = "StartError"
        told = {}
        if reason == "StartError":
            told["message"] = NOT_STARTED.format(json.dumps(entry.spec["command"][0]))
        entry.state = {
            "terminated": {
                **told,
                "exitCode": code,
                "reason": reason,
                "startedAt": entry.state["running"]["startedAt"],
                "finishedAt": now(),
                "containerID": f"bed://{self.pod['metadata']['uid']}/{entry.name}/{entry.restarts}",
            }
        }
        self.report()

    # Ends -----------------------------------------------------------------------------------------

    def end(self, reason, message):
        """End the pod as a whole: it becomes Failed for this reason."""
        if self.ended is None:
            self.ended = reason, message
            self.halt.set()
            self.kill()
            self.report()

    def kill(self):
        for entry in self.containers + self.initial:
            if entry.container:
                entry.container.kill()

    def stop(self, grace):
        """Send SIGTERM, and SIGKILL after the grace period."""
        if self.stopping:
            return
        self.stopping = True
        self.halt.set()
        for entry in self.containers + self.initial:
            if entry.container:
                self.terminate(entry.container)
        asyncio.get_running_loop().call_later(grace, self.kill)
        if self.task.done():
            self.kubelet.gone(self)

    def terminate(self, container):
        """Send SIGTERM to a container as soon as its command runs."""
        if not container.terminate():
            asyncio.get_running_loop().call_later(0.05, self.terminate, container)

    # Status ---------------------------------------------------------------------------------------

    def phase(self):
        if self.ended is not None:
            return "Failed"
        if any((e.terminated or {}).get("exitCode") for e in self.initial):
            return "Failed"
        if all(e.terminated for e in self.containers) and (
            self.finished or self.pod["spec"].get("restartPolicy") == "Never" or self.stopping
        ):
            failed = any(e.terminated["exitCode"] for e in self.containers)
            return "Failed" if failed else "Succeeded"
        waiting = all("waiting" in e.state and not e.restarts for e in self.containers)
        return "Pending" if waiting else "Running"

    def report(self):
        """Write into the pod's status what is known."""
        if self.silent:
            return
        phase = self.phase()
        ready = bool(self.containers) and all(e.running and e.ready for e in self.containers)

        def put(obj):
            status = obj["status"]
            status |= {
                "phase": phase,
                "startTime": self.started,
                "hostIP": "127.0.0.1",
                "podIP": self.address,
                "podIPs": [{"ip": self.address}],
                "containerStatuses": [entry.status() for entry in self.containers],
            }
            if self.initial:
                status["initContainerStatuses"] = [entry.status() for entry in self.initial]
            if self.ended is not None:
                status["reason"], status["message"] = self.ended
            condition(obj, "Ready", str(ready))
            condition(obj, "ContainersReady", str(ready))

        self.kubelet.write_status(self.pod, put)
