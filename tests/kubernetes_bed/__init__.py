"""A Kubernetes cluster on this machine for the tests; `scripts/kubernetes-testbed` by hand.

An API server in memory and a kubelet that runs the command of each pod as a local process. The
image of every pod is this machine: its system and the Python environment of the test bed, without
the home and the temporary directories. Each container has a mount, a PID and a UTS namespace of
its own (made by `unshare`), so that its volumes are at the paths that its spec names, and service
names are in its /etc/hosts. The network is this machine's loopback device: each pod has an address
of 127.0.0.0/8, and a hook in each Python process of a pod (hook/sitecustomize.py) lets servers
that listen on all addresses listen on that one.
"""

from .bed import KubernetesBed
from .container import unavailable
from .credentials import USERS

__all__ = ["USERS", "KubernetesBed", "unavailable"]
