"""The report: a whole one, its parts, and what does not fit."""

from dataclasses import replace
from pathlib import Path

from scalable.runs.reading import RunRecord
from scalable.runs.report.run_report import report_on
from scalable.runs.streams import StoredRows

START = 1767225600.0
RUN = {
    "run_id": "run-20260101T000000Z-climate-0a1b2c3d",
    "project": "climate",
    "target": "laptop",
    "provider": "local",
    "started_at": "2026-01-01T00:00:00.000000+00:00",
    "ended_at": "2026-01-01T00:03:05.250000+00:00",
}
TRACEBACK = 'Traceback\n  File "workflow.py", line 12, in simulate\n    f()\nValueError: bad\n'


def calls(name, tag, count, failed=0, measured=True):
    for number in range(count):
        task_id = f"{name}-{number}"
        common = {"task_id": task_id, "task_name": name, "tag": tag}
        yield {**common, "state": "submitted", "timestamp": START}
        yield {**common, "state": "running", "timestamp": START + 1}
        yield {
            **common,
            "state": "failed" if number < failed else "succeeded",
            "timestamp": START + 2 + number,
            "queued_s": 0.5 * number,
            "duration_s": 10.0 + number,
            "peak_memory": (100 + number) * 2**20 if measured else None,
        }


def record(measured=True, status="completed"):
    workers = [
        {"event": event, "worker": f"demeter-{n}", "tag": "demeter", "timestamp": START}
        | {"reason": reason}
        for n, reason in enumerate(["scale-down", "lost", "scale-down", "closed", "closed"])
        for event in ("started", "removed")
    ]
    rerun = {"task_id": "simulate-3", "task_name": "simulate", "state": "running"}
    return RunRecord(
        path=Path("/data/runs/run-20260101T000000Z-climate-0a1b2c3d"),
        run=RUN,
        status=status,
        tasks=[
            rerun,
            *calls("simulate", "demeter", 11, failed=2, measured=measured),
            *calls("aggregate", "post", 1, measured=measured),
        ],
        workers=workers,
        scaling=[{"action": a} for a in ("scale-up", "scale-up", "scale-down", "scale-up")],
        failures=[
            {
                "failure_class": "ValueError",
                "message": "bad draw 0\nmore",
                "details": {"traceback": TRACEBACK},
            },
            {"failure_class": "ValueError", "message": "bad draw 1"},
            {"failure_class": "WorkerLost", "message": "demeter-1 is gone"},
        ],
        artifacts=[
            {"name": "plume", "path": "/data/out/plume.png", "bytes": 34567},
            {"name": "table", "uri": "s3://bucket/table.csv", "bytes": 3},
        ],
    )


WHOLE = """\
Run run-20260101T000000Z-climate-0a1b2c3d
Status:   completed with 2 failures
Project:  climate
Target:   laptop (provider local)
Started:  2026-01-01 00:00:00 UTC
Time:     12.0 s (start-up 0 s, session 3 m 05 s)
Tasks:    10 done, 2 failed
Ran again: 1 task (simulate-3): 1 x reason not known

Duration:
  task       done  failed  median    80 %    95 %     max     total
  simulate      9       2  15.0 s  18.0 s  19.5 s  20.0 s  2 m 45 s
  aggregate     1       0  10.0 s  10.0 s  10.0 s  10.0 s    10.0 s

Time in the queue:
  task       median   95 %    max
  simulate    2.5 s  4.8 s  5.0 s
  aggregate     0 s    0 s    0 s

Peak memory:
  task           median        95 %         max
  simulate   105.00 MiB  109.50 MiB  110.00 MiB
  aggregate  100.00 MiB  100.00 MiB  100.00 MiB

Workers:
  pool     started  removed  final  lost
  demeter        5        3      2     1
  - Lost workers of demeter: 1 x reason not known

Scaling events: 3 scale-up, 1 scale-down

Failures: 3
  ValueError (1): bad draw 0
    at workflow.py:12 in simulate
  ValueError (1): bad draw 1
  WorkerLost (1): demeter-1 is gone
  (scalable report --failed lists them)

Results:
  plume: /data/out/plume.png (33.76 kiB)
  table: s3://bucket/table.csv (3 B)

Record: /data/runs/run-20260101T000000Z-climate-0a1b2c3d
"""


def test_a_whole_report():
    assert str(report_on(record())) == WHOLE


def test_calls_that_failed_because_of_others_are_told():
    told = "Further tasks failed only because they need the result of one of these."
    report = report_on(record())
    assert told not in str(report)
    more = replace(report.summary, tasks={**report.summary.tasks, "failed": 4})
    assert told in str(replace(report, summary=more))


def test_memory_that_was_not_measured_is_said_to_be_so():
    text = str(report_on(record(measured=False)))
    assert "\nPeak memory: not measured\n" in text
    assert "MiB" not in text


def test_an_interrupted_run_says_so_with_what_is_known(tmp_path):
    (tmp_path / "artifacts.jsonl").write_text("torn\n{\n")
    interrupted = replace(
        record(status="interrupted"),
        run={**RUN, "ended_at": None},
        artifacts=StoredRows(tmp_path, "artifacts"),
    )
    text = str(report_on(interrupted))
    assert "Status:   interrupted (its process stopped without closing the run; " in text
    assert "session 12.0 s up to the last record)" in text
    assert "Tasks:    10 done, 2 failed" in text
    assert "Unreadable lines of the record: 2" in text


def test_a_failed_run_says_why():
    run = {**RUN, "exit_code": 3, "error": "SystemExit: 3\ntraceback"}
    text = str(report_on(replace(record(), run=run, status="failed")))
    assert "Status:   failed (exit code 3)\nError:    SystemExit: 3\n" in text


def test_keys_of_tasks_that_ran_again_are_shortened():
    key = "fit-3f2a1c9d-1111-2222-3333-444455556666-7"
    text = str(replace(made := report_on(record()), summary=replace(made.summary, reruns=(key,))))
    assert "Ran again: 1 task (fit-3f2a1c9d...-7): 1 x reason not known\n" in text


def test_an_empty_run():
    report = report_on(RunRecord(path=Path("/runs/run-x"), run={}, status="running"))
    text = str(report)
    assert "Status:   running (the record is incomplete)" in text
    assert (
        "Started:  not known\nTime:     no task finished (session not known)\nTasks:    no tasks\n"
        in text
    )
    assert "Workers:\n  No worker connected.\n\nScaling events: 0 scale-up, " in text
    assert "Failures" not in text
    assert "Results" not in text


def test_nothing_is_wider_than_the_page_or_moves_the_cursor():
    long = "n" * 300
    rows = [
        {**row, "duration_s": 1e7, "queued_s": 1e7} if "duration_s" in row else row
        for row in calls(f"{long}\x1b[31m\n", "t", 1)
    ]
    rerun = [{"task_id": long, "task_name": f"b{long}", "state": "running"}] * 2
    report = report_on(
        RunRecord(
            path=Path("/runs/run-x"),
            run={**RUN, "project": long, "target": long, "error": long},
            status="failed",
            tasks=rows + rerun,
            workers=[
                {"event": e, "worker": "w", "tag": long, "reason": "lost", "timestamp": START}
                for e in ("started", "removed")
            ],
            failures=[
                {
                    "failure_class": long,
                    "message": long,
                    "details": {"traceback": f'  File "{long}", line 1, in f'},
                }
            ],
        )
    )
    lines = str(report).splitlines()
    assert max(len(line) for line in lines) <= 100
    assert all(line.isprintable() for line in lines)
    assert sum("…" in line for line in lines) >= 10
    worker_line = lines[lines.index("Workers:") + 2]
    assert worker_line.endswith("n        1        1     1")


def test_paths_are_whole_so_that_they_can_be_copied():
    path = "/" + "d" * 200 + "/plume.png"
    rows = [{"name": "x" * 200, "path": path}]
    report = report_on(RunRecord(path=Path(path), run={}, status="failed", artifacts=rows))
    text = str(report)
    assert f": {path}\n" in text
    assert f"Record: {path}\n" in text


def test_many_task_names_are_cut_and_the_longest_come_first():
    rows = [
        {"task_id": f"{n}", "task_name": f"t{n}", "state": "succeeded", "duration_s": float(n)}
        for n in range(40)
    ]
    report = report_on(RunRecord(path=Path("r"), run={}, status="failed", tasks=rows))
    lines = str(report).splitlines()
    start = lines.index("Duration:")
    assert lines[start + 2].split()[0] == "t39"
    assert lines[start + 32] == "  and 10 more task names (see the JSON report)"


def test_costs_stand_beside_the_workers_that_caused_them():
    machines = [("m1", "demeter", 3.0, 1.0), ("m2", "demeter", 2.0, 0.0), ("", None, 0.5, 0.5)]
    billed = [
        {"event": "billed", "manager": manager, "worker": f"machine-{manager}", "tag": tag}
        | {"cost": cost, "idle_cost": idle, "timestamp": START, "budget": 9.0}
        for manager, tag, cost, idle in machines
    ]
    plan = {"predicted_cost": {"unit": "USD", "billed": 4.0, "billed_interval": [3.0, 6.0]}}
    made = replace(record(), workers=[*record().workers, *billed], plan=plan)
    text = str(report_on(made))
    assert "  pool     started  removed  final  lost  cost  idle cost\n" in text
    assert "  demeter        5        3      2     1  5.00       1.00\n" in text
    words = " ".join(text.split())
    assert "Cost: 5.50 USD, 1.50 idle (27 %); planned 4.00, 3.00 to 6.00; budget 9.00" in words
    assert "; of it, m1 3.00, m2 2.00, scheduler 0.50 " in words


def test_the_last_changes_of_pools_and_the_first_causes_are_shown():
    changes = [
        {"tag": "a", "from": n, "to": n + 1, "source": source, "reason": f"{n} tasks queued"}
        | {"timestamp": START + n, "action": "scale-up"}
        for n in range(12)
        for source in ("plan", "adaptive")
    ]
    failures = [{"failure_class": f"Error{'x' * n}", "message": "bad"} for n in range(12)]
    text = str(report_on(replace(record(), scaling=changes, failures=failures)))
    assert "\nScaling events: 24 scale-up, 0 scale-down\n" in text
    assert "   2.0 s  a        2   3  adaptive  2 tasks queued\n" in text
    assert "  11.0 s  a       11  12  adaptive  11 tasks queued\n" in text
    assert "1 tasks queued\n  2 earlier decisions are in scaling.jsonl.\n" in text
    assert " 0 tasks queued" not in text
    assert "plan " not in text
    assert "  and 2 more causes\n" in text


def test_advice_and_the_longest_chain_are_shown():
    chained = [{**row, "after": "aggregate-0"} for row in calls("late", "post", 1)]
    late = [{**row, "timestamp": row["timestamp"] + 30} for row in chained]
    plan = {"scale_plan": {"resources_by_tag": {"demeter": {"memory": "20G"}}}}
    made = replace(record(), tasks=[*record().tasks, *late], plan=plan)
    advice = " ".join(str(report_on(made)).partition("\nAdvice:\n")[2].split())
    assert advice.startswith("- components.demeter.memory reserves 18.63 GiB; 95 % of ")
    assert "Longest chain of tasks that waited for each other: 2 tasks, 20.0 s: " in advice
