"""Overviews as lines and tables: the numbers of the model, and no text that harms a terminal."""

import pytest
from made_overviews import HEBREW, HOSTILE, NOW, events, failure, overview, pool, task, workers

from scalable.model.clusters import ClusterStatus
from scalable.model.overview import CallCounts, Events, PredictedEnd
from scalable.views.overview_tables import (
    SHOWN_TASKS,
    bar,
    decisions_table,
    drawn,
    failure_in_words,
    failures_table,
    managers_table,
    page,
    pools_table,
    summary,
    tasks_table,
    use_lines,
)
from scalable.views.tables import fitted, one_line, padded, width_of
from scalable.views.workers import clusters_table, workers_table


def cells(table, title):
    place = [column.title for column in table.columns].index(title)
    return [row.cells[place] for row in table.rows]


def test_the_summary_tells_state_calls_end_and_costs():
    lines = summary(overview())
    assert lines[0] == "climate on slurm/hpc - running"
    assert lines[1] == "2 running, 30 waiting, 23 done, 1 failed; 3 workers, 1 client"
    assert lines[2].startswith("End: in 1 m 30 s, at ")
    assert lines[3] == "Cost: 1.25 USD so far, 0.50 an hour; budget 10.00 USD, 12 % spent"


def test_an_end_that_is_not_known_has_its_reason():
    unknown = overview(end=PredictedEnd(reason="no task of 'fit' has finished yet"))
    assert "End: not known: no task of 'fit' has finished yet" in summary(unknown)
    idle = overview(tasks=(task("fit", done=3),))
    assert "End: nothing to do" in summary(idle)


def test_the_nearest_end_of_the_cluster_is_told():
    ends = {**overview().cluster, "ends_at": NOW + 600, "idle_ends_at": NOW + 60}
    assert "The cluster stops in 1 m 00 s without work" in summary(overview(cluster=ends))


def test_pools_show_counts_slots_and_bounds():
    table = pools_table(overview())
    assert [column.title for column in table.columns][-1] == "count"  # nothing has a price
    assert cells(table, "slots") == ["2/2", "0/0"]
    assert cells(table, "count") == ["fixed", "0 to any"]
    priced = pools_table(overview(pools={"a": pool(cost={"cost": 2.5}), "": pool()}))
    assert cells(priced, "cost") == ["2.50", "-"]
    assert cells(priced, "pool") == ["a", "(no tag)"]


def test_tasks_show_the_counts_of_the_model():
    table = tasks_table(overview())
    assert [row.cells[3:] for row in table.rows] == [
        ("2", "30", "18", "0", "2.0 s", "-"),
        ("0", "0", "5", "1", "0.50 s", "-"),
    ]
    assert cells(tasks_table(overview(tasks=(task("sim-", names=9_000),))), "task") == [
        "sim- (9000 names)"
    ]


@pytest.mark.parametrize(("counts", "drawing"), [
    (CallCounts(), ""),
    (CallCounts(done=1), "██████████"),
    (CallCounts(running=1, waiting=1, done=98), "████████▒░"),
    (CallCounts(running=1, waiting=1, done=1, failed=100_000, cancelled=1), "█xxxxxx-▒░"),
    (CallCounts(done=5, waiting=5), "█████░░░░░"),
])  # fmt: skip
def test_a_bar_shows_each_state_that_has_calls(counts, drawing):
    assert bar(counts, 10) == drawing


def test_a_bar_narrower_than_the_states_keeps_its_width():
    assert len(bar(CallCounts(1, 1, 1, 1, 1), 3)) == 3


def test_managers_show_why_their_workers_do_not_start():
    failing = {"id": "hpc", "state": "running", "pools": {"a": {"reason": "partition is down"}}}
    assert cells(managers_table(overview(managers=(failing,))), "reason") == [
        "a: partition is down"
    ]


def test_failures_are_grouped_by_cause_and_the_newest_is_first():
    table = failures_table(events().failures, NOW)
    assert cells(table, "tasks") == ["1", "3"]
    assert cells(table, "message") == ["no file", "no value"]
    words = dict(failure_in_words(failure("fit", 1), NOW))
    assert (words["Arguments"], words["Key"]) == ("(3,)", "fit-1")
    assert "Attempts" not in words


def test_decisions_are_newest_first_with_their_reasons():
    table = decisions_table(events().decisions, NOW)
    assert cells(table, "reason") == ["30 tasks wait", "start"]
    assert cells(decisions_table([{}], NOW), "to") == ["-"]


def test_queue_and_use_are_drawn_over_time():
    lines = use_lines(events().samples, 30)
    assert lines[0] == "small: 0 of 2 slots used, 21 tasks wait"
    assert lines[2].strip(" ") == "▄█ ▄█ ▄█"
    assert drawn([0, 1, 0, 1000], 1000, 2) == "▁█"
    assert drawn([], 1, 5) == ""


def test_rows_are_sorted_filtered_and_chosen_by_pool():
    table = tasks_table(overview())
    assert [row.cells[0] for row in table.sorted("mean").rows] == ["score", "fit"]
    assert [row.cells[0] for row in table.sorted("mean", reverse=True).rows] == ["fit", "score"]
    assert [row.cells[0] for row in table.containing(" SCO ").rows] == ["score"]
    assert [row.cells[0] for row in table.of_pool("big").rows] == ["score"]
    assert table.sorted("nothing of the kind") is table
    mixed = tasks_table(overview(tasks=(task("a", mean_s=None), task("b"))))
    assert [row.cells[0] for row in mixed.sorted("mean").rows] == ["a", "b"]


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
        tables = (tasks_table(hostile), pools_table(hostile), failures_table(told.failures, NOW))
        for table in tables:
            assert len(table.lines(100)) == len(table.rows) + 1
            assert all(width_of(line) <= 100 for line in table.lines(100))
    assert all(line.isprintable() for line in use_lines(told.samples, 40))


def test_columns_stay_in_their_place_behind_wide_and_combined_characters():
    names = ("\u6f22\u5b57", "e\u0301e\u0301", "plain", HEBREW)
    lines = tasks_table(overview(tasks=tuple(task(n, done=1) for n in names))).lines(80)
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
    assert len(workers_table(workers(1_000)).sorted("worker").lines(80)) == 1_001


def test_clusters_show_whether_they_are_embedded_and_their_run():
    made = ClusterStatus(name="a", id="1", provider="local", target="local", state="running",
                         created_at="2023-11-14T22:12:20+00:00", embedded=True)  # fmt: skip
    table = clusters_table([made], {"1": "run-7"}, NOW)
    assert table.rows[0].cells == (
        "a", "embedded", "local", "running", "0/0", "1 m 00 s", "run-7",
    )  # fmt: skip
    strange = clusters_table([ClusterStatus("", "2", "x", "", "starting", created_at="?")], {}, NOW)
    assert strange.rows[0].cells[5] == "-"
