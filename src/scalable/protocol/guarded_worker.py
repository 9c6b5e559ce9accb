"""Dask's worker with a guarded HTTP server, as a class that another process can import."""

from __future__ import annotations

from distributed import Worker

from scalable.protocol.guarded_http import GuardedHttp


class GuardedWorker(GuardedHttp, Worker):
    """Dask's worker, for a ``Nanny``, with an HTTP server on loopback that requires a token."""

    _opens_unasked = True
