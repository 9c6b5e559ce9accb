"""A program as the first process of a container: ``python -m ...first_process MODULE ARGUMENT...``.

Linux ignores SIGTERM in that process until a handler exists, so a pod deleted during imports would
live for its whole grace period. The handler here is replaced by the program's own.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from typing import Any

#: Exit code of a process that SIGTERM has stopped, as shells report it.
TERMINATED = 128 + signal.SIGTERM


def main() -> None:
    """Run the named module as ``python -m`` does."""
    signal.signal(signal.SIGTERM, _end)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _end(*_: Any) -> None:
    os._exit(TERMINATED)


if __name__ == "__main__":
    main()
