"""The test bed as tests hold it: a process that runs the cluster, and commands to it."""

from bed_process import BedProcess

from .container import unavailable


class KubernetesBed(BedProcess):
    """A Kubernetes cluster on this machine, in a process of its own.

    It ends with the process that made it, whatever way that ends, and so do all its pods.
    """

    name = "Kubernetes test bed"
    program = "kubernetes_bed.cluster"
    unavailable = staticmethod(unavailable)

    def kubeconfig(self, user="alice"):
        """Return the path of a kubeconfig whose current context is a user's."""
        return self.directory / f"kubeconfig-{user}"

    # Faults ---------------------------------------------------------------------------------------

    def requests(self, reset=False):
        """Return how often each `verb resource` was asked for."""
        return self.ask("requests", reset=reset)

    def down(self, seconds):
        """Let the API server be away for some seconds."""
        self.ask("down", seconds=seconds)

    def throttle(self, seconds, every=1):
        """Answer every n-th request with 429 for some seconds."""
        self.ask("throttle", seconds=seconds, every=every)

    def breakdown(self, seconds):
        """Answer each request with 500 for some seconds."""
        self.ask("breakdown", seconds=seconds)

    def conflicts(self, every):
        """Answer every n-th write with 409; 0 ends it. Return `verb resource` -> times so far."""
        return self.ask("conflicts", every=every)

    def close_watches(self):
        """End each watch as if its time were over."""
        self.ask("close_watches")

    def compact(self):
        """Forget the history of changes and end each watch with 410 Gone."""
        self.ask("compact")

    def cut_tunnels(self):
        """Cut each port-forward; return how many there were."""
        return self.ask("cut_tunnels")

    def content(self, pattern, python=True, packages=True):
        """Let images that match a pattern have no Python, or a Python without packages."""
        self.ask("content", pattern=pattern, python=python, packages=packages)

    def image(self, pattern, delay=0.0, error=""):
        """Let images that match a pattern be slow to pull, or fail with an error."""
        self.ask("image", pattern=pattern, delay=delay, error=error)

    def evict(self, name, namespace="default"):
        """End a pod as a node under pressure does."""
        self.ask("evict", name=name, namespace=namespace)

    def preempt(self, name, namespace="default"):
        """End a pod in favour of another."""
        self.ask("preempt", name=name, namespace=namespace)

    def kill(self, name, namespace="default"):
        """Kill the processes of a pod."""
        self.ask("kill", name=name, namespace=namespace)

    def add_node(self, name, **options):
        """Add a node; options: cpu, memory, gpus, labels, taints."""
        self.ask("add_node", name=name, **options)

    def add_namespace(self, name, labels=None):
        """Add a namespace."""
        self.ask("add_namespace", name=name, labels=labels)

    def lose_node(self, name, after=1.0):
        """Let a node vanish; its pods are given up after some seconds."""
        self.ask("lose_node", name=name, after=after)
