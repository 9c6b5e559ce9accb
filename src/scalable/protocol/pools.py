"""Checks and messages for the names and worker counts of pools. This module does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict

from scalable.errors import ClusterError, ScalableError
from scalable.model.components import MOST_WORKERS
from scalable.protocol.operations import WIRE, WIRE_VERSION
from scalable.units import parse_bytes

#: Tag that stands for the pool of workers without a tag.
UNTAGGED = ""


def wanted_counts(
    n: int | str | Mapping[str, int], count: Any, only_pool: Callable[[], str]
) -> dict[str, int]:
    """Return worker counts by tag from the arguments of ``scale``.
    ``scale(3)``, ``scale(tag, 3)`` and ``scale({tag: 3})`` set absolute counts. ``only_pool``
    returns the tag of the first form. Raises ClusterError for a missing or invalid count.
    """
    if isinstance(n, Mapping):
        counts = dict(n)
    elif isinstance(n, str):
        if count is None:
            raise ClusterError(
                f"scale({n!r}) has no number of workers: write, for example, scale({n!r}, 3)"
            )
        counts = {n: count}
    else:
        counts = {only_pool(): n}
    for tag, number in counts.items():
        check_count(tag, number)
    return counts


def only_tag(tags: Iterable[str], verb: str = "scale(tag, n)") -> str:
    """Return the tag of a cluster's only pool. Raises ClusterError if it has none or several."""
    known = sorted(tags)
    if len(known) != 1:
        words = ", ".join(map(repr, known)) or "no pool"
        raise ClusterError(f"no pool was named, but this cluster has {words}: write {verb}")
    return known[0]


def check_tag(tag: str, *known: Mapping[str, Any]) -> None:
    """Raise ClusterError unless a mapping in ``known`` has ``tag`` as a key."""
    if not any(tag in pools for pools in known):
        raise ClusterError(f"no pool {tag!r}; known pools: {known_tags(known[0])}")


def check_count(tag: str, count: Any) -> None:
    """Raise ClusterError unless a pool's worker count is from 0 to :data:`MOST_WORKERS`."""
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_WORKERS:
        most = f"a whole number from 0 to {MOST_WORKERS:,}"
        raise ClusterError(f"{shown(tag)} cannot have {count!r} workers: give {most}")


def shown(tag: str) -> str:
    """Return a pool's name for messages, such as ``pool 'a'``."""
    return f"pool {tag!r}" if tag else "the pool without a tag"


def known_tags(pools: Mapping[str, Any]) -> str:
    """Return the sorted tags for a message, or ``none``."""
    return ", ".join(sorted(repr(tag) for tag in pools if tag)) or "none"


# Matching -----------------------------------------------------------------------------------------


#: What a manager's description of a pool says of one worker, as in a component.
_SHAPE = ("cpus", "memory", "gpus")


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """Describe how the workers of two descriptions of a pool differ, or None if all agrees.
    What one of the two does not know is the same.
    """
    words = []
    for name in _SHAPE:
        a, b = one.get(name), other.get(name)
        if a is not None and b is not None and _amount(a) != _amount(b):
            words.append(f"{name} {a} there, {b} here")
    return ", ".join(words) or None


def _amount(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parse_bytes(value)
    except (ScalableError, ValueError):
        return value


def slots_of(resources: Mapping[str, float] | None, tag: str) -> int:
    """Return the slots that a task takes on a tag's worker, or 0 if it needs other workers."""
    asked = resources or {}
    if not tag:
        return 0 if asked else 1
    return int(asked.get(tag, 0))


def fits(resources: Mapping[str, float] | None, tag: str, slots: int) -> bool:
    """Return whether a task can run on a worker with the given tag and number of slots."""
    return 0 < slots_of(resources, tag) <= slots


# Attachments --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attachment:
    """A manager's description of itself when it attaches to a scheduler."""

    #: Id, unique in the cluster and kept when the manager is restarted.
    manager: str
    #: Identifies the manager's present process, unlike the id.
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
    #: Fields of :class:`scalable.model.Starting`; a missing field has its default.
    starting: Mapping[str, float] = field(default_factory=dict)
    #: True if its workers use the same file system as the clients' machine.
    shares_files: bool = True
    #: Prices by tag, from :func:`scalable.planning.unit_prices.unit_prices`: ``per_hour``,
    #: ``minimum_s`` and ``granularity_s`` of one worker. Tags without a known price are missing.
    prices: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def to_message(self) -> dict[str, Any]:
        """Return the arguments of :attr:`.Handler.ATTACH`."""
        return {**asdict(self), WIRE: WIRE_VERSION}


class AttachAnswer(TypedDict):
    """Scheduler's answer to an attaching manager."""

    accepted: bool
    #: Reason for the refusal, or None.
    reason: str | None
    #: ``nonce``, ``identity`` and ``silent_s`` (seconds since its last message) of another process
    #: that is attached under the same id, or None.
    holder: dict[str, Any] | None
