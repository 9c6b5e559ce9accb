"""Two browsers that look at a busy cluster for long do not grow; the scheduler is measured.

``SCALABLE_PAGE_MINUTES=60`` makes it last an hour.
"""

import os
import time
from pathlib import Path

import pytest
from made_pages import chromium, page_in

import scalable
from scalable.clusters.creation import DetachOptions
from scalable.clusters.ending import end
from scalable.clusters.services import wait_until_ready
from scalable.watch.pages import page_link

MINUTES = float(os.environ.get("SCALABLE_PAGE_MINUTES", "4"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(60 * MINUTES + 600)]
pytest.importorskip("bokeh")

MANIFEST = """\
version: 1
project: {name: tests}
targets: {local: {provider: local, max_workers: 1, processes: true, dashboard_address: "0"}}
components: {small: {cpus: 1, memory: 500M}}
"""


def work(number):
    if number % 50 == 0:
        raise ValueError(f"no {number}")
    return number


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SCALABLE_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scalable.yaml").write_text(MANIFEST)
    session = scalable.ScalableSession.from_yaml()
    directory = session.create(session.plan(), DetachOptions(name="long"))
    wait_until_ready(directory, timeout_s=120)
    yield directory
    end("long")


def resident(pid):
    """Return the resident memory of a process in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def size(page):
    tools = page.context.new_cdp_session(page)
    for _ in range(3):
        tools.send("HeapProfiler.collectGarbage")
    heap = tools.send("Runtime.getHeapUsage")["usedSize"]
    nodes = tools.send("Memory.getDOMCounters")["nodes"]
    tools.detach()
    return heap, nodes


def test_two_browsers_do_not_grow(directory):
    known = directory.scheduler()
    link = page_link(known["dashboard"])
    rows, calls, number = [], 0, 0
    began = looked = time.monotonic()
    with (
        scalable.connect("long") as client,
        chromium() as browser,
        page_in(browser, link) as one,
        page_in(browser, link) as two,
    ):
        while time.monotonic() - began < 60 * MINUTES:
            number += 1
            futures = client.map(work, range(300), tag="small", pure=False, task=f"n{number % 70}")
            client.wait_for_workers(1, timeout=120)
            errors = [future.exception(timeout=300) for future in futures]
            calls += len(errors)
            del futures
            for page in (one, two):
                page.wait_for_timeout(300)
            if time.monotonic() - looked > 60 * MINUTES / 12:
                looked = time.monotonic()
                sizes = [each for page in (one, two) for each in size(page)]
                rows.append((looked - began, calls, resident(known["pid"]), *sizes))
                seconds, count, memory, *of_pages = rows[-1]
                print(
                    f"{seconds:.0f} s, {count} calls, scheduler {memory / 1e6:.0f} MB, {of_pages}"
                )
    middle, last = rows[len(rows) // 2], rows[-1]
    for column in (3, 5):
        assert last[column] < 1.3 * middle[column] + 3e6, rows
        assert last[column + 1] < 3 * middle[column + 1], rows
