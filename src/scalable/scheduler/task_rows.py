"""Encoding of the rows about calls.

It is done by hand, since the recorder must not take more than 5 % of the scheduler's CPU time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from scalable.protocol.measured import SHARES

#: Largest number of pairs of task name and tag for which the encoded text is cached.
KEPT_HEADS = 1000
#: Counts for a bundle that was taken back, cancelled, or lost with its worker.
NO_CALLS: Mapping[str, Any] = {"calls": 0, "failed": 0, "total_s": 0.0, "quantiles_s": ()}

#: Encodes a value as JSON.
encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def head_of(task_id: str, name: str, tag: str | None) -> str:
    """Return the beginning of the rows of a call."""
    return f'{{"task_id":{encoded(task_id)}{_middle_of_head(name, tag)}'


@lru_cache(KEPT_HEADS)
def _middle_of_head(name: str, tag: str | None) -> str:
    """Return the part of a task's row that contains its name and tag, encoded."""
    return f',"task_name":{encoded(name)},"tag":{encoded(tag)},'


def told_of_bundle(bundle: Mapping[str, Any], cancelled: int = 0) -> str:
    """Return the end of a bundle's row: counts and durations of its calls, encoded."""
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
    """Return the beginning of the rows of one call in a bundle, from that of the bundle."""
    return head.replace('","task_name"', f'/{number}","task_name"', 1)


def row_in_bundle(head: str, worker: str, ready_at: float, state: str, row: Sequence[Any]) -> str:
    """Return the encoded row of one call in a bundle.

    Parameters
    ----------
    head
        Beginning of the call's rows.
    worker
        Name of the worker, encoded.
    ready_at
        Time since which the bundle waited for a worker, in seconds since 1970.
    state
        State in which the call ended.
    row
        When the call began in seconds since 1970, its seconds, CPU seconds, and peak memory in
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
