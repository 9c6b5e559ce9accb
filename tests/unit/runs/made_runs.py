"""Records of runs that tests make up."""

from pathlib import Path

from scalable.runs.reading import RunRecord

START = 1767225600.0
RUN_ID = "run-20260101T000000Z-climate-0a1b2c3d"


def call(number, name="simulate", worker="a-0", tag="a", **more):
    """Return the last row of a call that took one second, the first task at the start."""
    begin = START + number
    row = {"task_id": f"{name}-{number}", "task_name": name, "tag": tag, "worker": worker}
    row |= {"state": "succeeded", "timestamp": begin + 1.0, "duration_s": 1.0, "queued_s": 0.5}
    return row | {"peak_memory": 100 * 2**20} | more


def made_record(tasks=(), workers=None, status="completed", plan=None, **more):
    """Return a record of two workers that were connected for 20 s."""
    if workers is None:
        workers = [
            {"event": event, "worker": f"a-{n}", "tag": "a", "timestamp": START + moment}
            for n in range(2)
            for event, moment in (("started", 0), ("removed", 20))
        ]
    run = {"run_id": RUN_ID, "project": "climate", "target": "laptop", "status": status}
    run |= {"started_at": "2026-01-01T00:00:00+00:00", "ended_at": "2026-01-01T00:00:20+00:00"}
    return RunRecord(
        path=Path("/data/runs") / RUN_ID,
        run=run | more.pop("run", {}),
        status=status,
        tasks=list(tasks),
        workers=list(workers),
        plan=plan or {},
        **more,
    )
