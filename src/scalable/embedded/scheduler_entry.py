"""The ``SpecCluster`` entry of a cluster's scheduler, and the cluster's TLS credentials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distributed import Scheduler, Security
from distributed.utils import import_term

from scalable.protocol.addresses import LOOPBACK
from scalable.protocol.credentials import new_security
from scalable.protocol.guarded_http import guarded
from scalable.protocol.private_directory import scratch_parent
from scalable.protocol.private_node import private_class
from scalable.scheduler.pool_scheduler import PoolScheduler


def secured_entry(
    scheduler: Mapping[str, Any] | None, security: Security | None
) -> tuple[dict[str, Any], Security | None]:
    """Return a complete scheduler entry and its TLS credentials, new unless some are given.
    Without an entry it is a ``PoolScheduler`` on the loopback interface.
    """
    entry = dict(
        scheduler
        or {"cls": PoolScheduler, "options": {"host": LOOPBACK, "dashboard": False, "port": 0}}
    )
    cls = entry.get("cls", PoolScheduler)
    if isinstance(cls, str):
        cls = import_term(cls)
    options = dict(entry.get("options", {}))
    given = options.get("security")
    if security is None and isinstance(given, Security):
        security = given
    ours = isinstance(cls, type) and issubclass(cls, Scheduler)
    if ours:
        # Refused here, because Dask wraps the error of a scheduler that does not start.
        scratch_parent(options.get("local_directory"))
        cls = private_class(guarded(cls))
    if ours and "security" not in options:
        if security is None and "protocol" not in options:
            security = new_security()
        if security is not None and security.require_encryption:
            options["security"] = security
            options.setdefault("protocol", "tls://")
    return {**entry, "cls": cls, "options": options}, security
