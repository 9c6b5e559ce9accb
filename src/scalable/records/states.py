"""The state of a cluster, from its record, its last status and its process. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalable.spec import ClusterRecord

#: A scheduler writes its status every 2 s. After this time without one it is unreachable.
SILENT_S = 15.0


@dataclass(frozen=True)
class Sight:
    """Observation of the process that a cluster depends on."""

    #: Whether the process is alive. None if that is unknown.
    alive: bool | None
    #: Whether another process has its process id now, or its host was restarted.
    another: bool = False


def state_of(
    record: ClusterRecord, status: Mapping[str, Any] | None, sight: Sight | None, now: float
) -> tuple[str, str | None]:
    """Return the state of a cluster, and the reason.
    ``status`` is the scheduler's last one. ``sight`` is None while the process is unknown. ``now``
    is epoch seconds.
    """
    if sight is not None and sight.another:
        return "stale", "its process id belongs to another process, or its machine was restarted"
    if record.stage == "deleting":
        return "deleting", None
    if sight is not None and sight.alive is False:
        what = "the process that it lived in" if record.embedded else "its scheduler"
        return "failed", f"{what} is gone"
    if status is None:
        return ("creating", None) if record.stage == "creating" else ("starting", None)
    silent_s = now - float(status.get("written_at") or 0.0)
    if silent_s > SILENT_S:
        return "unreachable", f"its scheduler has written no status for {silent_s:.0f} s"
    return str(status.get("state")), status.get("reason")
