"""Clusters in the sidebar of a real JupyterLab, in a real browser."""

import json
import re
import shutil
import subprocess
import sys
from contextlib import suppress

import pytest
from jupyter_lab import SIDEBAR, JupyterLab, needed

from detached import nothing_is_left, processes_of
from scalable.clusters.discovery import status
from scalable.clusters.ending import end
from scalable.records import find
from scalable.watch.lab import show

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
    pytest.mark.skipif(bool(needed()), reason=needed() or "nothing is missing"),
]

MANIFEST = """\
version: 1
project: {name: climate}
targets: {local: {provider: local, processes: true, max_workers: 3}}
components: {fit: {cpus: 1, memory: 400M, workers: 1}}
"""
FACTORY = """\
labextension:
  factory:
    module: scalable.watch.lab
    class: lab_cluster
    args: []
    kwargs: {manifest: %s, target: local, name: sidebar}
"""
ROW = ".dask-ClusterListingItem"
#: The second cell of the notebook; the code of the sidebar goes into the first.
CELL = "print('the sum is', client.submit(sum, [40, 2]).result(timeout=60))"
NOTEBOOK = {
    "cells": [
        {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": s}
        for s in ("", CELL)
    ],
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python", "language": "python"}},
    "nbformat": 4,
    "nbformat_minor": 4,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A user's directory and state; whatever is left of clusters is ended behind the tests."""
    place = tmp_path_factory.mktemp("lab")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(place / "state"))
        patch.setenv("SCALABLE_RUNS_DIR", str(place / "runs"))
        (place / "scalable.yaml").write_text(MANIFEST)
        yield place
        for process in processes_of(place):
            process.kill()


def scalable(place, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "scalable", *words],
        cwd=place,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def up(place, name):
    started = scalable(place, "up", "--name", name, "--dashboard", ":0", "--yes")
    text, _ = started.communicate(timeout=150)
    assert started.returncode == 0, text
    return find(name).id


@pytest.fixture(scope="module")
def lab(place):
    """JupyterLab behind a prefix, as of a hub, whose NEW starts a cluster of the manifest."""
    (place / "dask").mkdir()
    (place / "dask" / "labextension.yaml").write_text(FACTORY % (place / "scalable.yaml"))
    with JupyterLab(place, base_url="/user/me/") as lab:
        yield lab


@pytest.fixture(scope="module")
def page(lab):
    with playwright.sync_playwright() as library:
        browser = library.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield lab.open(browser)
        browser.close()


@pytest.fixture(scope="module")
def climate(place):
    """A cluster that was started in a shell: its id."""
    cluster_id = up(place, "climate")
    yield cluster_id
    with suppress(Exception):
        end("climate")


def listed(lab):
    code, text = lab.request("dask/clusters")
    assert code == 200, text
    return {row["name"]: row for row in json.loads(text)}


def row(page, name):
    title = page.locator(f"{ROW}-title", has_text=re.compile(f"^{re.escape(name)}$"))
    return page.locator(ROW, has=title)


def wait_for_text(page, name, text):
    row(page, name).get_by_text(text, exact=True).wait_for(timeout=60_000)


def scale(page, name, count):
    row(page, name).locator(f"{ROW}-scale").click()
    page.locator(".jp-Dialog .dask-ScalingInput").first.fill(str(count))
    page.locator(".jp-Dialog button.jp-mod-accept").click()


def test_the_story_of_a_cluster_of_the_shell(lab, page, climate, place, eventually):
    # It appears by its name, with its workers.
    wait_for_text(page, "climate", "Number of Workers: 1")
    address = find("climate").scheduler()["address"]
    wait_for_text(page, "climate", f"Scheduler Address: {address}")

    # SCALE scales the pool.
    scale(page, "climate", 2)
    eventually(lambda: status("climate").pools["fit"].running == 2, "two workers run")
    assert status("climate").pools["fit"].wanted == 2
    wait_for_text(page, "climate", "Number of Workers: 2")

    # More than the target allows is refused, with the way out.
    scale(page, "climate", 9)
    dialog = page.locator(".jp-Dialog", has_text="exceeds max_workers 3")
    dialog.wait_for(timeout=60_000)
    assert "scalable scale climate fit=9 --yes" in dialog.inner_text()
    dialog.locator("button").last.click()

    # Its page opens, and comes from its scheduler; no URL has the token.
    token = find("climate").token()
    asked = []
    page.context.on("request", lambda request: asked.append(request.url))
    with page.context.expect_page() as opened:
        row(page, "climate").locator("a").click()
    live = opened.value
    live.wait_for_selector("#pools tbody tr", timeout=60_000)
    assert live.inner_text("#pools tbody tr td:first-child") == "fit"
    assert live.url == f"{lab.url}dask/dashboard/{climate}/scalable/"
    live.close()

    # Dask's plots open as panes.
    page.locator(".dask-DashboardListing-item button", has_text="Workers Memory").first.click()
    frame = page.frame_locator("iframe[src*='individual-workers-memory']")
    frame.locator("canvas").first.wait_for(state="attached", timeout=60_000)

    # A notebook connects by the code of the sidebar.
    contents = {"type": "notebook", "format": "json", "content": NOTEBOOK}
    assert lab.request("api/contents/n.ipynb", "PUT", contents)[0] == 201
    page.goto(f"{lab.url}lab/tree/n.ipynb")
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=90_000)
    # Before, JupyterLab would ask for a kernel.
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=90_000)
    if not page.locator(SIDEBAR).is_visible():
        page.click('[data-id="dask-dashboard-launcher"]')
    row(page, "climate").locator(f"{ROW}-code").click()
    page.locator(".jp-Notebook .jp-Cell", has_text=f'Client("{address}")').wait_for()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    page.locator(".jp-OutputArea", has_text="the sum is 42").first.wait_for(timeout=90_000)
    assert [url for url in asked if token in url] == []
    assert token not in lab.log.read_text()

    # The button ends nothing that was started elsewhere.
    row(page, "climate").locator(f"{ROW}-stop").click()
    row(page, "climate").wait_for(state="detached", timeout=60_000)
    assert status("climate").state == "running"
    show("climate")
    row(page, "climate").wait_for(timeout=60_000)

    # It goes when it is down.
    down = scalable(place, "down", "climate", "--yes")
    text, _ = down.communicate(timeout=120)
    assert down.returncode == 0, text
    row(page, "climate").wait_for(state="detached", timeout=60_000)
    nothing_is_left(place)


def test_a_cluster_of_the_sidebar_is_ended_there(lab, page, place, eventually):
    page.locator(f"{SIDEBAR} .jp-Toolbar").get_by_text("NEW").click()
    wait_for_text(page, "sidebar", "Number of Workers: 1")
    eventually(lambda: status("sidebar").state == "running")
    assert [name for name in listed(lab) if name != "sidebar"] == []
    live = lab.request(f"dask/dashboard/{find('sidebar').id}/scalable/overview.json")
    assert ["Workers", "1"] in json.loads(live[1])["page"]["progress"]["facts"]
    row(page, "sidebar").locator(f"{ROW}-stop").click()
    row(page, "sidebar").wait_for(state="detached", timeout=90_000)
    eventually(lambda: not processes_of(place), "its processes are gone")
    nothing_is_left(place)
