"""Messages with which managers attach to a scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict


@dataclass(frozen=True)
class Attachment:
    """The description that a manager gives of itself when it attaches to a scheduler.

    A manager starts and stops workers in one place, such as a Slurm partition.

    Attributes
    ----------
    manager
        Id of the manager: unique in the cluster, and kept when the manager is restarted.
    nonce
        Text that identifies the manager's present process.
    identity
        The manager's process, as :func:`scalable.liveness.identify_process` describes it.
    target, provider
        Name of the place where the manager starts workers, and name of its provider.
    priority
        Rank among the managers: managers with lower numbers get workers first.
    limits
        Tag -> maximum number of workers that the manager can start.
    pools
        Tag -> ``slots``, ``cpus``, ``memory`` and ``gpus`` of one worker.
    starting
        Fields of :class:`scalable.spec.Starting`; a missing field has its default.
    shares_files
        Whether its workers see the file system of the clients' machine.
    prices
        Tag -> ``per_hour``, ``minimum_s`` and ``granularity_s`` of one worker, as
        :func:`scalable.planning.unit_prices.unit_prices` returns them; tags without a known price
        are missing.
    """

    manager: str
    nonce: str
    identity: Mapping[str, Any] = field(default_factory=dict)
    target: str = ""
    provider: str = ""
    priority: int = 0
    limits: Mapping[str, int] = field(default_factory=dict)
    pools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    starting: Mapping[str, float] = field(default_factory=dict)
    shares_files: bool = True
    prices: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class AttachAnswer(TypedDict):
    """The answer to a manager that wants to attach.

    Attributes
    ----------
    accepted
        Whether the manager is attached and may start workers.
    reason
        Reason for the refusal, or None.
    holder
        ``nonce``, ``identity`` and ``silent_s`` (seconds since its last message) of another
        process that is attached under the same id, or None.
    """

    accepted: bool
    reason: str | None
    holder: dict[str, Any] | None
