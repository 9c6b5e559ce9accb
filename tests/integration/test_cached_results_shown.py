"""Cached results as all places tell them: overview, terminal, record, report, notebook."""

import json
import textwrap
from types import SimpleNamespace

import pytest

from scalable import ScalableSession
from scalable.runs.reading import read_run
from scalable.runs.report.run_report import report_on
from scalable.views.cluster_text import cache_in_words
from verbs import program

MANIFEST = """\
version: 1
project: {name: remembers, local_cache: kept}
targets:
  local: {provider: local, processes: false, dashboard_address: "0"}
components:
  model: {cpus: 1, workers: 2}
tasks:
  fit: {component: model, cache: true}
  wide: {component: model, cache: true}
  plain: {component: model}
"""
MODULE = """
import time

def fit(x, factor=2):
    time.sleep(0.05)
    return x * factor

def wide(x):
    return bytes(200_000) + bytes([x])

def plain(x):
    return x
"""


def session_of(place):
    return ScalableSession.from_yaml(place / "scalable.yaml", "local")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("remembers")
    (place / "scalable.yaml").write_text(MANIFEST)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(place / "state"))
        patch.setenv("SCALABLE_RUNS_DIR", str(place / "runs"))
        patch.chdir(place)
        yield place


@pytest.fixture(scope="module")
def seen(place, eventually):
    """Two sessions: all is computed in the first; the second finds some of it."""
    calls = SimpleNamespace(**compiled(MODULE))
    with session_of(place) as client:
        client.gather(client.map(calls.fit, range(4), task="fit"))
        client.submit(calls.wide, 1, task="wide").result()
    session = session_of(place)
    told = SimpleNamespace(first=read_run(newest(place)))
    changed = SimpleNamespace(**compiled(MODULE.replace("time.sleep(0.05)", "time.sleep(0.01)")))
    with session as client:
        found = client.map(calls.fit, range(3), task="fit")
        assert client.gather(found) == [0, 2, 4]
        assert len(client.submit(calls.wide, 1, task="wide").result()) == 200_001
        assert client.submit(calls.fit, 9, task="fit").result() == 18
        # The known result of a call goes to the worker of a call that needs it.
        assert client.submit(calls.plain, found[2], task="plain").result() == 4
        with client.pool("model", task="fit") as pool:
            assert list(pool.map(calls.fit, [0, 1, 11])) == [0, 2, 22]
        # Later than the others, which are compared with the newest result.
        assert client.submit(changed.fit, 2, task="fit").result() == 4
        eventually(lambda: session.overview().counts.cached == 6)
        eventually(lambda: not session.overview().counts.queued)
        told.overview = session.overview()
        name = session.run_path.name
        told.top = json.loads(program("top", name, "--once", "--format", "json", here=True).stdout)
        told.terminal = program("top", name, "--once", here=True).stdout
        told.notebook = session._repr_html_()
        told.progress = str(session.progress())
    told.record = read_run(session.run_path)
    told.report = report_on(told.record)
    return told


def compiled(source):
    """Return the functions of a module, which have its code as their own."""
    import importlib.util
    import sys
    import tempfile
    from pathlib import Path

    path = Path(tempfile.mkdtemp()) / "models.py"
    path.write_text(textwrap.dedent(source))
    spec = importlib.util.spec_from_file_location("models", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["models"] = module
    spec.loader.exec_module(module)
    return vars(module)


def newest(place):
    return max((place / "runs").iterdir(), key=lambda path: path.stat().st_mtime)


def test_hits_of_client_and_workers_are_counted_as_cached_and_nowhere_else(seen):
    counts = {task.name: task.counts for task in seen.overview.tasks}
    assert (counts["fit"].cached, counts["fit"].done) == (5, 3)
    assert (counts["wide"].cached, counts["wide"].done) == (1, 0)
    assert (counts["plain"].cached, counts["plain"].done) == (0, 1)
    assert seen.overview.counts.total == 10
    measured = {task.name: task.sums["duration_s"].tasks for task in seen.overview.tasks}
    assert measured == {"fit": 3, "wide": 0, "plain": 1}  # no hit tells how long calls run


def test_misses_have_their_reasons(seen):
    told = [(each.task, each.count, each.reason) for each in seen.overview.remembered.reasons]
    assert told == [("fit", 2, "argument x changed"), ("fit", 1, "the function models.fit changed")]
    changed = {each.reason: each.changed for each in seen.overview.remembered.reasons}
    assert changed["the function models.fit changed"] == ("code:models.fit",)
    # Results that were stored beside a call are no earlier ones.
    first = {row["reason"] for row in seen.first.remembered if row["task_name"] == "fit"}
    assert first == {"no result of models.fit is stored"}


def test_all_places_tell_the_same_numbers(seen):
    totals, summary = seen.overview.remembered, seen.report.summary
    assert (totals.found, totals.missed) == (6, 3)
    assert totals.saved_s >= 5 * 0.05  # the five calls of fit slept
    assert seen.top["remembered"] == json.loads(json.dumps(seen.overview.to_dict()["remembered"]))
    assert summary.remembered.found == totals.found
    assert summary.remembered.reasons == totals.reasons
    assert summary.remembered.saved_s == pytest.approx(totals.saved_s, abs=1e-5)
    assert summary.tasks == {"succeeded": 4, "found": 6}
    for task in seen.overview.tasks:
        told = summary.task_names[task.name]
        assert told.task.counts == task.counts
    line = cache_in_words(totals)
    assert line.startswith("6 hits (")
    assert line.endswith(" saved), 3 ran")
    for text in (seen.terminal, seen.notebook, seen.progress):
        assert line in text
    assert "4 done, 6 cached" in seen.terminal


def test_the_report_has_a_section_with_the_reasons(seen):
    text, html = str(seen.report), seen.report.to_html()
    line = cache_in_words(seen.overview.remembered)
    assert f"Cached results: {line}\n  hits: fit 5, wide 1\n" in text
    (nearest,) = {each.nearest for each in seen.overview.remembered.reasons if each.count == 1}
    assert f"  ran: 1 x fit: the function models.fit changed (nearest: {nearest[:12]})" in text
    assert "  ran: 2 x fit: argument x changed (nearest: " in text
    for told in (line, "argument x changed", "the function models.fit changed", nearest[:12]):
        assert told in html
    found = seen.report.to_dict()["report"]["remembered"]
    assert (found["found"], found["missed"], len(found["reasons"])) == (6, 3, 2)


def test_the_record_has_a_row_for_each_outcome_of_a_worker_and_few_for_hits_of_clients(seen):
    clients = [row for row in seen.record.remembered if row["task_id"] is None]
    assert sum(row["count"] for row in clients) == 3
    assert len(clients) <= 2
    assert {row["tag"] for row in seen.record.remembered} == {"model"}
    assert [r["task_name"] for r in seen.record.tasks if r["state"] == "found"] == ["wide"]


def test_hits_of_a_session_that_ends_at_once_are_recorded(place, seen):
    functions = SimpleNamespace(**compiled(MODULE))
    session = session_of(place)
    with session as client:
        assert client.gather(client.map(functions.fit, range(4), task="fit")) == [0, 2, 4, 6]
    summary = session.report().summary
    assert (summary.remembered.found, summary.tasks) == (4, {"found": 4})
    assert "Cached results: 4 hits (" in str(session.report())
