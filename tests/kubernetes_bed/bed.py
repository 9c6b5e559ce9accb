"""The test bed as tests hold it: a process that runs the cluster, and commands to it."""

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from .container import unavailable


class _Connection(http.client.HTTPConnection):
    """HTTP through a Unix socket."""

    def __init__(self, path):
        super().__init__("bed", timeout=60)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class KubernetesBed:
    """A Kubernetes cluster on this machine, in a process of its own.

    It ends with the process that made it, whatever way that ends, and so do all its pods.
    """

    def __init__(self):
        if reason := unavailable():
            raise RuntimeError(f"the Kubernetes test bed cannot run: {reason}")
        self.directory = Path(tempfile.mkdtemp(prefix="kubernetes-bed-"))
        self.process = None

    def start(self):
        """Start the cluster and wait until it listens."""
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); from kubernetes_bed.cluster import main; main({str(self.directory)!r})"
        with (self.directory / "errors").open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        if self.process.stdout.readline() != b"ready\n":
            text = (self.directory / "errors").read_text()
            self.stop()
            raise RuntimeError(f"the Kubernetes test bed did not start:\n{text}")
        return self

    def stop(self):
        """End the cluster and its pods and remove its directory."""
        if self.process is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    def kubeconfig(self, user="alice"):
        """Return the path of a kubeconfig whose current context is a user's."""
        return self.directory / f"kubeconfig-{user}"

    def errors(self):
        """Return what the cluster's process wrote to its standard error."""
        return (self.directory / "errors").read_text()

    def ask(self, command, **arguments):
        """Run a command of the cluster (`do_...` in cluster.py) and return its result."""
        connection = _Connection(self.directory / "control")
        try:
            connection.request("POST", f"/{command}", json.dumps(arguments))
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        if "error" in answer:
            raise RuntimeError(f"{command} of the Kubernetes test bed: {answer['error']}")
        return answer["result"]

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
        """Answer every n-th update or patch with 409; 0 ends it."""
        self.ask("conflicts", every=every)

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

    def add_namespace(self, name):
        """Add a namespace."""
        self.ask("add_namespace", name=name)

    def lose_node(self, name, after=1.0):
        """Let a node vanish; its pods are given up after some seconds."""
        self.ask("lose_node", name=name, after=after)
