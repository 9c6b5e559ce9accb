"""Public objects in a notebook, which a real kernel executes."""

import json
import re
from html import unescape
from html.parser import HTMLParser

import pytest

from notebooks import execute, said

EVIL = "x<script>alert(1)</script><b>bold</b>x"
MANIFEST = """\
version: 1
project: {name: harvest}
targets:
  local: {provider: local, max_workers: 4}
components:
  crops: {cpus: 1, memory: 200M, workers: {minimum: 1, maximum: 3}}
  maps: {cpus: 1, workers: 1}
tasks:
  grow: {component: crops, count: 40, duration: 30s}
  draw: {component: maps, count: 2, duration: 5s}
"""
CELLS = {
    "made": """\
import json, pathlib, threading, time
import scalable
from scalable import ScalableSession
session = ScalableSession.from_yaml(target="local")
session""",
    "plan": "plan = session.plan(objective='balance')\nplan",
    "printed": "print(plan)",
    "short": "print(repr(session))\nprint(repr(plan))",
    "started": f"""\
def step(number):
    if number == 2:
        raise ValueError("bad")
    while number > 2 and not pathlib.Path("go").exists():
        time.sleep(0.02)
client = session.start(session.plan())
session.scale({{"crops": 2, "maps": 1}})
def named(number):
    print("a sown field")
    return number
named.__name__ = {EVIL!r}
evil = client.submit(named, 0, tag="maps")
futures = client.map(step, range(8), task="grow")
executor = client.pool("crops", task="grow")
def settled():
    overview = session.overview()
    calls, workers = overview.counts, overview.pools["crops"].status.running
    return (calls.done, calls.failed, calls.running, workers) == (3, 1, 2, 2)
until = time.monotonic() + 60
while not settled() and time.monotonic() < until:
    time.sleep(0.05)
print(json.dumps(session.overview().to_dict()["counts"]))""",
    "session": "session",
    "client": "client",
    "executor": "executor",
    "cluster": "session.cluster",
    "progress": """\
with session.progress():
    pathlib.Path("go").touch()
    client.gather(futures, errors="skip")""",
    "followed": """\
from ipywidgets import HTML
widget = session.cluster._widget_shown
until = time.monotonic() + 30
while "8 done" not in widget.value and time.monotonic() < until:
    time.sleep(0.05)
print(widget.value)""",
    "report": "report = session.report()\nreport",
    "logs": "print(client.get_logs(evil))",
    "closed": """\
cluster = session.cluster
session.close()
left = [t.name for t in threading.enumerate() if "overview" in t.name]
print(json.dumps([left, list(cluster.periodic_callbacks), "8 done" in widget.value]))""",
    "dir": """\
print(json.dumps(dir(scalable)))""",
}


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """The outputs of the cells, by their names."""
    directory = tmp_path_factory.mktemp("notebook")
    (directory / "scalable.yaml").write_text(MANIFEST)
    return execute(directory, CELLS)


def html_of(outputs):
    (html,) = [o.data["text/html"] for o in outputs if "text/html" in o.get("data", {})]
    return html


class _Rows(HTMLParser):
    def __init__(self):
        super().__init__()
        self.rows, self._open = [], False

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._open = True

    def handle_endtag(self, tag):
        self._open = self._open and tag not in ("td", "th")

    def handle_data(self, data):
        if self._open:
            self.rows[-1][-1] += data


def rows_of(html):
    parser = _Rows()
    parser.feed(html)
    return {row[0]: row[1:] for row in parser.rows if row}


def test_a_session_shows_its_pools_before_it_starts(notebook):
    html = html_of(notebook["made"])
    assert "not running" in html
    assert rows_of(html)["crops"] == ["1 to 3", "1", "200M", "0", "grow"]


def test_a_plan_is_shown_with_counts_front_and_reasons(notebook):
    html = html_of(notebook["plan"])
    text = said(notebook["printed"])
    assert rows_of(html)["crops"][0] == re.search(r"(?m)^ +crops +(\d)", text)[1]
    assert rows_of(html)["grow"] == ["crops", "40", "30.0 s", rows_of(html)["grow"][3], "manifest"]
    assert "Choices of time and cost" in html
    reasons = re.findall(r"(?m)^  - (.{20})", text)
    assert reasons
    for reason in reasons:
        assert f"<bdi>{reason}".replace("'", "&#39;") in html


def test_printing_a_plan_is_what_the_command_prints(notebook, tmp_path, monkeypatch, capsys):
    from scalable.cli.main import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "scalable.yaml").write_text(MANIFEST)
    assert main(["plan", "--target", "local", "--objective", "balance"]) == 0
    assert said(notebook["printed"]) == capsys.readouterr().out


def test_short_forms_are_short(notebook):
    session, plan = said(notebook["short"]).splitlines()
    assert session == "<ScalableSession 'harvest' on 'local': not running>"
    assert plan.startswith("<Plan for 'local': crops ")
    assert len(plan) < 200


def test_everything_shows_the_numbers_of_the_model(notebook):
    counts = json.loads(said(notebook["started"]).splitlines()[-1])
    assert counts == {
        "running": 2,
        "queued": 3,
        "blocked": 0,
        "done": 3,
        "failed": 1,
        "cancelled": 0,
        "cached": 0,
    }
    for name in ("session", "client", "cluster", "executor"):
        html = html_of(notebook[name])
        rows = rows_of(html)
        assert "2 running, 3 queued, 3 done, 1 failed" in html, name
        assert rows["grow"][0] == "crops"
        assert rows["grow"][2:6] == ["2", "3", "2", "1"], name
        assert rows["crops"][:2] == ["2", "2"], name
    assert "maps" not in rows_of(html_of(notebook["executor"]))


def test_names_are_text(notebook):
    for name in ("session", "client", "cluster"):
        html = html_of(notebook[name])
        assert "<script" not in html
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


def test_nothing_comes_from_elsewhere_and_both_themes_have_colours(notebook):
    for outputs in notebook.values():
        for output in outputs:
            html = output.get("data", {}).get("text/html", "")
            assert not re.search(r"""(?:src|href)=["'](?!#)|url\(|@import""", html)
            if html:
                assert "prefers-color-scheme:dark" in html
                is_page = html.startswith("<iframe ")  # which the notebook's theme does not reach
                assert is_page or 'data-jp-theme-light="false"' in html


def test_a_cluster_is_a_widget_that_follows_it(notebook):
    (shown,) = notebook["cluster"]
    assert "application/vnd.jupyter.widget-view+json" in shown.data
    assert len(shown.data["text/plain"]) < 200
    assert "8 done, 1 failed" in said(notebook["followed"])


def test_progress_is_kept_up_to_date_in_place(notebook):
    html = html_of(notebook["progress"])
    assert "Progress of" in html
    assert "8 done, 1 failed" in html
    assert len([o for o in notebook["progress"] if "data" in o]) == 1


def test_the_report_is_returned_and_shown(notebook):
    html = html_of(notebook["report"])
    assert 'sandbox="allow-scripts"' in html
    page = unescape(html)
    assert "<title>Run run-" in page
    assert '"8 done"' in page


def test_what_a_task_prints_is_shown_and_kept(notebook):
    outputs = "".join(said(outputs) for name, outputs in notebook.items() if name != "logs")
    assert "[maps] a sown field" in outputs
    assert "a sown field" in said(notebook["logs"])


def test_the_end_leaves_no_thread_and_no_callback(notebook):
    assert json.loads(said(notebook["closed"]).splitlines()[-1])[:2] == [[], []]


def test_dir_lists_public_names(notebook):
    names = json.loads(said(notebook["dir"]))
    assert [name for name in names if name.startswith("_")] == ["__version__"]
    assert {"ScalableSession", "connect", "list_clusters"} <= {*names}
