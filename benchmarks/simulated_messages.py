"""Messages of a worker to its scheduler, with made-up contents."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterable, Mapping
from typing import Any

from distributed.protocol import Serialize
from distributed.versions import get_versions

from scalable.protocol.measured import FAILURE, USAGE, addition
from scalable.protocol.operations import LEFT, MANAGER_KEY

MB = 1_000_000
_RESULT_TYPE = pickle.dumps(int)
#: As long as that of a call deep in a library.
_TRACEBACK = '  File "/somewhere/model.py", line 1, in call\n    raise ValueError\n' * 80
_known_versions: dict[str, Any] = {}


def registration(
    name: str, address: str, tag: str, manager: str, threads: int, memory: int
) -> dict[str, Any]:
    """Return the message with which a worker registers."""
    return {
        "op": "register-worker",
        "reply": False,
        "address": address,
        "status": "running",
        "nthreads": threads,
        "name": name,
        "now": time.time(),
        "resources": {tag: float(threads)} if tag else {},
        "memory_limit": memory,
        "local_directory": "/simulated",
        "services": {},
        "nanny": None,
        "pid": os.getpid(),
        "versions": _versions(),
        "metrics": metrics(0, 0, 0, 0),
        "extra": {MANAGER_KEY: manager, LEFT: True} if manager else {},
        "stimulus_id": f"worker-connect-{time.time()}",
        "server_id": f"Worker-{name}",
    }


def metrics(running: int, waiting: int, held: int, held_bytes: int) -> dict[str, Any]:
    """Return the metrics of a heartbeat, from the numbers of calls and results of a worker."""
    return {
        "task_counts": {"executing": running, "memory": held, "ready": waiting},
        "bandwidth": {"total": 100 * MB, "workers": {}, "types": {}},
        "digests_total_since_heartbeat": {"latency": 0.001, "tick-duration": 0.5},
        "managed_bytes": held_bytes,
        "spilled_bytes": {"memory": 0, "disk": 0},
        "transfer": {
            "incoming_bytes": 0, "incoming_count": 0, "incoming_count_total": 0,
            "outgoing_bytes": 0, "outgoing_count": 0, "outgoing_count_total": 0,
        },
        "event_loop_interval": 0.02,
        "cpu": 100.0 * bool(running),
        "memory": 100 * MB,
        "time": time.time(),
        "host_net_io": {"read_bps": 0.0, "write_bps": 0.0},
        "host_disk_io": {"read_bps": 0.0, "write_bps": 0.0},
        "num_fds": 30,
    }  # fmt: skip


def finished(
    call: Mapping[str, Any], seconds: float, nbytes: int, entries: Iterable[Any] = ()
) -> dict[str, Any]:
    """Return the message that a call has a result, which took some seconds."""
    now = time.time()
    return {
        "op": "task-finished",
        "status": "OK",
        "key": call["key"],
        "run_id": call["run_id"],
        "nbytes": nbytes,
        "type": _RESULT_TYPE,
        "typename": "int",
        "metadata": {},
        "thread": 1,
        "startstops": [*_times(now - seconds, seconds), *entries],
        "stimulus_id": f"task-finished-{now}",
    }


def erred(call: Mapping[str, Any], seconds: float, worker: str, words: str) -> dict[str, Any]:
    """Return the message that a call has failed on a worker, after some seconds."""
    now = time.time()
    told = addition(FAILURE, {"worker": worker})
    return {
        "op": "task-erred",
        "status": "error",
        "key": call["key"],
        "run_id": call["run_id"],
        "exception": Serialize(ValueError(words)),
        "traceback": None,
        "exception_text": f"ValueError({words!r})",
        "traceback_text": _TRACEBACK,
        "thread": 1,
        "startstops": [*_times(now - seconds, seconds), told],
        "stimulus_id": f"task-erred-{now}",
    }


def _times(began: float, seconds: float) -> list[dict[str, Any]]:
    ended = began + seconds
    return [
        {"action": "compute", "start": began, "stop": ended},
        addition(USAGE, {"cpu_s": seconds, "peak_memory": 100 * MB}),
    ]


def _versions() -> dict[str, Any]:
    """Return the versions of this process, which take long to find."""
    if not _known_versions:
        _known_versions.update(get_versions())
    return _known_versions
