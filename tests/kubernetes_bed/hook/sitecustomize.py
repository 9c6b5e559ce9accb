"""Makes a Python process of a pod live on the pod's own address of 127.0.0.0/8.

On a real cluster each pod has a network of its own. Here all share one loopback device, so a
server that listens on all addresses would take its port from every other pod: it listens on the
pod's address instead. This hook stands first in the PYTHONPATH of each pod.
"""

import os
import socket

ADDRESS = os.environ.get("KUBERNETES_BED_ADDRESS")
WILDCARDS = {"", "0.0.0.0", "::"}
LOCALHOST = {"127.0.0.1", "localhost"}


def install():
    """Replace the methods that decide on addresses."""
    bind, connect, getaddrinfo = socket.socket.bind, socket.socket.connect, socket.getaddrinfo

    def bind_to_pod(self, address):
        """Bind; a fixed port of localhost is the pod's own, and port-forwards lead there."""
        if self.family == socket.AF_INET:
            own = address[0] in LOCALHOST and address[1] != 0
            if own or address[0] in WILDCARDS:
                address = (ADDRESS, *address[1:])
        return bind(self, address)

    def connect_from_pod(self, address):
        """Connect; a UDP socket that only asks for its own address gets the pod's."""
        datagrams = self.family == socket.AF_INET and self.type & 15 == socket.SOCK_DGRAM
        if datagrams and not str(address[0]).startswith("127."):
            return bind(self, (ADDRESS, 0))
        return connect(self, address)

    def getaddrinfo_of_pod(*args, **kwargs):
        found = getaddrinfo(*args, **kwargs)
        return [entry for entry in found if entry[0] != socket.AF_INET6] or found

    socket.socket.bind = bind_to_pod
    socket.socket.connect = connect_from_pod
    socket.getaddrinfo = getaddrinfo_of_pod
    socket.has_ipv6 = False


if ADDRESS:
    install()
