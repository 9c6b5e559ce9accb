"""Messages with which managers attach to a scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict


@dataclass(frozen=True)
class Attachment:
    """A manager's description of itself when it attaches to a scheduler."""

    #: Id, unique in the cluster and kept when the manager is restarted.
    manager: str
    #: Identifies the manager's present process.
    nonce: str
    #: The process, as :func:`scalable.liveness.identify_process` describes it.
    identity: Mapping[str, Any] = field(default_factory=dict)
    target: str = ""
    provider: str = ""
    #: Managers with lower numbers get workers first.
    priority: int = 0
    #: Maximum number of workers by tag.
    limits: Mapping[str, int] = field(default_factory=dict)
    #: ``slots``, ``cpus``, ``memory`` and ``gpus`` of one worker, by tag.
    pools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Fields of :class:`scalable.spec.Starting`; a missing field has its default.
    starting: Mapping[str, float] = field(default_factory=dict)
    #: True if its workers use the same file system as the clients' machine.
    shares_files: bool = True
    #: What :func:`scalable.planning.unit_prices.unit_prices` returns by tag: ``per_hour``,
    #: ``minimum_s`` and ``granularity_s`` of one worker. Tags without a known price are missing.
    prices: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class AttachAnswer(TypedDict):
    """The scheduler's answer to a manager that attaches."""

    accepted: bool
    #: Reason for the refusal, or None.
    reason: str | None
    #: ``nonce``, ``identity`` and ``silent_s`` (seconds since its last message) of another process
    #: that is attached under the same id, or None.
    holder: dict[str, Any] | None
