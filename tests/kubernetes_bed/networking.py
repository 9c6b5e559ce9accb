"""Services: names and addresses that lead to pods."""

import asyncio
import contextlib
import itertools
import os

from .selecting import matches_labels


class Networking:
    """Gives each service an address that forwards to its pods, and writes the names of all."""

    def __init__(self, store, kinds, volumes, addresses):
        self.store = store
        self.services = kinds.of("services")
        self.endpoints = kinds.of("endpoints")
        self.volumes = volumes
        self.addresses = addresses
        self.listening = {}
        self.turns = itertools.count()

    def address(self, service, uid):
        """Return the address for a service that is created."""
        if (
            service["spec"].get("clusterIP") == "None"
            or service["spec"].get("type") == "ExternalName"
        ):
            return None
        return self.addresses.take(uid)

    def ready(self, service):
        """Return the pods that a service leads to."""
        selector = service["spec"].get("selector")
        if not selector:
            return []
        namespace = service["metadata"]["namespace"]
        return [
            pod
            for pod in self.store.all("pods", "", namespace)
            if matches_labels({"matchLabels": selector}, pod["metadata"].get("labels"))
            and any(
                c["type"] == "Ready" and c["status"] == "True"
                for c in pod["status"].get("conditions") or ()
            )
        ]

    async def reconcile(self):
        """Make addresses and names those of the services and pods of now."""
        services = self.store.all("services")
        present = set()
        for service in services:
            uid = service["metadata"]["uid"]
            present.add(uid)
            if service["spec"].get("clusterIP") is None and self.address(service, uid):
                await self.listen(service, uid)
            self.publish(service)
        for uid in set(self.listening) - present:
            for server in self.listening.pop(uid):
                server.close()
            self.addresses.give_back(uid)
        self.write_hosts(services)

    async def listen(self, service, uid):
        """Forward each port of a service's address to one of its pods."""
        address = self.addresses.take(uid)
        self.listening[uid] = []
        for port in service["spec"].get("ports") or ():
            with contextlib.suppress(OSError):
                server = await asyncio.start_server(
                    self.forwarder(uid, service, port), address, port["port"]
                )
                self.listening[uid].append(server)

        def put(obj):
            obj["spec"]["clusterIP"] = address
            obj["spec"]["clusterIPs"] = [address]

        self.store.change(self.services, service, put)

    def forwarder(self, uid, service, port):
        namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]

        async def forward(reader, writer):
            current = self.store.find("services", namespace, name) or service
            pods = self.ready(current)
            if not pods:
                writer.transport.abort()
                return
            pod = pods[next(self.turns) % len(pods)]
            try:
                inner = await asyncio.open_connection(
                    pod["status"]["podIP"], target_port(pod, port)
                )
            except OSError:
                writer.transport.abort()
                return
            await asyncio.gather(pump(reader, inner[1]), pump(inner[0], writer))

        return forward

    def publish(self, service):
        """Write the Endpoints of a service."""
        metadata = service["metadata"]
        addresses = [
            {
                "ip": pod["status"]["podIP"],
                "targetRef": {"kind": "Pod", "name": pod["metadata"]["name"]},
            }
            for pod in self.ready(service)
        ]
        ports = [
            {"port": p["targetPort"], "protocol": "TCP"}
            | ({"name": p["name"]} if p.get("name") else {})
            for p in service["spec"].get("ports") or ()
            if isinstance(p["targetPort"], int)
        ]
        subsets = [{"addresses": addresses, "ports": ports}] if addresses else []
        old = self.store.find("endpoints", metadata["namespace"], metadata["name"])
        if old is None:
            owner = {
                "apiVersion": "v1",
                "kind": "Service",
                "name": metadata["name"],
                "uid": metadata["uid"],
            }
            body = {
                "metadata": {"name": metadata["name"], "ownerReferences": [owner]},
                "subsets": subsets,
            }
            self.store.create(self.endpoints, metadata["namespace"], body)
            return

        def put(obj):
            obj["subsets"] = subsets

        self.store.change(self.endpoints, old, put)

    def write_hosts(self, services):
        """Write for each namespace the file that its pods see as /etc/hosts."""
        for namespace in {s["metadata"]["name"] for s in self.store.all("namespaces")}:
            lines = ["127.0.0.1 localhost"]
            lines += [
                f"{pod['status']['podIP']} {pod['metadata']['name']}"
                for pod in self.store.all("pods", "", namespace)
                if pod["status"].get("podIP")
            ]
            for service in services:
                lines += self.names(service, namespace)
            overwrite(self.volumes.hosts(namespace), "\n".join(lines) + "\n")

    def names(self, service, namespace):
        """Return the lines of /etc/hosts for one service as a namespace sees it."""
        name, space = service["metadata"]["name"], service["metadata"]["namespace"]
        full = f"{name}.{space}"
        aliases = [full, f"{full}.svc", f"{full}.svc.cluster.local"]
        if space == namespace:
            aliases.insert(0, name)
        pods = self.ready(service)
        ports = service["spec"].get("ports") or ()
        direct = len(pods) == 1 and all(target_port(pods[0], p) == p["port"] for p in ports)
        if direct or service["spec"].get("clusterIP") == "None":
            addresses = [pod["status"]["podIP"] for pod in pods]
        else:
            addresses = [service["spec"].get("clusterIP")]
        return [f"{address} {' '.join(aliases)}" for address in addresses if address]

    def close(self):
        for servers in self.listening.values():
            for server in servers:
                server.close()


def target_port(pod, port):
    """Return the number of a service's target port at a pod; it may be named."""
    target = port.get("targetPort", port["port"])
    if isinstance(target, int):
        return target
    for container in pod["spec"]["containers"]:
        for entry in container.get("ports") or ():
            if entry.get("name") == target:
                return entry["containerPort"]
    return port["port"]


async def pump(reader, writer):
    """Copy until the end of one side."""
    with contextlib.suppress(OSError):
        while data := await reader.read(2**18):
            writer.write(data)
            await writer.drain()
    writer.close()


def overwrite(path, text):
    """Change a file that is mounted into containers: it must stay the same file."""
    data = text.encode()
    if path.read_bytes() != data:
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.pwrite(descriptor, data, 0)
            os.ftruncate(descriptor, len(data))
        finally:
            os.close(descriptor)
