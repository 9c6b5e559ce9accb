"""The report of a run in a real browser: a file without a server."""

import sys
from pathlib import Path

import pytest
from made_pages import chromium

from scalable.runs.report.run_report import report_on

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "runs"))
from made_runs import call, made_record


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    calls = [call(n, "fit", duration_s=0.2 + n / 10) for n in range(12)]
    calls += [call(3, "load", worker="a-1"), call(9, "load", worker="a-1", state="failed")]
    failures = [{"failure_class": "ValueError", "message": "<b>bad</b>", "details": {}}]
    report = report_on(made_record(calls, failures=failures))
    return report.save(tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture(scope="module", params=["light", "dark"])
def page(request, file):
    with chromium() as browser:
        page = browser.new_context(color_scheme=request.param).new_page()
        page.errors, page.asked = [], []
        page.on("console", lambda m: page.errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.on("request", lambda asked: page.asked.append(asked.url))
        page.goto(file.as_uri())
        page.wait_for_selector("#tasks tbody tr", timeout=60_000)
        yield page
        assert page.errors == []
        assert [url for url in page.asked if url[:5] != "data:"] == [file.as_uri()]


def test_progress_comes_first_without_states_of_no_task(page):
    assert (page.inner_text("#percent"), page.inner_text("#count")) == ("100 %", "14 of 14 tasks")
    states = page.locator("#states [data-state]")
    assert [text.strip() for text in states.all_inner_texts()] == ["13 done", "1 failed"]
    assert page.inner_text("#state") == "completed with 1 failure"
    assert not page.is_visible("nav a[href='#managers-part']")
    assert page.is_visible("nav a[href='#plan-part']")


def test_axes_have_round_moments_and_a_unit(page):
    ticks = page.locator("svg.chart").first.locator("text").all_text_contents()
    assert {"0 s", "5 s", "10 s", "15 s", "workers"} <= set(ticks)


def test_rows_are_sorted_by_their_values(page):
    page.click("#tasks th button:has-text('median')")
    assert page.inner_text("#tasks tbody tr td") == "load"
    page.click("#tasks th button:has-text('median')")
    assert page.inner_text("#tasks tbody tr td") == "fit"
    page.fill("#tasks-filter", "LOAD")
    assert page.locator("#tasks tbody tr").count() == 1


def test_a_failed_task_is_hatched_on_the_ground_of_the_timeline(page):
    count = """(name) => {
      const canvas = document.getElementById("timeline");
      const style = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
      const [r, g, b] = [1, 3, 5].map((at) => parseInt(style.slice(at, at + 2), 16));
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let found = 0;
      for (let at = 0; at < data.length; at += 4) {
        found += data[at] === r && data[at + 1] === g && data[at + 2] === b;
      }
      return found;
    }"""
    before = page.evaluate(count, "--bad")
    assert before > 20
    page.select_option("#window", "60")
    assert page.evaluate(count, "--bad") > 20
    assert page.inner_text("#failures summary") == "1 x ValueError: <b>bad</b>"
