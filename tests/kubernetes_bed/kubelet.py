"""The kubelet of all nodes: runs the pods that the scheduler has placed."""

import asyncio
import fnmatch
import itertools
import os
import shutil
import sys
from pathlib import Path

from .container import BED
from .nodes import condition
from .pod_run import PodRun
from .quantities import amount
from .store import now
from .volumes import NotYetError

#: Seconds between two looks at the memory of containers that have a limit.
MEMORY_PERIOD = 0.2


class Addresses:
    """Addresses of 127.0.0.0/8: one for each pod and service of this test bed.

    The port of the API server, which no other test bed has, chooses 256 of them.
    """

    def __init__(self, port):
        self.prefix = f"127.{port >> 8}.{port & 255}"
        self.free = [f"{self.prefix}.{last}" for last in range(255, 0, -1)]
        self.taken = {}

    def take(self, owner):
        """Return the address of an owner, a new one if it has none."""
        if owner not in self.taken:
            if not self.free:
                raise NotYetError("FailedCreatePodSandBox", "the test bed has no address left")
            self.taken[owner] = self.free.pop()
        return self.taken[owner]

    def give_back(self, owner):
        address = self.taken.pop(owner, None)
        if address:
            self.free.insert(0, address)


class Images:
    """A registry: every image is there unless a test says otherwise."""

    def __init__(self, tell):
        self.tell = tell
        self.rules = {}
        self.contents = {}
        self.failed = set()
        self.pulled = set()

    def rule(self, pattern, delay=0.0, error=""):
        """Let images that match a pattern be slow to pull, or fail."""
        self.rules[pattern] = (delay, error)

    def content(self, pattern, python=True, packages=True):
        """Let images that match a pattern have no Python, or a Python without packages."""
        self.contents[pattern] = (python, packages)

    def content_of(self, image):
        """Return whether an image has Python, and whether its Python has packages."""
        found = [c for pattern, c in self.contents.items() if fnmatch.fnmatch(image, pattern)]
        return found[-1] if found else (True, True)

    async def pull(self, pod, spec, pause):
        """Return when an image is there; `pause` waits some seconds."""
        image = spec["image"]
        node = pod["spec"].get("nodeName")
        if (node, image) in self.pulled and spec.get("imagePullPolicy") != "Always":
            return
        delay, error = 0.0, ""
        for pattern, rule in self.rules.items():
            if fnmatch.fnmatch(image, pattern):
                delay, error = rule
        self.tell(pod, "Normal", "Pulling", f'Pulling image "{image}"')
        await pause(delay)
        if spec.get("imagePullPolicy") == "Never":
            raise NotYetError(
                "ErrImageNeverPull",
                f'Container image "{image}" is not present with pull policy of Never',
            )
        if error:
            key = pod["metadata"]["uid"], image
            if key in self.failed:
                raise NotYetError(
                    "ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {error}'
                )
            self.failed.add(key)
            raise NotYetError("ErrImagePull", f'failed to pull and unpack image "{image}": {error}')
        self.pulled.add((node, image))


class Kubelet:
    """Runs pods as local processes and reports on them."""

    def __init__(self, store, kinds, directory, volumes):
        self.store = store
        self.pods = kinds.of("pods")
        self.events = kinds.of("events")
        self.directory = Path(directory)
        self.volumes = volumes
        #: Set when the API server listens.
        self.addresses = None
        #: Host and port of the API server.
        self.server = ("", 0)
        self.images = Images(self.tell)
        self.runs_by_uid = {}
        self.numbers = itertools.count()

    # Pods -----------------------------------------------------------------------------------------

    def listen(self, event):
        """Follow the pods in the store."""
        if event.kind != self.pods:
            return
        pod = event.object
        run = self.runs_by_uid.get(pod["metadata"]["uid"])
        if event.type == "DELETED":
            if run is not None and not run.silent:
                run.stopping = True
                run.halt.set()
                run.kill()
            self.addresses.give_back(pod["metadata"]["uid"])
        elif run is None:
            if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]:
                asyncio.get_running_loop().call_soon(self.begin, pod)
        elif "deletionTimestamp" in pod["metadata"] and not run.silent:
            run.stop(pod["metadata"].get("deletionGracePeriodSeconds", 0))

    def begin(self, pod):
        uid = pod["metadata"]["uid"]
        if uid in self.runs_by_uid or self.store.find("pods", *self.key(pod)) is None:
            return
        try:
            self.runs_by_uid[uid] = PodRun(self, pod)
        except NotYetError as error:
            self.tell(pod, "Warning", error.reason, error.message)
            asyncio.get_running_loop().call_later(0.5, self.begin, pod)

    @staticmethod
    def key(pod):
        return pod["metadata"]["namespace"], pod["metadata"]["name"]

    def gone(self, run):
        """Forget a pod that was told to go and whose containers have ended."""
        self.store.delete(self.pods, run.pod, 0)

    def write_status(self, pod, function):
        self.store.change(self.pods, pod, function)

    def folder(self, pod):
        path = self.directory / "pods" / "_".join([*self.key(pod), pod["metadata"]["uid"]])
        path.mkdir(parents=True, exist_ok=True)
        return path

    def environment(self, pod, address):
        """Return what the environment of each container has before its spec is read."""
        namespace, name = self.key(pod)
        host, port = self.server
        found = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(Path.home()),
            "HOSTNAME": name,
            "PYTHONPATH": f"{BED}/hook",
            "KUBERNETES_BED_ADDRESS": address,
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": str(port),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
        }
        for service in self.store.all("services", "", namespace):
            ports = service["spec"].get("ports") or ()
            if service["spec"].get("clusterIP") in {None, "None"} or not ports:
                continue
            prefix = service["metadata"]["name"].upper().replace("-", "_")
            found[f"{prefix}_SERVICE_HOST"] = service["spec"]["clusterIP"]
            found[f"{prefix}_SERVICE_PORT"] = str(ports[0]["port"])
            for entry in ports:
                if entry.get("name"):
                    key = entry["name"].upper().replace("-", "_")
                    found[f"{prefix}_SERVICE_PORT_{key}"] = str(entry["port"])
        return found

    def tell(self, obj, type_, reason, message):
        """Make an Event about an object, or count one that says the same."""
        namespace, name = self.key(obj)
        if self.store.find("namespaces", "", namespace) is None:
            return
        for old in reversed(self.store.all("events", "", namespace)):
            involved = old["involvedObject"]
            if (involved.get("uid"), old["reason"], old["message"]) == (
                obj["metadata"]["uid"],
                reason,
                message,
            ):

                def again(event):
                    event["count"] += 1
                    event["lastTimestamp"] = now()

                self.store.change(self.events, old, again)
                return
        reference = {
            "kind": obj.get("kind", "Pod"),
            "apiVersion": obj.get("apiVersion", "v1"),
            "name": name,
            "namespace": namespace,
            "uid": obj["metadata"]["uid"],
        }
        event = {
            "metadata": {"name": f"{name}.{next(self.numbers):x}"},
            "involvedObject": reference,
            "type": type_,
            "reason": reason,
            "message": message,
            "count": 1,
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "source": {"component": "kubelet"},
        }
        self.store.create(self.events, namespace, event)

    # What others ask ------------------------------------------------------------------------------

    def run_of(self, pod):
        return self.runs_by_uid.get(pod["metadata"]["uid"])

    def entry(self, pod, container):
        run = self.run_of(pod)
        entries = run.containers + run.initial if run else ()
        return next((entry for entry in entries if entry.name == container), None)

    def log_path(self, pod, container, previous=False):
        entry = self.entry(pod, container)
        if entry is None or entry.container is None:
            return None
        if not previous:
            return entry.container.log
        return entry.container.log.with_name(f"{entry.restarts - 1}.log")

    def waiting_reason(self, pod, container):
        entry = self.entry(pod, container)
        return (entry.state.get("waiting") or {}).get("reason") if entry else "PodInitializing"

    def runs(self, pod, container):
        entry = self.entry(pod, container)
        return entry is not None and entry.container is not None and entry.container.running

    def address(self, pod):
        run = self.run_of(pod)
        live = run is not None and any(entry.running for entry in run.containers)
        return run.address if live else None

    # Troubles -------------------------------------------------------------------------------------

    def disrupt(self, pod, reason, message):
        """Set the condition that says that a pod is ended from outside."""

        def put(obj):
            condition(obj, "DisruptionTarget", "True", reason, message)

        self.store.change(self.pods, pod, put)

    def evict(self, pod, message="The node was low on resource: memory."):
        """End a pod as a node under pressure does."""
        self.disrupt(pod, "TerminationByKubelet", message)
        self.run_of(pod).end("Evicted", message)

    def lose(self, node):
        """Let a node vanish: its processes end, nothing is reported; return its pods."""
        lost = [run for run in self.runs_by_uid.values() if run.pod["spec"].get("nodeName") == node]
        for run in lost:
            run.silent = run.stopping = True
            run.halt.set()
            run.kill()
        return [run.pod for run in lost]

    # Memory ---------------------------------------------------------------------------------------

    async def watch_memory(self):
        """Kill each container whose processes use more memory than its limit."""
        while True:
            await asyncio.sleep(MEMORY_PERIOD)
            watched = []
            for run in self.runs_by_uid.values():
                for entry in run.containers:
                    limits = (entry.spec.get("resources") or {}).get("limits") or {}
                    if entry.running and "memory" in limits:
                        watched.append((entry.container, amount(limits["memory"])))
            if watched:
                used = memory_of([container.process.pid for container, _ in watched])
                for container, limit in watched:
                    if used[container.process.pid] > limit:
                        container.kill("OOMKilled")

    async def close(self):
        """End every container and wait for it."""
        for run in self.runs_by_uid.values():
            run.silent = run.stopping = True
            run.halt.set()
            run.kill()
        tasks = [run.task for run in self.runs_by_uid.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=10)
        shutil.rmtree(self.directory / "pods", ignore_errors=True)


def memory_of(roots):
    """Return the resident bytes of each root process and all that descend from it."""
    parents, sizes = {}, {}
    page = os.sysconf("SC_PAGE_SIZE")
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat[1])
            sizes[int(entry.name)] = int(stat[21]) * page
    wanted = set(roots)
    sums = dict.fromkeys(roots, 0)
    for pid, size in sizes.items():
        above = pid
        while above and above not in wanted:
            above = parents.get(above, 0)
        if above:
            sums[above] += size
    return sums
