"""The report object: each number of the page, computed from a record that is known."""

import json

import pytest
from made_runs import RUN_ID, START, call, made_record

from scalable.runs import RunRecord, report
from scalable.runs.report.timeline import COLUMNS, OTHER, ROWS, SINGLE_CALLS
from scalable.runs.report.usage import POINTS


def test_a_pool_tells_the_share_of_time_in_which_its_workers_had_calls():
    calls = [*(call(n) for n in range(10)), *(call(n, worker="a-1") for n in range(5))]
    plan = {"scale_plan": {"resources_by_tag": {"a": {"memory": "2G"}}}}
    made = report.report_on(made_record(calls, plan=plan))
    (use,) = made.pools
    assert (use.tag, use.workers, use.connected_s, use.busy_s) == ("a", 2, 40.0, 15.0)
    assert use.share == pytest.approx(0.375)
    assert (use.reserved_memory, use.used_memory) == (2 * 10**9, 100 * 2**20)
    assert sum(use.busy) * 20 / POINTS == pytest.approx(15)
    assert sum(use.connected) * 20 / POINTS == pytest.approx(40)


def test_overlapping_calls_of_one_worker_count_once():
    (use,) = report.report_on(made_record([call(0), call(0.5), call(4)])).pools
    assert use.busy_s == pytest.approx(2.5)


def test_few_calls_are_shown_one_by_one_with_their_worker():
    timeline = report.report_on(made_record([call(0), call(19, worker="a-1")])).timeline
    assert [row.name for row in timeline.rows] == ["a-0", "a-1"]
    ((first,), (second,)) = (row.blocks for row in timeline.rows)
    assert (first.begin, first.width) == (0, COLUMNS / 20)
    assert second.begin == pytest.approx(COLUMNS * 19 / 20)
    assert "a-1" in second.title


def test_many_calls_are_cells_whose_shade_tells_the_share_of_busy_workers():
    count = SINGLE_CALLS + 500
    step = 20 / count
    calls = [
        call(n * step, "even" if n % 2 else "odd", timestamp=START + (n + 1) * step)
        | {"task_id": str(n), "duration_s": step / 2}
        for n in range(count)
    ]
    (row, other) = report.report_on(made_record(calls)).timeline.rows
    assert not other.blocks
    assert all(block.title is None and block.shade == 2 for block in row.blocks)
    assert sum(block.width for block in row.blocks) == pytest.approx(COLUMNS)


def test_many_workers_share_rows_and_every_worker_is_in_one():
    workers = [
        {"event": "started", "worker": f"{tag}-{n}", "tag": tag, "timestamp": START}
        for tag, count in (("a", 900), ("b", 100))
        for n in range(count)
    ]
    rows = report.report_on(made_record([call(0)], workers)).timeline.rows
    assert len(rows) <= ROWS
    assert sum(int(row.name.split()[0]) for row in rows) == 1000


def test_ten_thousand_task_names_share_a_colour_beyond_the_most_important_ones():
    calls = [call(n / 1000, f"name-{n}") for n in range(10_000)]
    made = report.report_on(made_record(calls))
    assert len(made.timeline.names) == OTHER
    assert made.timeline.others == 10_000 - OTHER
    assert len(made.to_html()) < 500_000


def test_failures_with_one_cause_are_one_group_with_the_details_that_are_recorded():
    failures = [
        {"failure_class": "ValueError", "message": f"bad value {n}", "timestamp": START}
        | {"details": {"task_id": f"t-{n}", "worker": "a-0", "arguments": f"({n},)"}}
        for n in range(12)
    ]
    failures += [{"failure_class": "ValueError", "message": "other", "count": 3, "details": {}}]
    failures += [{"failure_class": "E", "message": "end", "details": {"phase": "workflow"}}]
    first, second = report.report_on(made_record(failures=failures)).causes
    assert (first.count, first.message, first.details) == (12, "bad value 0", {"arguments": "(0,)"})
    assert first.calls == ["t-0", "t-1", "t-2", "t-3", "t-4"]
    assert (second.count, second.message) == (3, "other")


def test_the_longest_chain_follows_the_calls_for_which_others_waited():
    calls = [
        call(0, "read"),
        call(0, "long", duration_s=5.0, timestamp=START + 5),
        call(1, "model", after="read-0"),
        call(5, "model", after="long-0"),
        call(6, "write", after="model-5", duration_s=2.0),
    ]
    chain = report.report_on(made_record(calls)).chain
    assert (chain.seconds, chain.calls) == (8.0, 3)
    assert chain.names == (("long", 1), ("model", 1), ("write", 1))
    assert report.report_on(made_record([call(0)])).chain is None


def test_advice_names_memory_and_workers_that_were_not_needed():
    calls = [call(n, duration_s=0.5) for n in range(15)]
    plan = {"scale_plan": {"resources_by_tag": {"a": {"memory": "20G"}}}}
    memory, workers = report.report_on(made_record(calls, plan=plan)).advice
    assert memory.startswith("components.a.memory reserves 20G; 95 % of 15 tasks")
    assert workers.startswith("Workers of a had tasks in 19 % of their time")
    assert "1 worker instead of 2" in workers


def test_advice_names_more_workers_where_all_were_busy():
    calls = [call(n, worker=f"a-{w}") | {"task_id": f"{n}{w}"} for n in range(20) for w in (0, 1)]
    (sentence,) = report.report_on(made_record(calls)).advice
    assert "4 workers could shorten 20.0 s to about 10.0 s" in sentence


def test_the_environment_shows_the_manifest_without_values_of_variables(tmp_path):
    text = "components:\n  a:\n    env: {TOKEN: hunter2}\n    image: https://u:hunter2@x.org/i\n"
    (tmp_path / "manifest.yaml").write_text(text)
    run = {"versions": {"dask": "1.2"}, "machine": {"platform": "Linux", "cpus": 4}, "host": "h"}
    record = made_record(run=run)
    made = report.report_on(RunRecord(**{**vars(record), "path": tmp_path}))
    page = made.to_html()
    assert "TOKEN" in page
    assert "hunter2" not in page
    assert (made.environment.versions, made.environment.cpus) == ({"dask": "1.2"}, 4)


def test_one_object_is_text_page_part_and_json(tmp_path):
    made = report.report_on(made_record([call(0)]))
    assert str(made) == report.render_human(made.summary)
    part = made._repr_html_()
    assert part.startswith('<div class="sr">')
    assert "<script" not in part
    assert RUN_ID in part
    page = made.save(tmp_path / "r.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    value = json.loads(json.dumps(made.to_dict()))
    assert value["version"] == 1
    assert value["report"]["tasks"] == {"succeeded": 1}
    assert value["report"]["pools"][0]["busy_s"] == 1.0


def test_the_page_forbids_everything_but_its_own_script_and_style():
    page = report.report_on(made_record([call(0)])).to_html()
    policy = page.partition('Content-Security-Policy" content="')[2].partition('"')[0]
    assert policy.startswith("default-src &#39;none&#39;; style-src &#39;sha256-")
    assert "unsafe" not in policy
    assert "http://" not in page
    assert "https://" not in page
    assert ' style="' not in page
    assert "<link" not in page


def test_a_run_without_anything_has_a_report():
    record = RunRecord(path=made_record().path, run={}, status="running")
    made = report.report_on(record)
    assert "No worker connected." in made.to_html()
    assert made.advice == ()
