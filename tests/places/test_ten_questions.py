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
#: Headings of the mean times in a terminal.
TITLES = {"mean": "mean run time", "queue": "mean queue time"}


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
    """The rows of all tables as cells by heading, and all text outside of scripts and styles."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.texts, self._heads, self._cells = [], [], [], []
        self._silent = self._cell = False
        self.feed(html)
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag, attributes):
        self._silent = tag in ("style", "script", "title")
        if tag == "tr":
            self._cells = []
        if tag in ("td", "th"):
            self._cells.append("")
            self._cell = True

    def handle_endtag(self, tag):
        self._silent = False
        if tag in ("td", "th"):
            self._cell = False
        if tag == "thead":
            self._heads = [cell.rstrip(" ▲▼").casefold() for cell in self._cells]
            self.rows.pop()
        elif tag == "tr":
            self.rows.append(dict(zip(self._heads, self._cells, strict=False)))

    def handle_data(self, data):
        if not self._silent:
            self.texts.append(data)
            if self._cell:
                self._cells[-1] += data.strip()

    def of(self, name, heading=""):
        """Return the first row that begins with a name, in a table with a heading."""
        rows = (row for row in self.rows if not heading or heading in row)
        return next(row for row in rows if next(iter(row.values()), None) == name)


class Terminal(Rows):
    """The lines of ``scalable top --once``."""

    def __init__(self, text):
        self.text, self.rows, before = text, [], "."
        for line in text.splitlines():
            cells = re.split(r"  +", line.strip())
            if line.startswith("  ") and (not before or before.endswith(":")):
                self._heads = [TITLES.get(cell, cell) for cell in cells]
            elif line.startswith("  ") and len(cells) == len(self._heads):
                self.rows.append(dict(zip(self._heads, cells, strict=False)))
            before = line


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
            counts = overviews.present(0.0).counts
            if counts.unfinished == 4:
                break
            await asyncio.sleep(0.01)
        overviews._made_at = time.monotonic() + 1e6
        return overviews.answer(0)

    return json.loads(json.dumps(session.cluster.sync(freeze)))


def on_page(link):
    """Return what the page of a live cluster or of a finished run shows."""
    with playwright.sync_playwright() as library:
        browser = library.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = browser.new_page()
            page.goto(link)
            page.wait_for_selector("main tbody tr", timeout=60_000)
            told = Rows(page.inner_html("main"))
            for name, get in (("fact", "e.innerText"), ("state", "e.dataset.count")):
                values = f"all => all.map(e => [e.dataset.{name}, {get}])"
                found = page.eval_on_selector_all(f"[data-{name}]", values)
                setattr(told, f"{name}s", dict(found))
            return told
        finally:
            browser.close()


def reported(report, path):
    report.save(path)
    return on_page(path.as_uri())


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
                return counted and now.counts.running == 1 and now.cost["per_hour"] == 18_000

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
            seen.html_during = reported(seen.during, place / "during.html")
            Event("go", client=client).set()
            client.gather(waits)
        seen.report = session.report()
        seen.html = reported(seen.report, place / "report.html")
        yield seen


def live(places):
    """Return the three places that show the cluster while it lives, with rows of cells."""
    return places.page, places.terminal, places.notebook, places.cluster


def cells(row, *headings):
    return [row.get(heading, "0") for heading in headings]


def test_the_terminal_has_the_overview_for_programs(places):
    # Among the values for programs, the latest failures take the place of their numbers.
    same = places.overview.keys() - {"failures"}
    assert {key: places.json[key] for key in same} == {key: places.overview[key] for key in same}


def test_is_it_moving(places):
    counts = {"running": 1, "queued": 3, "blocked": 0, "done": 7, "failed": 2}
    assert places.overview["counts"] == {**counts, "cancelled": 0, "cached": 0}
    assert places.during.summary.tasks == {
        "succeeded": 7, "failed": 2, "running": 1, "submitted": 3
    }  # fmt: skip
    assert places.page.states == {name: str(count) for name, count in counts.items() if count}
    for place in (places.terminal, places.notebook, places.cluster):
        assert "1 running, 3 queued, 7 done, 2 failed" in place.text
    for place in live(places):
        assert "9 of 13 tasks" in place.text
    numbers = {"held": ["1", "3", "0", "0"], "fit": ["0", "0", "6", "0"],
               "fail": ["0", "0", "0", "2"]}  # fmt: skip
    for name, told in numbers.items():
        for place in live(places):
            assert cells(place.of(name), "running", "queued", "done", "failed") == told, name
    assert cells(places.html_during.of("fit", "done"), "done", "failed") == ["6", "0"]
    assert cells(places.html_during.of("fail", "done"), "done", "failed") == ["0", "2"]
    assert cells(places.html.of("held", "done"), "done", "failed") == ["4", "0"]


def test_what_is_it_waiting_for(places):
    """Three calls wait for the only slot of their pool."""
    pool = places.overview["pools"]["small"]
    assert (pool["queued"], pool["used_slots"], pool["slots"]) == (3, 1, 1)
    for place in live(places):
        assert cells(place.of("small"), "slots", "queued") == ["1/1", "3"]
    assert places.during.summary.tasks["submitted"] == 3
    held = places.report.summary.task_names["held"].quantiles["queued_s"]
    assert held.max > held.q50 > 0


def test_when_will_it_end(places):
    """While it runs the end is predicted; the report tells how long it took."""
    end = places.overview["end"]
    assert end["low"] <= end["at"] <= end["high"]
    assert end == places.json["end"]
    told = re.search(r"end (in .*?\))", places.terminal.text).group(1)
    assert places.page.facts["End"] == told
    for place in (places.notebook, places.cluster):
        assert f"end {told}" in place.text
    assert places.html.facts["Time"]
    assert places.report.summary.duration_s > 0


def test_what_did_it_cost(places):
    cost = places.overview["cost"]
    assert cost["per_hour"] == 3600 + 2 * 7200
    words = r"(\S+) USD so far, 18000.00 an hour; \S+ for time without tasks"
    shown = re.search(words, places.terminal.text)
    assert float(shown.group(1)) == pytest.approx(cost["cost"], abs=0.006)
    assert places.page.facts["Cost"] == shown.group()
    for place in (places.notebook, places.cluster):
        assert shown.group() in place.text
    after = places.report.summary.cost
    assert after.actual >= cost["cost"]  # the same meter, read at the end
    assert f"{after.actual:.2f} USD" in places.html.facts["Cost"]
    for tag, pool in cost["pools"].items():
        assert len({place.of(tag)["cost"] for place in live(places)}) == 1
        assert after.by_tag[tag] >= pool["cost"]


def test_which_pool_is_too_big(places):
    """Both workers of one pool have never had a call."""
    pool = places.overview["pools"]["large"]
    assert (pool["busy"], pool["idle"], pool["slots"]) == (0, 2, 2)
    assert pool["cost"]["cost"] == pool["cost"]["idle"]
    for place in live(places):
        assert cells(place.of("large"), "busy", "idle", "slots") == ["0", "2", "0/2"]
    (use,) = (use for use in places.report.pools if use.tag == "large")
    assert (use.workers, use.share, use.idle_cost) == (2, 0.0, use.cost)


def test_which_calls_failed_and_with_what(places):
    assert places.overview["failures"] == {"ValueError": 2}
    assert sum(row.get("count", 1) for row in places.json["failures"]) == 2
    assert cells(places.terminal.of("2"), "error", "task", "message") == [
        "ValueError", "fail", "no value 1"
    ]  # fmt: skip
    for place in (places.page, places.html):
        assert "2 x ValueError: no value" in place.text
    for place in (places.notebook, places.cluster):
        assert "failures 2 x ValueError" in place.text
    assert [(c.count, c.failure_class) for c in places.report.causes] == [(2, "ValueError")]


def test_which_workers_and_managers_are_there(places):
    (manager,) = places.overview["managers"]
    assert places.overview["workers"] == 3
    assert (places.page.facts["Workers"], places.page.facts["Clients"]) == ("3", "1")
    assert "; 3 workers, 1 client" in places.terminal.text
    for place in (places.notebook, places.cluster):
        assert "workers 3 clients 1" in place.text
    for place in live(places):
        assert place.of(manager["id"])["workers"] == "small: 1/1, large: 2/2"
    assert places.html.facts["Workers"] == "3 workers"
    assert list(places.report.summary.cost.by_manager) == [manager["id"]]


def test_what_ran_again_and_why(places):
    assert places.overview["reruns"] == {AGAIN: 1}
    assert places.page.facts["Ran again"] == f"1 x {AGAIN}"
    assert f"Ran again: 1 x {AGAIN}" in places.terminal.text
    for place in (places.notebook, places.cluster):
        assert f"ran again 1 x {AGAIN}" in place.text
    assert places.report.summary.rerun_reasons == {AGAIN: 1}
    again = places.html.facts["Ran again"]
    assert re.fullmatch(rf"1 task \(flaky-\w+\): 1 x {AGAIN}", again), again


def test_what_was_decided_and_why(places):
    rows = places.answer["events"]["decisions"]
    assert rows == places.json["decisions"]
    decided = [
        ["large", "0", "1", "plan", "planned"],
        ["large", "1", "2", "manual", "set by hand"],
        ["small", "0", "1", "plan", "planned"],
    ]

    def told(place):
        headings = ("pool", "from", "to", "by", "reason")
        return sorted(cells(row, *headings) for row in place.rows if "by" in row)

    for place in (places.page, places.terminal, places.html):
        assert told(place) == decided
    for place in (places.notebook, places.cluster):  # the last one of each pool
        assert told(place) == decided[1:]


def test_how_long_did_calls_wait_and_run(places):
    (task,) = (task for task in places.overview["tasks"] if task["name"] == "fit")
    after = places.report.summary.task_names["fit"].quantiles
    assert task["mean_s"] == pytest.approx(after["duration_s"].mean, abs=0.001)
    assert task["mean_queued_s"] == pytest.approx(after["queued_s"].mean, abs=0.001)
    told = [cells(place.of("fit"), *TITLES.values()) for place in live(places)]
    assert told == [told[0]] * len(told)
    assert places.html.of("fit", "done")["mean run time"] == told[0][0]
