"""Run a Kubernetes test bed by hand until it is interrupted: `python -m tests.kubernetes_bed`."""

import contextlib
import signal
import sys

from .bed import KubernetesBed
from .credentials import USERS


def main():
    with KubernetesBed() as bed:
        others = ", ".join(user for user in USERS if user != "alice")
        print(f"export KUBECONFIG={bed.kubeconfig()}")
        print(f"# the user is alice; contexts of others: {others}", file=sys.stderr)
        print("# Ctrl-C ends it and all its pods", file=sys.stderr, flush=True)
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


main()
