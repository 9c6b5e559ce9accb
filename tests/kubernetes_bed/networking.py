"""Services: names and addresses that lead to pods."""

import asyncio
import contextlib
import itertools
import os
import socket
from pathlib import Path

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
        #: Services that have an address.
        self.given = set()
        #: Whether a port of a service waits for its pod to listen.
        self.incomplete = False
        self.turns = itertools.count()

    @staticmethod
    def has_address(service):
        """Whether a service gets an address of its own."""
        spec = service["spec"]
        return spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName"

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
        self.incomplete = False
        present = set()
        for service in services:
            uid = service["metadata"]["uid"]
            present.add(uid)
            if service["spec"].get("clusterIP") is None and self.has_address(service):
                self.give_address(service, uid)
            ready = self.ready(service)
            if ready and uid in self.given:
                await self.listen(service, uid, ready)
            else:
                self.refuse(uid)
            self.publish(service)
        for uid in self.given - present:
            self.refuse(uid)
            self.given.discard(uid)
            self.addresses.give_back(uid)
        self.write_hosts(services)

    def give_address(self, service, uid):
        """Write into a service the address that it has from now on."""
        address = self.addresses.take(uid)
        self.given.add(uid)

        def put(obj):
            obj["spec"]["clusterIP"] = address
            obj["spec"]["clusterIPs"] = [address]

        self.store.change(self.services, service, put)

    async def listen(self, service, uid, ready):
        """Forward each port of a service's address on which one of its pods listens.

        A connection to a port on which no pod listens is refused, as on a real cluster.
        """
        servers = self.listening.setdefault(uid, {})
        for port in service["spec"].get("ports") or ():
            number = port["port"]
            if number in servers:
                continue
            if any(listens(pod["status"]["podIP"], target_port(pod, port)) for pod in ready):
                forward = self.forwarder(service, port)
                with contextlib.suppress(OSError):
                    address = self.addresses.taken[uid]
                    servers[number] = await asyncio.start_server(forward, address, number)
            else:
                self.incomplete = True

    def refuse(self, uid):
        """Let connections to a service without pods be refused."""
        for server in self.listening.pop(uid, {}).values():
            server.close()

    def forwarder(self, service, port):
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
            for server in servers.values():
                server.close()


def listens(address, port):
    """Whether a process of this machine listens on a port of an address."""
    wanted = f"{socket.inet_aton(address)[::-1].hex().upper()}:{port:04X}"
    with Path("/proc/net/tcp").open() as table:
        return any(line.split()[1:4:2] == [wanted, "0A"] for line in table)


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
