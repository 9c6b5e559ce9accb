"""Exit codes of a worker process that ends itself."""

from __future__ import annotations

#: The worker used more memory than its limit.
OUT_OF_MEMORY = 71
