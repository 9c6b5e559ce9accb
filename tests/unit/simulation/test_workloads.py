"""What simulations replay."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from scalable.scaling.task_model import Kind
from scalable.simulation.workloads import (
    Call,
    TaskRow,
    Terms,
    Workload,
    long_types_in,
    of_run,
    of_spec,
    of_tasks,
    of_wfformat,
)
from scalable.spec import ComponentSpec, DeploymentSpec, TaskSpec, WorkerRange

POOLS = {"run": Terms(), "sum": Terms()}


def document() -> dict:
    def task(name: str, *parents: str) -> dict:
        return {"name": name, "id": name, "parents": list(parents), "children": []}

    lengths = {"align_ID0000001": 5.0, "align_ID0000002": 7.0, "merge_00000001": 60.0}
    return {
        "name": "small",
        "schemaVersion": "1.5",
        "workflow": {
            "specification": {
                "tasks": [
                    task("align_ID0000001"),
                    task("align_ID0000002"),
                    task("merge_00000001", "align_ID0000001", "align_ID0000002"),
                ]
            },
            "execution": {
                "tasks": [{"id": name, "runtimeInSeconds": s} for name, s in lengths.items()]
            },
        },
    }


def test_a_workflow_in_wfformat() -> None:
    workload = of_wfformat(document(), POOLS)
    assert workload.name == "small"
    assert [(c.kind, c.duration_s, c.after) for c in workload.calls] == [
        (Kind("run", "align"), 5.0, ()),
        (Kind("run", "align"), 7.0, ()),
        (Kind("run", "merge"), 60.0, (0, 1)),
    ]


def test_calls_of_one_program_are_of_one_kind() -> None:
    """Names contain names of files; a script in the place of a program is no type."""
    traced = document()
    specified = traced["workflow"]["specification"]["tasks"]
    ran = traced["workflow"]["execution"]["tasks"]
    for task, lane in zip(specified[:2], ("s_1_left", "s_2_right"), strict=True):
        task["name"] = f"align_{lane}_{task['id']}"
    for task, program in zip(ran, ("align", "align", "merge all\ndate"), strict=True):
        task["command"] = {"program": program}
    kinds = [call.kind.task for call in of_wfformat(traced, POOLS).calls]
    assert kinds == ["align", "align", "merge"]


def test_types_with_long_calls_get_a_pool_of_their_own() -> None:
    workload = of_wfformat(document(), POOLS, long_types_in("sum", "run"))
    assert [call.kind.component for call in workload.calls] == ["run", "run", "sum"]


@pytest.mark.parametrize("wrong", [{}, [], {"workflow": {}}, {"workflow": {"specification": {}}}])
def test_files_that_are_not_wfformat_are_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"WfFormat 1\.5"):
        of_wfformat(wrong, POOLS)  # type: ignore[arg-type]


@pytest.mark.parametrize(("part", "at", "value"), [
    ("specification", "parents", [["align_ID0000001"]]),
    ("execution", "runtimeInSeconds", 10**400),
])  # fmt: skip
def test_a_broken_task_of_a_workflow_is_refused(part: str, at: str, value: object) -> None:
    broken = document()
    broken["workflow"][part]["tasks"][0][at] = value
    with pytest.raises(ValueError, match=r"WfFormat 1\.5"):
        of_wfformat(broken, POOLS)


@pytest.mark.parametrize(("edit", "says"), [
    (lambda tasks, _: tasks.append(tasks[1]), "several tasks with the id 'align_ID0000002'"),
    (lambda tasks, _: tasks.clear(), "there are no calls"),
    (lambda _, ran: ran[0].update(runtimeInSeconds=math.inf), "call 0 has a negative or infinite"),
    (lambda _, ran: ran[0].update(runtimeInSeconds=-1.0), "call 0 has a negative or infinite"),
])  # fmt: skip
def test_what_is_wrong_with_a_trace_is_said(edit, says: str) -> None:
    wrong = document()["workflow"]
    edit(wrong["specification"]["tasks"], wrong["execution"]["tasks"])
    with pytest.raises(ValueError, match=says):
        of_wfformat({"workflow": wrong}, POOLS)


def test_tasks_after_others() -> None:
    rows = [
        TaskRow("simulate", "run", 3, (1.0, 2.0)),
        TaskRow("write", "sum", 1, (4.0,), ("simulate",)),
    ]
    calls = of_tasks("table", rows, POOLS).calls
    assert [(call.duration_s, call.after) for call in calls] == [
        (1.0, ()), (2.0, ()), (1.0, ()), (4.0, (0, 1, 2)),
    ]  # fmt: skip


@pytest.mark.parametrize("counts", [(10**9, 1), (20_000, 20_000)])
def test_more_than_can_be_replayed_is_refused(counts: tuple[int, int]) -> None:
    rows = [
        TaskRow("simulate", "run", counts[0], (1.0,)),
        TaskRow("write", "sum", counts[1], (4.0,), ("simulate",)),
    ]
    with pytest.raises(ValueError, match="too many to replay"):
        of_tasks("table", rows, POOLS)


def test_a_recorded_run() -> None:
    rows = [
        {"task_id": "a", "state": "submitted", "tag": "run", "timestamp": 100.0},
        {"task_id": "b", "state": "submitted", "tag": "run", "timestamp": 107.0},
        {"task_id": "b", "state": "failed", "tag": "run", "timestamp": 108.0, "duration_s": 1.0},
        {"task_id": "c", "state": "submitted", "tag": "gone", "timestamp": 90.0},
        {"task_id": "d", "state": "submitted", "tag": "run", "timestamp": 110.0},
        *(
            {
                "task_id": i, "state": "succeeded", "tag": tag, "task_name": "f",
                "timestamp": 130.0, "duration_s": 3.0, "peak_memory": 7,
            }
            for i, tag in (("d", "run"), ("a", "run"), ("c", "gone"))
        ),
    ]  # fmt: skip
    workload = of_run("run-1", rows, POOLS)
    assert [(c.kind, c.duration_s, c.arrival_s, c.memory) for c in workload.calls] == [
        (Kind("run", "f"), 3.0, 0.0, 7),
        (Kind("run", "f"), 3.0, 10.0, 7),
    ]
    assert workload.stream
    with pytest.raises(ValueError, match="no call succeeded"):
        of_run("run-1", rows[:4], POOLS)


@pytest.mark.parametrize(
    "broken",
    [
        {"timestamp": None}, {"timestamp": "noon"}, {"duration_s": {}}, {"duration_s": "3"},
        {"duration_s": -1}, {"duration_s": 10**400}, {"tag": {}}, {"timestamp": True},
    ],
)  # fmt: skip
def test_a_broken_row_of_a_run_is_passed_over(broken: dict) -> None:
    whole = {"task_id": "a", "state": "succeeded", "tag": "run", "timestamp": 9.0, "duration_s": 3}
    rows = [{"state": "submitted"}, whole, {**whole, "task_id": "b", **broken}]
    assert len(of_run("run-1", rows, POOLS).calls) == 1


def spec(*tasks: TaskSpec) -> DeploymentSpec:
    components = {
        "run": ComponentSpec("run", slots=2, workers=WorkerRange(1, 9)),
        "sum": ComponentSpec("sum", workers=WorkerRange(3, 3)),
    }
    return DeploymentSpec(
        project_name="p", target_name="local", provider_name="local", components=components,
        tasks={task.name: task for task in tasks},
    )  # fmt: skip


def test_a_manifest() -> None:
    simulate = TaskSpec("simulate", "run", count=2, duration_s=5.0)
    write = TaskSpec("write", "sum", count=1, duration_s=3.0, after=("simulate",))
    workload = of_spec(spec(simulate, write), maximum=64)
    assert workload.pools == {"run": Terms(1, 9, 2), "sum": Terms(0, 64)}
    assert [call.after for call in workload.calls] == [(), (), (0, 1)]
    assert workload.expected
    assert workload.total is None


def test_the_target_bounds_all_pools_and_says_how_many_calls_a_worker_runs() -> None:
    simulate = TaskSpec("simulate", "run", count=2, duration_s=5.0)
    threads = replace(spec(simulate), options={"threads_per_worker": 3})
    workload = of_spec(threads, maximum=64, total=4)
    assert workload.pools == {"run": Terms(1, 4, 3), "sum": Terms(0, 4, 3)}
    assert workload.total == 4


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (TaskSpec("write", "sum", count=1), "tasks.write has no duration"),
        (TaskSpec("write", "sum"), "tasks.write has no count and no duration"),
        (None, "there are no tasks"),
    ],
)
def test_a_manifest_that_does_not_say_enough(task: TaskSpec | None, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        of_spec(spec(*([task] if task else [])), maximum=64)


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ([Call(Kind("other"), 1.0)], "needs a pool 'other'"),
        ([Call(Kind("run"), -1.0)], "negative or infinite time"),
        ([Call(Kind("run"), 1.0, after=(4,))], "waits for a call that does not exist"),
        ([Call(Kind("run"), 1.0, after=(1,)), Call(Kind("run"), 1.0, after=(0,))], "in a circle"),
    ],
)
def test_calls_that_cannot_be_run(calls: list[Call], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Workload("wrong", tuple(calls), POOLS)
