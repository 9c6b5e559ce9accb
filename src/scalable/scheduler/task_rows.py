"""Encoding of the rows about tasks.
It is hand-written, since the recorder must not take more than 5 % of the scheduler's CPU time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from scalable.protocol.measured import SHARES

#: Largest number of pairs of task name and tag whose encoded string is cached.
KEPT_HEADS = 1000
#: Counts for a bundle that was taken back by its client, cancelled, or lost with its worker.
NO_CALLS: Mapping[str, Any] = {"calls": 0, "failed": 0, "total_s": 0.0, "quantiles_s": ()}

#: Encodes a value as JSON.
encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def head_of(task_id: str, name: str, tag: str | None) -> str:
    """Return the prefix of the rows of a task."""
    return f'{{"task_id":{encoded(task_id)}{_middle_of_head(name, tag)}'


@lru_cache(KEPT_HEADS)
def _middle_of_head(name: str, tag: str | None) -> str:
    return f',"task_name":{encoded(name)},"tag":{encoded(tag)},'


def told_of_bundle(bundle: Mapping[str, Any], cancelled: int = 0) -> str:
    """Return the encoded tail of a bundle's row: counts and durations of its tasks."""
    quantiles = zip(SHARES, bundle["quantiles_s"], strict=False)
    told = {
        "count": bundle["calls"],
        "failed": bundle["failed"],
        "total_s": round(bundle["total_s"], 6),
        "quantiles_s": {f"{share:g}": round(value, 6) for share, value in quantiles},
    }
    if bundle.get("found"):
        told["found"] = bundle["found"]
    if cancelled:
        told["cancelled"] = cancelled
    return f',"calls":{encoded(told)}'


def head_in_bundle(head: str, number: int) -> str:
    """Return the prefix of the rows of one task in a bundle, from that of the bundle."""
    return head.replace('","task_name"', f'/{number}","task_name"', 1)


def row_in_bundle(head: str, worker: str, ready_at: float, state: str, row: Sequence[Any]) -> str:
    """Return the encoded row of one task in a bundle.
    ``ready_at`` is epoch seconds. ``row`` has start in epoch seconds, seconds, CPU seconds and peak
    bytes.
    """
    began, duration_s, cpu_s, memory = row
    queued = max(0.0, began - ready_at)
    return (
        f'{head}"worker":{worker},"state":"{state}",'
        f'"timestamp":{began + duration_s},"queued_s":{queued:.6f},"duration_s":{duration_s:.6f},'
        f'"transfer_s":0.0,"cpu_s":{cpu_s:.6f},'
        f'"peak_memory":{"null" if memory is None else memory},"nbytes":null,"input_bytes":0}}'
    )
