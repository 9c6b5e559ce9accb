"""Tags of a cluster, and the number of slots of the largest worker of each tag."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scalable.protocol.handlers import Handler
from scalable.protocol.operations import CONTROLLER


@dataclass(frozen=True)
class KnownSlots:
    """Tags of a cluster, and the slots (for one task each) of their largest workers."""

    #: Number of slots of the largest worker with each tag.
    slots: dict[str, int] = field(default_factory=dict)
    #: True if any worker is connected.
    has_workers: bool = False


def ask_known_slots(ask: Callable[..., Any], cluster: Any) -> KnownSlots:
    """Return the tags and slots of the declared pools and of the connected workers."""
    slots: dict[str, int] = {}
    workers = ask("identity", n_workers=-1)["workers"].values()
    for worker in workers:
        for tag, amount in worker["resources"].items():
            slots[tag] = max(slots.get(tag, 0), int(amount))
    declared: dict[str, int] = {}
    if ask("get_metadata", keys=[CONTROLLER], default=False):
        declared = {t: p["slots"] for t, p in ask(Handler.POOLS).items() if t}
    # A pool that was added just now may not have been reported to the scheduler yet.
    declared |= {t: p.slots for t, p in getattr(cluster, "pools", {}).items()}
    for tag, amount in declared.items():
        slots[tag] = max(slots.get(tag, 0), amount)
    return KnownSlots(slots, bool(workers))
