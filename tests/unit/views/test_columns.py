"""One table of columns: each number is the same in all displays, and a new column is in all."""

import json
from dataclasses import replace
from html import unescape

import pytest

from scalable.cli.clusters import render_status
from scalable.model.clusters import ClusterStatus, PoolStatus
from scalable.model.overview import (
    TASK_STATES,
    Events,
    Overview,
    PoolOverview,
    RunningTask,
    TaskCounts,
    TaskOverview,
    TaskSums,
)
from scalable.quantiles import Quantiles, Sum
from scalable.views import columns
from scalable.views.cluster_text import CLUSTER, live_lines, page
from scalable.views.columns import TaskRow, tables_of
from scalable.views.notebooks import render_overview, render_progress
from scalable.views.page import to_json
from scalable.views.tables import DISPLAYS, KINDS, REPORTS, Column, text_table
from scalable.watch.pages import live_document

LISTINGS = {
    name: getattr(columns, name)
    for name in ("POOLS", "TASKS", "WORKERS", "MANAGERS", "FAILURES", "DECISIONS", "CLUSTERS")
} | {"CLUSTER": CLUSTER}
#: Numbers of a pool that its managers and its scheduler report, by column.
STATUS = {"desired": 1001, "running": 1002, "launching": 1003, "draining": 1004, "failed": 1005,
          "lost": 1006, "suspended": 1007}  # fmt: skip
#: Numbers that also have lines of their own.
TOLD = {name: STATUS[name] for name in ("failed", "lost")}
LIVE = {"busy": 1101, "idle": 1102, "used_slots": 1103, "queued": 1105, "blocked": 1106}
TASK = {state: 1201 + n for n, state in enumerate(TASK_STATES)}
COST = {"cost": 1301.0, "idle": 1302.0, "per_hour": 1303.0}
CLUSTER_COST = {"cost": 1401.0, "idle": 1402.0, "per_hour": 1403.0, "budget": 1404.0}


def overview():
    fields = {"wanted": STATUS["desired"], **{k: v for k, v in STATUS.items() if k != "desired"}}
    pool = PoolOverview(PoolStatus(**fields), **LIVE, slots=1104, cost=COST)
    sums = TaskSums(duration_s=Sum(2, 122.0), queued_s=Sum(3, 186.0))
    task = TaskOverview("fit", "small", TaskCounts(**TASK), sums)
    cost = {**CLUSTER_COST, "pools": {"small": COST}, "managers": {}}
    return Overview(at=1e9, cluster={"name": "climate", "state": "running"}, cost=cost,
                    pools={"small": pool}, tasks=(task,), workers=1501, clients=1502)  # fmt: skip


def status():
    pools = {tag: pool.status for tag, pool in overview().pools.items()}
    cost = {**overview().cost, "budget": None}
    return ClusterStatus("climate", "id", "local", "here", "running", pools=pools, cost=cost)


def displayed():
    """Return the text of each display."""
    now = overview()
    answer = {"overview": now.to_dict(), "events": Events(seq=0).to_dict()}
    top = tables_of(now, "top").values()
    return {
        "status": render_status(status()),
        "once": "\n".join(page(now, Events(seq=0), 500)),
        "top": "\n".join(line for table in top for line in table.lines(500)),
        "progress": "\n".join(line for line, _ in live_lines([now], 500, 100)),
        "notebook": unescape(render_overview("cluster", "climate", "running", now)),
        "page": to_json(live_document(answer)),
    }


@pytest.mark.parametrize(("running", "words"), [(2, ""), (3, "2 of 3 running tasks")])
def test_the_page_says_how_many_running_tasks_it_shows(running, words):
    told = tuple(RunningTask(f"fit-{n}", "fit", "small", "a", 1.0, bundle=9 * n) for n in range(2))
    tasks = (replace(overview().tasks[0], counts=TaskCounts(running=running)),)
    now = replace(overview(), tasks=tasks, running=told)
    page = live_document({"overview": now.to_dict(), "events": Events(0).to_dict()})["page"]
    assert page["running_shown"] == words
    (table, *more) = page["parts"]["running"]
    assert more == ([{"text": words, "look": "dim"}] if words else [])
    assert [row.cells[2] for row in table["table"].rows] == ["-", "9"]


@pytest.fixture
def exposition():
    pytest.importorskip("prometheus_client")
    from scalable.watch.metrics import exposition

    return lambda: exposition(overview()).decode()


@pytest.mark.parametrize(("numbers", "displays"), [
    ({k: v for k, v in STATUS.items() if k not in TOLD}, DISPLAYS - {"progress"}),
    (TOLD, DISPLAYS),
    (LIVE, DISPLAYS - {"progress", "status"}),
    (TASK, DISPLAYS - {"status"}),
    ({"mean_run_time": "1 m 01 s", "mean_queue_time": "1 m 02 s"}, DISPLAYS - {"status"}),
    ({"cost": "1301.00"}, DISPLAYS - {"progress"}),
    ({"idle": "1302.00"}, {"notebook", "page"}),
    ({"per_hour": "1303.00"}, {"status", "notebook", "page"}),
])  # fmt: skip
def test_each_number_is_the_same_in_all_displays(numbers, displays):
    for display, text in displayed().items():
        for name, number in numbers.items():
            assert (str(number) in text) == (display in displays), (display, name, number)


def test_metrics_have_the_numbers_of_the_columns(exposition):
    text = exposition()
    for name, number in STATUS.items():
        total = "_total" if name == "lost" else ""
        assert f'scalable_pool_{name}_workers{total}{{pool="small"}} {number}.0\n' in text
    for name in ("busy_workers", "idle_workers", "used_slots"):
        number = LIVE[name.removesuffix("_workers")]
        assert f'scalable_pool_{name}{{pool="small"}} {number}.0\n' in text
    for state, number in TASK.items():
        assert f'="{state}",task="fit"}} {number}.0\n' in text
    for series, number in (
        ("cost_usd_total", 1401), ("idle_cost_usd_total", 1402), ("cost_usd_per_hour", 1403),
        ("budget_usd", 1404), ("workers", 1501), ("clients", 1502),
        ('pool_cost_usd_total{pool="small"}', 1301),
        ('pool_idle_cost_usd_total{pool="small"}', 1302),
    ):  # fmt: skip
        assert f"scalable_{series} {number}.0\n" in text


def test_a_column_that_is_added_is_in_all_displays(monkeypatch, exposition):
    for name, number in (("POOLS", 4242), ("TASKS", 4343)):
        series = f"scalable_{name.lower()}_answer"
        added = Column("answer", "the answer", lambda _, n=number: n, "count", metric=series,
                       help="The answer.")  # fmt: skip
        listing = getattr(columns, name)
        monkeypatch.setattr(columns, name, replace(listing, columns=(*listing.columns, added)))
    for display, text in displayed().items():
        assert ("4242" in text) == (display != "progress"), display
        assert ("4343" in text) == (display != "status"), display
    assert 'scalable_pools_answer{pool="small"} 4242.0\n' in exposition()
    assert 'scalable_tasks_answer{pool="small",task="fit"} 4343.0\n' in exposition()
    assert "4343" in render_progress([overview()])


@pytest.mark.parametrize("name", LISTINGS)
def test_columns_have_names_of_their_own_and_known_kinds_and_displays(name):
    listing = LISTINGS[name]
    names = [column.name for column in listing.columns]
    assert len(names) == len(set(names))
    for column in listing.columns:
        assert column.kind in KINDS
        assert set(column.displays or listing.displays) <= DISPLAYS | REPORTS
        assert column.help or not column.metric, column.name


def test_a_table_is_plain_json_with_numbers_to_sort_by():
    table = tables_of(overview(), "page")["tasks"].to_dict()
    again = json.loads(json.dumps(table))
    assert again["columns"] == table["columns"]
    assert [tuple(row["values"]) for row in again["rows"]] == [r["values"] for r in table["rows"]]
    (row,) = table["rows"]
    headings = [column["name"] for column in table["columns"]]
    assert row["values"][headings.index("mean_run_time")] == 61.0
    assert row["parts"] == {s: TASK[s] for s in row["parts"]}
    assert row["key"] == "small\nfit"


def test_quantiles_are_columns_of_the_report_only():
    quantiles = {
        "duration_s": Quantiles(1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
        "queued_s": Quantiles(7.0, 7.5, 8.0, 9.0, 10.0, 11.0),
        "peak_memory": Quantiles(1e9, 1.5e9, 2e9, 3e9, 4e9, 5e9),
    }
    task = overview().tasks[0]
    row = TaskRow(replace(task, sums=task.sums + TaskSums(cpu_s=Sum(1, 99.0))), quantiles)
    cells = columns.TASKS.table([row], "report").rows[0].cells
    assert {"1.0 s", "3.0 s", "4.0 s", "6.0 s", "8.0 s", "2.79 GiB", "1 m 39 s"} <= set(cells)
    assert "1 m 39 s" not in columns.TASKS.table([row], "page").rows[0].cells
    without = columns.TASKS.table([TaskRow(overview().tasks[0])], "report")
    assert "duration_s_q50" not in [column.name for column in without.columns]


def test_a_report_shows_no_columns_of_zeros():
    row = TaskRow(TaskOverview("fit", "small", TaskCounts(done=2)))
    names = {d: {c.name for c in columns.TASKS.table([row], d).columns} for d in ("page", "report")}
    assert names["page"] - names["report"] == {"running", "queued"}
    assert "done" in names["report"]


def test_workers_have_the_columns_of_all_displays():
    for display in DISPLAYS - {"status"}:
        assert len(tables_of(overview(), display)["workers"].columns) == 7


def test_a_table_of_texts_aligns_all_but_named_columns_to_the_right():
    table = text_table(("name", "count", "note"), [("a", None, "x"), ("bb", 12, "long")],
                       left=("note",))  # fmt: skip
    assert table.lines(40) == ["  name  count  note", "  a         -  x", "  bb       12  long"]
