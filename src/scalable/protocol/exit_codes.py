"""Exit codes of a worker process that stops itself."""

from __future__ import annotations

#: The worker used more memory than its limit.
OUT_OF_MEMORY = 71
#: A worker of the same name has started before. The worker exited without connecting.
BEGAN_BEFORE = 73
#: A program that may run once was started again.
STARTED_AGAIN = 74
