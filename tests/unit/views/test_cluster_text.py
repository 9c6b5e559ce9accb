"""Overviews as lines and tables: the numbers of the model, and no text that harms a terminal."""

import pytest
from made_overviews import HEBREW, HOSTILE, NOW, events, failure, overview, pool, task, workers

from scalable.harmless import one_line
from scalable.model.clusters import ClusterStatus
from scalable.model.overview import Events, PredictedEnd, TaskCounts
from scalable.views.cluster_text import (
    SHOWN_TASKS,
    drawn,
    facts,
    failure_in_words,
    page,
    summary,
    use_lines,
)
from scalable.views.columns import (
    clusters_table,
    managers_table,
    parts_of,
    tables_of,
)
from scalable.views.tables import bar, clock, fitted, padded, width_of


def cells(table, name):
    place = [column.name for column in table.columns].index(name)
    return [row.cells[place] for row in table.rows]


def test_a_summary_has_progress_and_end_first_then_costs_and_tasks():
    at, low, high = (clock(NOW + left_s, NOW) for left_s in (90, 60, 150))
    cost = (
        "1.25 USD so far, 0.50 an hour; 0.10 for time without tasks; budget 10.00 USD, 12 % spent"
    )
    assert summary(overview()) == [
        "climate on slurm/hpc - running",
        f"24 of 56 tasks (42 %); end in 1 m 30 s, at {at} ({low} to {high})",
        f"Cost: {cost}",
        "Tasks: 2 running, 30 queued, 23 done, 1 failed; 3 workers, 1 client",
    ]
    local = {**overview().cluster, "provider": "local", "target": "local"}
    assert summary(overview(cluster=local))[0] == "climate on local - running"


def test_an_end_that_is_not_known_has_its_reason():
    unknown = overview(end=PredictedEnd(reason="no task of 'fit' has finished yet"))
    assert summary(unknown)[1] == (
        "24 of 56 tasks (42 %); end not known: no task of 'fit' has finished yet"
    )
    assert summary(overview(tasks=(task("fit", done=3),)))[1] == "3 of 3 tasks (100 %)"
    assert summary(overview(tasks=()))[1] == "no tasks"
    exact = overview(tasks=(task("fit", done=29, queued=71),))
    assert summary(exact)[1].startswith("29 of 100 tasks (29 %)")
    almost = overview(tasks=(task("fit", done=999, running=1),))
    assert summary(almost)[1].startswith("999 of 1000 tasks (99 %)")


def test_a_cluster_stops_without_work_only_while_it_is_idle():
    ends = {**overview().cluster, "ends_at": NOW + 600, "idle_ends_at": NOW + 60}
    assert "Stops: in 10 m 00 s at the latest" in summary(overview(cluster=ends))
    idle = overview(cluster=ends, tasks=(task("fit", done=3),))
    assert "Stops: in 1 m 00 s unless it gets work, in 10 m 00 s at the latest" in summary(idle)


def test_failures_and_failed_tasks_of_a_page_agree():
    failed = overview(tasks=(task("fit", failed=3),), failures={"ValueError": 1, "OSError": 1})
    words = "1 x ValueError, 1 x OSError, 1 task failed because an input failed"
    assert facts(failed, "page")["failures"] == ("failures", words)
    alone = overview(tasks=failed.tasks, failures={"OSError": 3})
    assert facts(alone, "page")["failures"][1] == "3 x OSError"


def test_pools_show_counts_slots_and_bounds():
    table = tables_of(overview(), "top")["pools"]
    assert "cost" not in [column.name for column in table.columns]  # nothing has a price
    assert cells(table, "used_slots") == ["2/2", "0/0"]
    assert cells(table, "bounds") == ["fixed", "0 to any"]
    priced = tables_of(overview(pools={"a": pool(cost={"cost": 2.5}), "": pool()}), "top")["pools"]
    assert cells(priced, "cost") == ["2.50", "-"]
    assert cells(priced, "pool") == ["a", "(no tag)"]


def test_columns_without_numbers_are_left_out():
    names = [column.name for column in tables_of(overview(), "top")["pools"].columns]
    assert "lost" in names
    assert not {"launching", "failed", "draining"} & set(names)


def test_tasks_show_the_counts_of_the_model():
    table = tables_of(overview(), "top")["tasks"]
    assert [row.cells[2:] for row in table.rows] == [
        ("18 done, 2 running, 30 queued", "2", "30", "18", "0", "2.0 s", "-"),
        ("5 done, 1 failed", "0", "0", "5", "1", "0.50 s", "-"),
    ]
    many = tables_of(overview(tasks=(task("sim-", names=9_000),)), "top")["tasks"]
    assert cells(many, "task") == ["sim- (9000 names)"]


@pytest.mark.parametrize(("counts", "drawing"), [
    (TaskCounts(), ""),
    (TaskCounts(done=1), "██████████"),
    (TaskCounts(running=1, queued=1, done=98), "████████▒░"),
    (TaskCounts(running=1, queued=1, done=1, failed=100_000, cancelled=1), "█xxxxxx-▒░"),
    (TaskCounts(done=5, queued=5), "█████░░░░░"),
])  # fmt: skip
def test_a_bar_shows_each_state_that_has_calls(counts, drawing):
    assert bar(parts_of(counts), 10) == drawing


def test_a_bar_narrower_than_the_states_keeps_its_width():
    assert len(bar(parts_of(TaskCounts(1, 1, 1, 1, 1)), 3)) == 3


def test_managers_show_why_their_workers_do_not_start():
    failing = {"id": "hpc", "state": "running", "pools": {"a": {"reason": "partition is down"}}}
    assert cells(managers_table((failing,), None, "top"), "reason") == ["a: partition is down"]


def test_failures_are_grouped_by_cause_and_the_newest_is_first():
    table = tables_of(overview(), "top", events())["failures"]
    assert cells(table, "count") == ["1", "3"]
    assert cells(table, "message") == ["no file", "no value"]
    words = dict(failure_in_words(failure("fit", 1), NOW))
    assert (words["Arguments"], words["Key"]) == ("(3,)", "fit-1")
    assert "Attempts" not in words


def test_decisions_are_newest_first_with_their_reasons():
    table = tables_of(overview(), "top", events())["decisions"]
    assert cells(table, "reason") == ["30 tasks wait", "start"]
    assert cells(tables_of(overview(), "top", events(decisions=[{}]))["decisions"], "to") == ["-"]
    by_hand = {"source": "manual", "reason": "scale"}
    assert cells(
        tables_of(overview(), "top", events(decisions=[by_hand]))["decisions"], "reason"
    ) == ["set by hand"]


def test_queue_and_use_are_drawn_over_time():
    lines = use_lines(events().samples, 30)
    assert lines[0] == "small: 0 of 2 slots used, 21 tasks queued"
    assert lines[2].strip(" ") == "▄█ ▄█ ▄█"
    assert drawn([0, 1, 0, 1000], 1000, 2) == "▁█"
    assert drawn([], 1, 5) == ""


def test_rows_are_sorted_filtered_and_chosen_by_pool():
    table = tables_of(overview(), "top")["tasks"]
    assert [row.cells[0] for row in table.sorted("mean_run_time").rows] == ["score", "fit"]
    assert [row.cells[0] for row in table.sorted("mean_run_time", reverse=True).rows] == [
        "fit",
        "score",
    ]
    assert [row.cells[0] for row in table.containing(" SCO ").rows] == ["score"]
    assert [row.cells[0] for row in table.of_pool("big").rows] == ["score"]
    assert table.sorted("nothing of the kind") is table
    mixed = tables_of(overview(tasks=(task("a", mean_s=None), task("b"))), "top")["tasks"]
    assert [row.cells[0] for row in mixed.sorted("mean_run_time").rows] == ["a", "b"]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_breaks_a_table(name):
    hostile = overview(
        tasks=(task(name, name or "small", done=1), task("fit", done=1)),
        pools={name: pool(reason=name, lost=2), "small": pool()},
        cluster={"name": name, "state": name, "reason": name, "provider": name, "target": name},
        managers=({"id": name, "target": name, "state": name, "pools": {name: {}}},),
    )
    told = events(
        decisions=[{"timestamp": NOW, "tag": name, "from": 0, "to": 1, "reason": name}],
        failures=[{**failure(name, 1, name), "failure_class": name}],
        samples=[{"at": NOW, "pools": {name: [1, 1, 1, 1, 1]}}],
    )
    for width in (40, 80, 100):
        lines = page(hostile, told, width)
        assert all(line.isprintable() for line in lines)
        tables = tables_of(hostile, "top", told).values()
        for table in tables:
            assert len(table.lines(100)) == len(table.rows) + 1
            assert all(width_of(line) <= 100 for line in table.lines(100))
    assert all(line.isprintable() for line in use_lines(told.samples, 40))


def test_columns_stay_in_their_place_behind_wide_and_combined_characters():
    names = ("\u6f22\u5b57", "e\u0301e\u0301", "plain", HEBREW)
    lines = tables_of(overview(tasks=tuple(task(n, done=1) for n in names)), "top")["tasks"].lines(
        80
    )
    places = {width_of(line[: line.index("small")]) for line in lines[1:]}
    assert len(places) == 1


def test_texts_are_fitted_to_cells():
    assert fitted("a" * 30, 9) == "aaaa…aaaa"
    assert fitted("\u6f22" * 30, 9) == "\u6f22\u6f22…\u6f22\u6f22"
    assert fitted("abc", 1) == "…"
    assert fitted("abc", 0) == ""
    assert padded("12", 4, right=True) == "  12"
    assert one_line("a\x1b[1m\nb\u202e") == "a\ufffd[1m b\ufffd"
    assert width_of(one_line("z" + "\u0301" * 10_000)) == 1
    assert len(one_line("z" + "\u0301" * 10_000)) < 10


def test_ten_thousand_names_and_a_thousand_workers_make_a_short_page():
    many = overview(tasks=tuple(task(f"name-{n}", done=n) for n in range(10_000)))
    lines = page(many, Events(seq=0), 80)
    assert len(lines) < 80
    assert f"and {10_000 - SHOWN_TASKS} rows of further task names" in " ".join(lines)
    assert (
        len(
            tables_of(overview(), "top", workers=workers(1_000))["workers"]
            .sorted("worker")
            .lines(80)
        )
        == 1_001
    )


def test_clusters_show_whether_they_are_embedded_and_their_run():
    made = ClusterStatus(name="a", id="1", provider="local", target="local", state="running",
                         created_at="2023-11-14T22:12:20+00:00", embedded=True)  # fmt: skip
    table = clusters_table([made], {"1": "run-7"}, NOW, "top")
    assert table.rows[0].cells == (
        "a", "embedded", "local", "running", "0/0", "1", "1 m 00 s", "run-7",
    )  # fmt: skip
    strange = ClusterStatus("", "2", "x", "", "starting", created_at="?")
    assert cells(clusters_table([strange], {}, NOW, "top"), "age") == ["-"]
