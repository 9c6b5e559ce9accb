"""The whole cluster in one process: API server, controllers, scheduler, kubelet."""

import asyncio
import contextlib
import logging
from pathlib import Path

from aiohttp import web

from bed_program import serve

from .access import Access, User
from .admission import describe_quotas
from .collecting import Collector
from .credentials import USERS, role_objects, server_context, write_kubeconfigs
from .faults import Faults
from .kinds import Kinds
from .kubelet import Addresses, Kubelet
from .networking import Networking
from .nodes import Scheduler, condition, node
from .serving import ApiServer
from .store import Store
from .streams import Streams
from .volumes import Volumes
from .workloads import Workloads

HERE = Path(__file__).parent
#: Shortest time between two rounds of the controllers, in seconds.
ROUND = 0.01
#: Time after which a round is run without a change, while something is waited for.
AGAIN = 0.1
#: Longest time between two rounds: deadlines are looked at as often.
LONGEST = 0.5
logger = logging.getLogger("kubernetes_bed")


class Cluster:
    """Everything that the test bed consists of."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.kinds = Kinds()
        self.store = Store(self.kinds)
        self.access = Access(self.store, self.kinds)
        self.faults = Faults()
        self.changed = asyncio.Event()
        self.tasks = []
        self.runner = None

    async def start(self):
        """Listen, and write the kubeconfigs."""
        authority, self.context = server_context(self.directory)
        volumes = Volumes(self.store, self.directory, self.access, authority, HERE / "hook")
        self.kubelet = Kubelet(self.store, self.kinds, self.directory, volumes)
        streams = Streams(self.store, self.kinds, self.kubelet)
        self.streams = streams
        server = ApiServer(self.store, self.kinds, self.access, self.faults, streams)
        self.runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        self.port = 0
        await self.listen()
        addresses = Addresses(self.port)
        self.kubelet.addresses = addresses
        self.kubelet.server = ("127.0.0.1", self.port)
        self.networking = Networking(self.store, self.kinds, volumes, addresses)
        self.scheduler = Scheduler(self.store, self.kinds)
        self.collector = Collector(self.store, self.kinds)
        self.workloads = Workloads(self.store, self.kinds, self.kubelet.tell)
        self.store.listeners += [self.listener, self.kubelet.listen]
        self.furnish()
        tokens = {
            name: self.access.token(User(name, groups)) for name, (groups, _) in USERS.items()
        }
        write_kubeconfigs(self.directory, f"https://127.0.0.1:{self.port}", authority, tokens)
        self.tasks.append(asyncio.create_task(self.rounds()))
        self.tasks.append(asyncio.create_task(self.kubelet.watch_memory()))

    async def listen(self):
        site = web.TCPSite(self.runner, "127.0.0.1", self.port, ssl_context=self.context)
        await site.start()
        self.site = site
        self.port = site._server.sockets[0].getsockname()[1]

    def furnish(self):
        """Create what every cluster has."""
        create = self.store.create
        for name in ("default", "kube-system"):
            self.namespace(name)
        for number in (1, 2):
            create(self.kinds.of("nodes"), "", node(f"node-{number}", cpu="16", memory="64Gi"))
        classes = self.kinds.of("storageclasses", "storage.k8s.io")
        create(classes, "", {"metadata": {"name": "standard"}, "provisioner": "bed/directory"})
        for plural, namespace, body in role_objects():
            kind = self.kinds.of(plural, "rbac.authorization.k8s.io")
            create(kind, namespace, body)

    def namespace(self, name, labels=None):
        body = {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        }
        self.store.create(self.kinds.of("namespaces"), "", body)

    # Controllers ----------------------------------------------------------------------------------

    def listener(self, event):
        """Wake the controllers, and give each namespace its service account."""
        if event.kind.plural == "customresourcedefinitions":
            if event.type == "DELETED":
                self.store.objects.pop(self.kinds.undefine(event.object), None)
            else:
                self.kinds.define(event.object)
        if event.type == "ADDED" and event.kind.plural == "namespaces":
            name = event.object["metadata"]["name"]
            body = {"metadata": {"name": "default"}}
            self.store.create(self.kinds.of("serviceaccounts"), name, body)
        if event.kind.plural != "events":
            self.changed.set()

    async def rounds(self):
        """Run the controllers after each change."""
        while True:
            with contextlib.suppress(TimeoutError):
                longest = AGAIN if self.networking.incomplete else LONGEST
                await asyncio.wait_for(self.changed.wait(), longest)
            self.changed.clear()
            try:
                self.collector.collect()
                self.workloads.reconcile()
                self.scheduler.schedule()
                await self.networking.reconcile()
                describe_quotas(self.store, self.kinds)
            except Exception:
                logger.exception("a round of the controllers failed")
            await asyncio.sleep(ROUND)

    # Control --------------------------------------------------------------------------------------

    def pod(self, name, namespace="default"):
        return self.store.get(self.kinds.of("pods"), namespace, name)

    def do_requests(self, reset=False):
        found = dict(self.faults.requests)
        if reset:
            self.faults.requests.clear()
        return found

    def do_throttle(self, seconds, every=1):
        self.faults.throttle(seconds, every)

    def do_breakdown(self, seconds):
        self.faults.breakdown(seconds)

    def do_conflicts(self, every):
        return self.faults.conflicts(every)

    async def do_down(self, seconds):
        """Let the API server be away: connections break, nobody listens."""
        await self.site.stop()
        for connection in list(self.runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()
        self.tasks.append(asyncio.create_task(self.up_again(seconds)))

    async def up_again(self, seconds):
        await asyncio.sleep(seconds)
        await self.listen()

    def do_close_watches(self):
        """End each watch as if its time were over."""
        for queue in list(self.store.watchers):
            queue.put_nowait(None)

    def do_compact(self):
        """Forget the history and end each watch with 410."""
        self.store.compact()
        from .errors import ApiError

        for queue in list(self.store.watchers):
            queue.put_nowait(
                ApiError(410, "The resourceVersion for the provided watch is too old.")
            )

    def do_cut_tunnels(self):
        return self.streams.cut()

    def do_image(self, pattern, delay=0.0, error=""):
        self.kubelet.images.rule(pattern, delay, error)

    def do_content(self, pattern, python=True, packages=True):
        self.kubelet.images.content(pattern, python, packages)

    def do_evict(self, name, namespace="default"):
        self.kubelet.evict(self.pod(name, namespace))

    def do_preempt(self, name, namespace="default"):
        pod = self.pod(name, namespace)
        self.kubelet.disrupt(
            pod, "PreemptionByScheduler", "preempting to accommodate a higher priority pod"
        )
        self.store.delete(
            self.kinds.of("pods"), pod, pod["spec"].get("terminationGracePeriodSeconds", 30)
        )

    def do_add_node(self, name, **options):
        self.store.create(self.kinds.of("nodes"), "", node(name, **options))

    def do_add_namespace(self, name, labels=None):
        self.namespace(name, labels)

    def do_kill(self, name, namespace="default"):
        """Kill the processes of a pod, as a crash would."""
        self.kubelet.run_of(self.pod(name, namespace)).kill()

    async def do_lose_node(self, name, after=1.0):
        """Let a node vanish; after some seconds its pods are given up and the node is deleted."""
        kind = self.kinds.of("nodes")
        lost = self.kubelet.lose(name)

        def unknown(obj):
            condition(
                obj, "Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."
            )

        self.store.change(kind, self.store.get(kind, "", name), unknown)
        for pod in lost:

            def not_ready(obj):
                condition(obj, "Ready", "False")
                obj["status"] |= {
                    "reason": "NodeLost",
                    "message": f"Node {name} which was running pod is unresponsive",
                }

            self.store.change(self.kinds.of("pods"), pod, not_ready)
        self.tasks.append(asyncio.create_task(self.give_up(name, lost, after)))

    async def give_up(self, name, lost, after):
        await asyncio.sleep(after)
        pods = self.kinds.of("pods")
        for pod in lost:
            self.kubelet.disrupt(
                pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"
            )
            self.store.delete(pods, pod, pod["spec"].get("terminationGracePeriodSeconds", 30))
        await asyncio.sleep(after)
        nodes = self.kinds.of("nodes")
        with contextlib.suppress(Exception):
            self.store.remove(nodes, self.store.get(nodes, "", name))
        for pod in lost:
            self.store.change(pods, pod, lambda obj: obj["status"].update(phase="Failed"))
            self.store.delete(pods, pod, 0)

    async def close(self):
        """End everything."""
        for task in self.tasks:
            task.cancel()
        await self.kubelet.close()
        self.networking.close()
        await self.runner.cleanup()


def main(directory):
    """Run as the child of a `KubernetesBed`."""
    serve(Cluster, directory)
