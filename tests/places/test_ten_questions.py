"""Ten questions about a run: page, terminal, notebook and report answer with the same numbers."""

import asyncio
import json
import re
import shutil
import time
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from distributed import Event

from scalable import ScalableSession
from verbs import program

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")

MANIFEST = """\
version: 1
project: {name: questions}
targets:
  local:
    provider: local
    processes: false
    max_workers: 6
    dashboard_address: "0"
    prices: {small: 3600, large: 7200}
components:
  small: {cpus: 1, workers: 1}
  large: {cpus: 1, workers: 1}
"""
AGAIN = "failed, retried"
MEANS = 6, 7  # places of the mean times in a row of a terminal's or a notebook's tasks


def fit(x):
    time.sleep(0.05)
    return x


def fail(x):
    raise ValueError(f"no value {x}")


def flaky(name):
    tried = Event(name)
    if not tried.is_set():
        tried.set()
        raise OSError("once")


def held(name):
    Event(name).wait(timeout="120s")


class Rows(HTMLParser):
    """The texts of the cells of all rows of tables, and all text outside of scripts and styles."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.texts, self._silent, self._cell = [], [], False, False
        self.feed(html)
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag, attributes):
        self._silent = tag in ("style", "script")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag):
        self._silent = False
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data):
        if not self._silent:
            self.texts.append(data)
            if self._cell:
                self.rows[-1][-1] += data.strip()

    def of(self, name):
        """Return the cells of the first row that begins with a name, after it."""
        return next(row[1:] for row in self.rows if row and row[0] == name)


class Terminal:
    """The lines of ``scalable top --once``."""

    def __init__(self, text):
        self.text = text

    def of(self, name):
        """Return the cells of the first row that begins with a name, after it."""
        line = next(line for line in self.text.splitlines() if line.startswith(f"  {name} "))
        return re.split(r"  +", line.strip())[1:]


def work(client, session):
    """Run calls that succeed, fail, run again, run, and wait; return those that do not end."""
    client.gather([client.submit(fit, n, tag="small", pure=False) for n in range(6)])
    for number in range(2):
        assert client.submit(fail, number, tag="small", pure=False).exception() is not None
    client.submit(flaky, "tried", tag="small", retries=1, pure=False).result()
    session.scale({"large": 2})
    return [client.submit(held, "go", tag="small", pure=False) for _ in range(4)]


def frozen(session):
    """Let the scheduler answer all who ask with one overview, and return it."""

    async def freeze():
        overviews = session.cluster.manager.controller.overviews
        while True:  # until the calls that do not end have all arrived
            calls = overviews.present(0.0).calls
            if calls.running + calls.waiting == 4:
                break
            await asyncio.sleep(0.01)
        overviews._made_at = time.monotonic() + 1e6
        return overviews.answer(0)

    return json.loads(json.dumps(session.cluster.sync(freeze)))


def on_page(link):
    """Return what the live page shows, and the data from which it is drawn."""
    with playwright.sync_playwright() as library:
        browser = library.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = browser.new_page()
            with page.expect_response(re.compile(r"overview\.json")) as answer:
                page.goto(link)
            page.wait_for_selector("#pools tbody tr", timeout=60_000)
            facts = page.eval_on_selector_all(
                "[data-fact]", "all => all.map(e => [e.dataset.fact, e.innerText])"
            )
            told = Rows(page.inner_html("main"))
            told.data, told.facts = answer.value.json(), dict(facts)
            return told
        finally:
            browser.close()


@pytest.fixture(scope="module")
def places(tmp_path_factory, eventually):
    """A session in the middle of its work, as four places show it."""
    place = tmp_path_factory.mktemp("questions")
    (place / "scalable.yaml").write_text(MANIFEST)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(place / "state"))
        patch.setenv("SCALABLE_RUNS_DIR", str(place / "runs"))
        session = ScalableSession.from_yaml(place / "scalable.yaml", "local")
        with session as client:
            waits = work(client, session)

            def settled():
                now = session.overview()
                (manager,) = now.managers
                counted = manager["pools"]["large"]["running"] == now.pools["large"].idle == 2
                return counted and now.calls.running == 1 and now.cost["per_hour"] == 18_000

            eventually(settled)
            seen = SimpleNamespace(answer=frozen(session))
            seen.overview = seen.answer["overview"]
            seen.page = on_page(session.cluster.dashboard_link.replace("/status?", "/scalable/?"))
            name = session.run_path.name
            patch.setenv("COLUMNS", "200")
            told = program("top", name, "--once", "--format", "json", here=True)
            seen.json = json.loads(told.stdout)
            seen.terminal = Terminal(program("top", name, "--once", here=True).stdout)
            seen.notebook = Rows(session._repr_html_())
            seen.cluster = Rows(session.cluster._repr_html_())
            time.sleep(1.0)  # rows are written twice a second
            seen.during = session.report()
            seen.html_during = Rows(seen.during.to_html())
            Event("go", client=client).set()
            client.gather(waits)
        seen.report = session.report()
        seen.html = Rows(seen.report.to_html())
        yield seen


def live(places):
    """Return the three places that show the cluster while it lives, with rows of cells."""
    return places.page, places.terminal, places.notebook, places.cluster


def test_all_places_show_one_overview(places):
    assert places.page.data["overview"] == places.overview
    # Among the values for programs, the latest failures take the place of their numbers.
    same = places.overview.keys() - {"failures"}
    assert {key: places.json[key] for key in same} == {key: places.overview[key] for key in same}


def test_is_it_moving(places):
    assert places.overview["calls"] == {
        "running": 1, "waiting": 3, "done": 7, "failed": 2, "cancelled": 0, "found": 0
    }  # fmt: skip
    assert places.during.summary.tasks == {
        "succeeded": 7, "failed": 2, "running": 1, "submitted": 3
    }  # fmt: skip
    facts = places.page.facts
    shown = {name: facts[name] for name in ("Running tasks", "Waiting tasks", "Done", "Failed")}
    assert list(shown.values()) == ["1", "3", "7", "2"]
    for place in (places.terminal, places.notebook, places.cluster):
        assert "1 running, 3 waiting, 7 done, 2 failed" in place.text
    numbers = {"held": [1, 3, 0, 0], "fit": [0, 0, 6, 0], "fail": [0, 0, 0, 2]}
    for name, counts in numbers.items():
        for place in live(places):
            assert place.of(name)[2:6] == [str(count) for count in counts], (name, place)
    assert places.html_during.of("fit")[:2] == ["6", "0"]
    assert places.html_during.of("fail")[:2] == ["2", "2"]
    assert places.html.of("held")[:2] == ["4", "0"]


def test_what_is_it_waiting_for(places):
    """Three calls wait for the only slot of their pool."""
    pool = places.overview["pools"]["small"]
    assert (pool["waiting"], pool["used_slots"], pool["slots"]) == (3, 1, 1)
    cells = places.page.of("small")
    assert cells[8:10] == ["1 of 1", "3"]
    for place in (places.terminal, places.notebook, places.cluster):
        assert place.of("small")[5:7] == ["1/1", "3"]
    assert places.during.summary.tasks["submitted"] == 3
    held = places.report.summary.task_names["held"].queued_s
    assert held.max > held.q50 > 0


def test_when_will_it_end(places):
    """While it runs the end is predicted; the report tells how long it took."""
    end = places.overview["end"]
    assert end["low"] <= end["at"] <= end["high"]
    assert end == places.json["end"] == places.page.data["overview"]["end"]
    told = re.search(r"End: in .*?\)", places.terminal.text).group()
    assert told in places.notebook.text
    assert told in places.cluster.text
    interval = re.findall(r"\d+:\d\d:\d\d", told)
    assert re.findall(r"\d+:\d\d:\d\d", places.page.facts["Predicted end"]) == interval
    assert "Duration " in places.html.text
    assert places.report.summary.duration_s > 0


def test_what_did_it_cost(places):
    cost = places.overview["cost"]
    assert cost["per_hour"] == 3600 + 2 * 7200
    shown = re.search(r"Cost: (\S+) USD so far, 18000.00 an hour", places.terminal.text).group(1)
    assert float(shown) == pytest.approx(cost["cost"], abs=0.006)
    assert places.page.facts["Cost"] == f"{shown} USD, 18000.00 an hour"
    for place in (places.notebook, places.cluster):
        assert f"Cost: {shown} USD so far, 18000.00 an hour" in place.text
    after = places.report.summary.cost
    assert after.actual >= cost["cost"]  # the same meter, read at the end
    assert f"Cost {after.actual:.2f} USD" in places.html.text
    for tag, pool in cost["pools"].items():
        assert places.page.of(tag)[11] == places.terminal.of(tag)[-1] == places.notebook.of(tag)[-1]
        assert after.by_tag[tag] >= pool["cost"]


def test_which_pool_is_too_big(places):
    """Both workers of one pool have never had a call."""
    pool = places.overview["pools"]["large"]
    assert (pool["busy"], pool["idle"], pool["slots"]) == (0, 2, 2)
    assert pool["cost"]["cost"] == pool["cost"]["idle"]
    assert places.page.of("large")[3:5] == ["0", "2"]
    for place in (places.terminal, places.notebook, places.cluster):
        assert place.of("large")[3:6] == ["0", "2", "0/2"]
    (use,) = (use for use in places.report.pools if use.tag == "large")
    assert (use.workers, use.share, use.idle_cost) == (2, 0.0, use.cost)
    pools = [row[1:3] for row in places.html.rows if row[0] == "large" and len(row) == 10]
    assert pools == [["2", "0 %"]]


def test_which_calls_failed_and_with_what(places):
    assert places.overview["failures"] == {"ValueError": 2}
    assert sum(row.get("count", 1) for row in places.json["failures"]) == 2
    assert "2 x ValueError: no value 1" in places.page.text
    assert re.search(r"\n +2 +\S+ +ValueError +fail +no value 1\n", places.terminal.text)
    for place in (places.notebook, places.cluster):
        assert "Failures: 2 x ValueError" in place.text
    assert "2 x ValueError" in places.html.text
    assert [(c.count, c.failure_class) for c in places.report.causes] == [(2, "ValueError")]


def test_which_workers_and_managers_are_there(places):
    (manager,) = places.overview["managers"]
    assert places.overview["workers"] == 3
    assert places.page.facts["Workers"] == "3"
    assert places.page.of(manager["id"])[4] == "small: 1 of 1, large: 2 of 2"
    for place in (places.terminal, places.notebook, places.cluster):
        assert "; 3 workers, 1 client" in place.text
        assert place.of(manager["id"])[4] == "small: 1/1, large: 2/2"
    assert "Workers 3 workers" in places.html.text
    assert list(places.report.summary.cost.by_manager) == [manager["id"]]


def test_what_ran_again_and_why(places):
    assert places.overview["reruns"] == {AGAIN: 1}
    assert places.page.facts["Ran again"] == f"1 x {AGAIN}"
    for place in (places.terminal, places.notebook, places.cluster):
        assert f"Ran again: 1 x {AGAIN}" in place.text
    assert places.report.summary.rerun_reasons == {AGAIN: 1}
    assert f"Ran again 1 task: 1 x {AGAIN}" in places.html.text


def test_what_was_decided_and_why(places):
    rows = places.answer["events"]["decisions"]
    facts = [[row["tag"], row["from"], row["to"], row["source"], row["reason"]] for row in rows]
    assert sorted(map(str, facts)) == [
        str(["large", 0, 1, "plan", "scale"]),
        str(["large", 1, 2, "manual", "scale"]),
        str(["small", 0, 1, "plan", "scale"]),
    ]
    assert places.page.data["events"]["decisions"] == rows == places.json["decisions"]
    for row in facts:
        cells = list(map(str, row))
        assert [r[1:] for r in places.page.rows].count(cells) == 1
        assert len(re.findall(r"  +".join(cells), places.terminal.text)) == 1
        assert [r[1:] for r in places.html.rows].count(cells) == 1
    for place in (places.notebook, places.cluster):  # the last one of each pool
        last = [r[1:] for r in place.rows if r[-1:] == ["scale"]]
        assert last == [list(map(str, facts[-1])), list(map(str, facts[0]))]


def test_how_long_did_calls_wait_and_run(places):
    (task,) = (task for task in places.overview["tasks"] if task["name"] == "fit")
    after = places.report.summary.task_names["fit"]
    assert task["mean_s"] == pytest.approx(after.duration_s.mean, abs=0.001)
    assert task["mean_queued_s"] == pytest.approx(after.queued_s.mean, abs=0.02)
    run, queued = places.terminal.of("fit")[MEANS[0] :]
    assert places.notebook.of("fit")[MEANS[0] :] == [run, queued]
    assert places.cluster.of("fit")[MEANS[0] :] == [run, queued]
    assert places.page.of("fit")[-2:] == [run, queued]
    assert places.html.of("fit")[5] == run
