"""In which state a cluster is, from what is known of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalable.spec import ClusterRecord

#: A scheduler that writes its status every 2 s and has not for so long does not answer.
SILENT_S = 15.0


@dataclass(frozen=True)
class Sight:
    """What can be seen of the process on which a cluster stands.

    Attributes
    ----------
    alive
        Whether it is there; None where that cannot be told.
    another
        Whether its number belongs to another process now, or its host was started anew.
    """

    alive: bool | None
    another: bool = False


def state_of(
    record: ClusterRecord, status: Mapping[str, Any] | None, sight: Sight | None, now: float
) -> tuple[str, str | None]:
    """State of a cluster, and why.

    Parameters
    ----------
    record
        What it was asked to be.
    status
        What its scheduler wrote last, or None.
    sight
        What is seen of its scheduler's process (of its user's, for embedded ones); None where it
        has not said yet which that is.
    now
        Epoch seconds.
    """
    if sight is not None and sight.another:
        return "stale", "the process that it stood on is from before a restart, or long gone"
    if record.stage == "deleting":
        return "deleting", None
    if sight is not None and sight.alive is False:
        what = "the process that it lived in" if record.embedded else "its scheduler"
        return "failed", f"{what} is gone"
    if status is None:
        return ("creating", None) if record.stage == "creating" else ("starting", None)
    silent_s = now - float(status.get("written_at") or 0.0)
    if silent_s > SILENT_S:
        return "unreachable", f"its scheduler has said nothing for {silent_s:.0f} s"
    return str(status.get("state")), status.get("reason")
