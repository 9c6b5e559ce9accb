"""A Google Cloud on this machine for the tests; `scripts/gcp-testbed` by hand.

One HTTP server answers for Compute Engine, Secret Manager, the resource manager and the token
service, and holds each request against Google's own discovery documents. Each instance is real: its
startup script runs as a local process, with a metadata server, a serial port and an address of
127.0.0.0/8 of its own, in namespaces as the pods of `kubernetes_bed` have them. `docker` there is a
program of the test bed, which runs the container's command as a process; the image of every
container is this machine's system with the Python environment of the test bed.
"""

from kubernetes_bed.container import unavailable

from .bed import GcpBed

__all__ = ["GcpBed", "unavailable"]
