"""The report object: each number of the page, computed from a record that is known."""

import base64
import hashlib
import json
import re

import pytest
from made_runs import RUN_ID, START, call, made_record

from scalable.palette import LIGHT
from scalable.runs.reading import RunRecord
from scalable.runs.report.run_report import report_on
from scalable.runs.report.usage import COLUMNS, POINTS, ROWS, SHADES, SINGLE_CALLS


def data_of(page):
    """Return the data that is embedded in a page, as a browser reads it."""
    return json.loads(page.partition('id="data">')[2].partition("</script>")[0])


def bars_of(row):
    """Return the bars of a timeline's row: begin, width, name, failed, shade."""
    return [tuple(row[place : place + 5]) for place in range(0, len(row), 5)]


def test_a_pool_tells_the_share_of_time_in_which_its_workers_had_calls():
    calls = [*(call(n) for n in range(10)), *(call(n, worker="a-1") for n in range(5))]
    plan = {"scale_plan": {"resources_by_tag": {"a": {"memory": "2G"}}}}
    made = report_on(made_record(calls, plan=plan))
    (use,) = made.pools
    assert (use.tag, use.workers, use.connected_s, use.busy_s) == ("a", 2, 40.0, 15.0)
    assert use.share == pytest.approx(0.375)
    assert (use.reserved_memory, use.used_memory) == (2 * 10**9, 100 * 2**20)
    assert sum(use.busy) * 20 / POINTS == pytest.approx(15)
    assert sum(use.connected) * 20 / POINTS == pytest.approx(40)


def test_overlapping_calls_of_one_worker_count_once():
    (use,) = report_on(made_record([call(0), call(0.5), call(4)])).pools
    assert use.busy_s == pytest.approx(2.5)


def test_few_tasks_are_shown_one_by_one_with_their_worker():
    timeline = report_on(made_record([call(0), call(19, worker="a-1", state="failed")])).timeline
    assert timeline["rows"] == ["a-0", "a-1"]
    (first,), (second,) = map(bars_of, timeline["cells"])
    assert first == (0, COLUMNS / 20, 0, 0, SHADES)
    assert second == (COLUMNS * 19 / 20, COLUMNS / 20, 0, 1, SHADES)
    assert timeline["marks"] == []


def test_many_tasks_are_cells_whose_shade_is_the_share_of_busy_workers():
    count = SINGLE_CALLS + 500
    step = 20 / count
    calls = [
        call(n * step, "even" if n % 2 else "odd", timestamp=START + (n + 1) * step)
        | {"task_id": str(n), "duration_s": step / 2, "state": "succeeded" if n else "failed"}
        for n in range(count)
    ]
    timeline = report_on(made_record(calls)).timeline
    row, other = map(bars_of, timeline["cells"])
    assert not other
    assert all((failed, shade) == (0, 2) for *_, failed, shade in row)
    assert sum(width for _, width, *_ in row) == pytest.approx(COLUMNS)
    assert timeline["marks"] == [[0, 0.0]]


def test_many_workers_share_rows_and_every_worker_is_in_one():
    workers = [
        {"event": "started", "worker": f"{tag}-{n}", "tag": tag, "timestamp": START}
        for tag, count in (("a", 900), ("b", 100))
        for n in range(count)
    ]
    rows = report_on(made_record([call(0)], workers)).timeline["rows"]
    assert len(rows) <= ROWS
    assert sum(int(label.split()[1]) for label in rows) == 1000


def test_ten_thousand_task_names_share_a_colour_beyond_the_most_important_ones():
    calls = [call(n / 1000, f"name-{n}") for n in range(10_000)]
    made = report_on(made_record(calls))
    names = made.timeline["names"]
    assert [colour for _, colour in names].count(-1) == 1
    assert len(names) == len(LIGHT) + 1
    assert len(made.to_html()) < 500_000


def test_failures_with_one_cause_are_one_group_with_the_details_that_are_recorded():
    failures = [
        {"failure_class": "ValueError", "message": f"bad value {n}", "timestamp": START}
        | {"details": {"task_id": f"t-{n}", "worker": "a-0", "arguments": f"({n},)"}}
        for n in range(12)
    ]
    failures += [{"failure_class": "ValueError", "message": "other", "count": 3, "details": {}}]
    failures += [{"failure_class": "E", "message": "end", "details": {"phase": "workflow"}}]
    first, second = report_on(made_record(failures=failures)).to_dict()["report"]["causes"]
    assert (first["count"], first["message"]) == (12, "bad value 0")
    assert first["details"] == {"arguments": "(0,)"}
    assert first["tasks"] == ["t-0", "t-1", "t-2", "t-3", "t-4"]
    assert (second["count"], second["message"]) == (3, "other")


def test_the_longest_chain_follows_the_calls_for_which_others_waited():
    calls = [
        call(0, "read"),
        call(0, "long", duration_s=5.0, timestamp=START + 5),
        call(1, "model", after="read-0"),
        call(5, "model", after="long-0"),
        call(6, "write", after="model-5", duration_s=2.0),
    ]
    chain = report_on(made_record(calls)).chain
    assert (chain.seconds, chain.tasks) == (8.0, 3)
    assert chain.names == (("long", 1), ("model", 1), ("write", 1))
    assert report_on(made_record([call(0)])).chain is None


def test_advice_names_memory_and_workers_that_were_not_needed():
    calls = [call(n, duration_s=0.5) for n in range(15)]
    plan = {"scale_plan": {"resources_by_tag": {"a": {"memory": "20G"}}}}
    memory, workers = report_on(made_record(calls, plan=plan)).advice
    assert memory.startswith("components.a.memory reserves 18.63 GiB; 95 % of 15 tasks")
    assert workers.startswith("Workers of a had tasks in 19 % of their time")
    assert "1 worker instead of 2" in workers


def test_advice_names_more_workers_where_all_were_busy():
    calls = [call(n, worker=f"a-{w}") | {"task_id": f"{n}{w}"} for n in range(20) for w in (0, 1)]
    (sentence,) = report_on(made_record(calls)).advice
    assert "4 workers could shorten 20.0 s to about 10.0 s" in sentence


@pytest.mark.parametrize(("most", "advice"), [(2, None), (3, "3 workers"), (9, "4 workers")])
def test_advice_is_within_the_manifest_s_limit(tmp_path, most, advice):
    (tmp_path / "manifest.yaml").write_text(f"targets: {{local: {{max_workers: {most}}}}}\n")
    calls = [call(n, worker=f"a-{w}") | {"task_id": f"{n}{w}"} for n in range(20) for w in (0, 1)]
    record = made_record(calls, run={"target": "local"})
    told = report_on(RunRecord(**{**vars(record), "path": tmp_path})).advice
    assert [f"{advice} could shorten" in sentence for sentence in told] == [True] * bool(advice)


def test_the_environment_shows_the_manifest_without_values_of_variables(tmp_path):
    text = "components:\n  a:\n    env: {TOKEN: hunter2}\n    image: https://u:hunter2@x.org/i\n"
    (tmp_path / "manifest.yaml").write_text(text)
    run = {"versions": {"dask": "1.2"}, "machine": {"platform": "Linux", "cpus": 4}, "host": "h"}
    record = made_record(run=run)
    made = report_on(RunRecord(**{**vars(record), "path": tmp_path}))
    page = made.to_html()
    assert "TOKEN" in page
    assert "hunter2" not in page
    assert (made.environment.versions, made.environment.cpus) == ({"dask": "1.2"}, 4)


def test_one_object_is_text_page_part_and_json(tmp_path):
    made = report_on(made_record([call(0)]))
    assert str(made).startswith(f"Run {RUN_ID}\n")
    part = made._repr_html_()
    assert part.startswith("<iframe ")
    assert 'sandbox="allow-scripts"' in part
    assert "<script" not in part  # it is escaped
    assert RUN_ID in part
    page = made.save(tmp_path / "r.html").read_text()
    assert page.startswith("<!doctype html>")
    value = json.loads(json.dumps(made.to_dict()))
    assert value["version"] == 1
    assert value["report"]["tasks"] == {"succeeded": 1}
    assert value["report"]["pools"][0]["busy_s"] == 1.0
    assert "queued" not in value["report"]["pools"][0]


def test_the_page_has_the_same_tables_as_a_live_one_and_quantiles():
    calls = [call(n, "sim", duration_s=float(n)) for n in range(1, 12)]
    data = data_of(report_on(made_record([*calls, call(15, state="failed")])).to_html())
    (table,) = [piece["table"] for piece in data["parts"]["tasks"] if "table" in piece]
    names = [column["name"] for column in table["columns"]]
    assert {"task", "progress", "done", "failed", "mean_run_time", "duration_s_q95"} <= set(names)
    rows = {row["cells"][0]: dict(zip(names, row["cells"], strict=True)) for row in table["rows"]}
    assert (rows["sim"]["done"], rows["sim"]["duration_s_q50"]) == ("11", "6.0 s")
    assert data["progress"]["text"] == "12 of 12 tasks"
    assert data["progress"]["states"] == [["done", 11, "11 done"], ["failed", 1, "1 failed"]]
    assert data["state"] == {"text": "completed with 1 failure", "look": "warn"}


def test_the_page_forbids_everything_but_its_own_script_and_style():
    page = report_on(made_record([call(0)])).to_html()
    policy = page.partition('Content-Security-Policy" content="')[2].partition('"')[0]
    assert policy.startswith("default-src &#x27;none&#x27;; style-src &#x27;sha256-")
    assert "unsafe" not in policy
    own = re.findall('<style>(.*?)</style>|<script type="module">(.*?)</script>', page, re.DOTALL)
    assert len(own) == 2
    for text in (style or script for style, script in own):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"sha256-{digest}" in policy
    assert "https://" not in page
    assert ' style="' not in page
    assert '<link rel="stylesheet' not in page
    assert ' src="' not in page


def test_a_text_cannot_end_the_data_of_a_page():
    hostile = "</script><script>alert(1)</script>\u2028<!--"
    made = report_on(made_record([call(0, hostile)], run={"error": hostile}))
    page = made.to_html()
    assert page.count("</script>") == page.count("<script") == 2
    assert "\u2028" not in page
    assert data_of(page)["error"] == hostile


def test_a_run_without_anything_has_a_report():
    record = RunRecord(path=made_record().path, run={}, status="running")
    made = report_on(record)
    assert "No worker connected." in json.dumps(data_of(made.to_html()))
    assert made.advice == ()
