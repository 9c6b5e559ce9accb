"""Overviews and events that tests show."""

from scalable.model.clusters import PoolStatus
from scalable.model.overview import (
    Events,
    Overview,
    PoolOverview,
    PredictedEnd,
    TaskCounts,
    TaskOverview,
    TaskSums,
    WorkerOverview,
)
from scalable.quantiles import Sum

NOW = 1_700_000_000.0
HEBREW = "\u05e9\u05dc\u05d5\u05dd"
#: Names that would colour a terminal, run markup, or break a table.
HOSTILE = (
    "[bold red]markup[/]", "\x1b[31mescape\x1b]0;title\x07", "x" * 10_000, HEBREW * 20,
    "\u202eturned\u202c", "two\nlines\r\tand a tab", "z" + "\u0301" * 10_000, "\u6f22\u5b57" * 30,
    "",
)  # fmt: skip


def task(name, tag="small", mean_s=2.0, names=1, **counts):
    sums = TaskSums() if mean_s is None else TaskSums(duration_s=Sum(1, mean_s))
    return TaskOverview(name, tag, TaskCounts(**counts), sums, names)


def pool(wanted=2, running=2, adaptive=None, cost=None, **told):
    status = {key: told.pop(key) for key in ("launching", "reason", "lost") if key in told}
    return PoolOverview(
        PoolStatus(wanted=wanted, running=running, **status), adaptive=adaptive, cost=cost, **told
    )


def overview(**changes):
    made = {
        "at": NOW,
        "seq": 7,
        "cluster": {
            "name": "climate", "provider": "slurm", "target": "hpc", "state": "running",
            "reason": None, "started_at": NOW - 600, "ends_at": None, "idle_ends_at": None,
        },
        "pools": {
            "small": pool(busy=2, used_slots=2, slots=2, queued=30),
            "big": pool(4, 1, adaptive=(0, None), lost=1, reason="the quota is used up"),
        },
        "tasks": (
            task("fit", running=2, queued=30, done=18),
            task("score", "big", 0.5, done=5, failed=1),
        ),
        "managers": (
            {"id": "hpc", "target": "hpc", "provider": "slurm", "state": "running",
             "silent_s": 0.4, "pools": {"small": {"wanted": 2, "running": 2}}},
        ),
        "workers": 3,
        "clients": 1,
        "end": PredictedEnd(NOW + 90, NOW + 60, NOW + 150, "30 unfinished tasks on 2 slots"),
        "cost": {"cost": 1.25, "per_hour": 0.5, "idle": 0.1, "budget": 10.0, "pools": {}},
    } | changes  # fmt: skip
    return Overview(**made)


def events(**changes):
    made = {
        "seq": 7,
        "decisions": [
            {"timestamp": NOW - 60, "tag": "small", "from": 0, "to": 2, "source": "plan",
             "reason": "start"},
            {"timestamp": NOW - 30, "tag": "big", "from": 0, "to": 4, "source": "decision",
             "reason": "30 tasks wait"},
        ],
        "failures": [failure("score", n) for n in range(3)] + [failure("fit", 9, "no file")],
        "samples": [
            {"at": NOW - 10 + n, "pools": {"small": [2, 2, n % 3, 2, 30 - n]}} for n in range(10)
        ],
    } | changes  # fmt: skip
    return Events(**made)


def failure(name, number, message="no value"):
    details = {"task_name": name, "task_id": f"{name}-{number}", "tag": "big", "worker": "big-1",
               "frame": f"model.py:{number // 100} in {name}", "arguments": "(3,)",
               "traceback": "Traceback ...\nValueError"}  # fmt: skip
    return {
        "failure_class": "ValueError", "message": message, "timestamp": NOW - 5, "count": 1,
        "details": details,
    }  # fmt: skip


def workers(count=3):
    return [
        WorkerOverview(f"small-{n:04d}", "small", "tls://host:1", "running", n % 2, 0, n % 2, 1,
                       10**8, 10**9, ("fit",) * (n % 2))
        for n in range(count)
    ]  # fmt: skip
