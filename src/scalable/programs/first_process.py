"""A program as the first process of a container: ``python -m ...first_process MODULE ARGUMENT...``.

Linux does not deliver a signal without a handler to the first process of a container. A pod that is
deleted while its program imports modules, which takes seconds, would live until its grace period is
over. Here SIGTERM ends the process from its first moment on; the program replaces the handler.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from typing import Any

#: Exit code of a process that SIGTERM has ended, as shells report it.
TERMINATED = 128 + signal.SIGTERM


def main() -> None:
    """Run a module as ``python -m`` does."""
    signal.signal(signal.SIGTERM, _end)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _end(*_: Any) -> None:
    os._exit(TERMINATED)


if __name__ == "__main__":
    main()
