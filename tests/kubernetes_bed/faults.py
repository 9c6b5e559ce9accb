"""Faults that a test asks for, and the count of requests."""

import time
from collections import Counter

from .errors import ApiError

#: Verbs that change objects. Creations meet conflicts too: those of quotas, which are counted then.
WRITES = {"create", "update", "patch", "delete"}


class Faults:
    """Troubles of the API server that are asked for; nothing happens by itself."""

    def __init__(self):
        self.requests = Counter()
        self.throttled_until = 0.0
        self.throttle_share = 1
        self.broken_until = 0.0
        self.conflict_every = 0
        self.turn = 0
        self.writes = 0
        self.refused = Counter()

    def count(self, verb, target, request):
        """Count a request under `verb resource`, for example `create pods` or `get pods/log`."""
        name = request.path
        if target is not None:
            name = f"{target.kind.plural}/{target.part}" if target.part else target.kind.plural
        self.requests[f"{verb} {name}"] += 1

    def refuse(self, verb, target):
        """Raise the error that a fault wants for this request."""
        moment = time.monotonic()
        if moment < self.throttled_until:
            self.turn += 1
            if self.turn % self.throttle_share == 0:
                details = {"retryAfterSeconds": 1}
                raise ApiError(429, "too many requests, please try again later", None, details)
        if moment < self.broken_until:
            raise ApiError(500, "etcdserver: request timed out")
        if self.conflict_every and verb in WRITES and target.part in {"", "status"}:
            if target.kind.virtual:
                return
            self.writes += 1
            if self.writes % self.conflict_every == 0:
                self.refused[f"{verb} {target.kind.plural}"] += 1
                text = f'Operation cannot be fulfilled on {target.kind.qualified} "{target.name}": the object has been modified; please apply your changes to the latest version and try again'
                raise ApiError(409, text)

    # Asked for ------------------------------------------------------------------------------------

    def throttle(self, seconds, every=1):
        """Answer every n-th request with 429 for some seconds."""
        self.throttled_until = time.monotonic() + seconds
        self.throttle_share = every

    def breakdown(self, seconds):
        """Answer each request with 500 for some seconds."""
        self.broken_until = time.monotonic() + seconds

    def conflicts(self, every):
        """Answer every n-th write with 409; 0 ends it. Return what was refused since the last time."""
        self.conflict_every = every
        self.writes = 0
        refused, self.refused = dict(self.refused), Counter()
        return refused
