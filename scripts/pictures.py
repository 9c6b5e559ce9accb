#!/usr/bin/env python3
"""Make the pictures of docs/seeing.md from one real run.

They show a plan and a run in a terminal, the dashboard, ``scalable top``, a notebook in JupyterLab,
and the report. The extras ``dashboard``, ``tui`` and ``jupyter``, Playwright, Pillow and Chromium
are needed::

    python scripts/pictures.py            # into docs/pictures
    python scripts/pictures.py DIRECTORY
"""

import asyncio
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "places"))

from jupyter_lab import JupyterLab  # noqa: E402

MANIFEST = """\
version: 1
project: {name: climate}
targets:
  local: {provider: local, processes: true, max_workers: 8, prices: {model: 0.12, statistics: 0.40}}
components:
  model: {cpus: 1, memory: 400M, workers: 3}
  statistics: {cpus: 1, memory: 400M, workers: 2}
tasks:
  prepare: {component: model, count: 90, duration: 0.5s}
  simulate: {component: model, count: 90, duration: 1.6s}
  summarise: {component: statistics, count: 15, duration: 0.5s}
"""
#: A workflow with fewer tasks, for the picture of a terminal.
WORKFLOW = """\
import time

from scalable import ScalableSession


def prepare(year):
    time.sleep(0.4)
    return year


def simulate(year):
    time.sleep(1.5)
    return year


def summarise(years):
    time.sleep(0.5)
    return len(years)


if __name__ == "__main__":
    with ScalableSession.from_yaml() as client:
        prepared = client.map(prepare, range(18), tag="model", pure=False)
        years = client.map(simulate, prepared, tag="model", pure=False)
        print("years:", client.submit(summarise, years, tag="statistics", pure=False).result())
"""
COUNTS = {"count: 90": "count: 18", "count: 15": "count: 1"}
NOTEBOOK = """\
from scalable import ScalableSession

session = ScalableSession.attach("climate")
session"""
NAME = "climate"
#: Width of a picture in pixels, at most; they are drawn at twice the size and made smaller.
WIDTH, COLOURS = 1200, 256


def prepare(year):
    """Stand for a step of a model that takes a moment."""
    time.sleep(0.3 + year % 5 / 10)
    return year


def simulate(year):
    """Stand for a model, which fails for some years."""
    time.sleep(1.0 + year % 7 / 5)
    if year % 17 == 3:
        raise ValueError(f"no rainfall for {1990 + year}")
    return year


def summarise(years):
    """Stand for statistics over results."""
    time.sleep(0.5)
    return len(years)


def begin(client):
    """Submit a workflow of three tasks; some of its calls fail."""
    prepared = client.map(prepare, range(90), tag="model", task="prepare", pure=False)
    simulated = client.map(simulate, prepared, tag="model", task="simulate", pure=False)
    groups = [prepared[first : first + 6] for first in range(0, 90, 6)]
    return simulated + [
        client.submit(summarise, group, tag="statistics", task="summarise", pure=False)
        for group in groups
    ]


def save(data, path):
    """Write a picture with few colours, no wider than the page of a document."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    if picture.width > WIDTH:
        size = WIDTH, round(picture.height * WIDTH / picture.width)
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    few = picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    print(f"{path.name}: {picture.width} x {picture.height}, {path.stat().st_size} bytes")


def of_page(browser, link, scheme, height):
    """Return a picture of a page in the light or the dark theme."""
    context = browser.new_context(
        color_scheme=scheme, device_scale_factor=2, viewport={"width": 1280, "height": height}
    )
    page = context.new_page()
    page.goto(link)
    page.wait_for_selector("#pools tbody tr", timeout=60_000)
    page.wait_for_timeout(2_500)
    data = page.screenshot()
    context.close()
    return data


def of_html(browser, html, width=900):
    """Return a picture of a piece of HTML, such as a notebook shows it, or of an SVG."""
    context = browser.new_context(
        device_scale_factor=2, viewport={"width": width, "height": 300}, color_scheme="light"
    )
    page = context.new_page()
    page.set_content(f'<body style="margin:12px;font-family:sans-serif">{html}</body>')
    page.wait_for_timeout(500)
    data = page.screenshot(full_page=True)
    context.close()
    return data


def of_top(name):
    """Return ``scalable top`` at 100 by 30 characters as SVG."""
    from scalable.watch.top.app import TopApp

    async def shown():
        app = TopApp(name, every_s=1.0)
        async with app.run_test(size=(100, 30)) as pilot:
            for _ in range(12):
                await pilot.pause(0.2)
            return app.export_screenshot(title=f"scalable top {name}")

    with ThreadPoolExecutor(1) as threads:  # Playwright has an event loop in this one
        return threads.submit(asyncio.run, shown()).result()


def of_lab(browser, home):
    """Return a picture of a JupyterLab whose sidebar and notebook show the cluster."""
    cell = {"cell_type": "code", "source": NOTEBOOK, "outputs": [], "execution_count": None}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = {"nbformat": 4, "nbformat_minor": 5, "cells": [cell | {"id": "one", "metadata": {}}]}
    with JupyterLab(home, XDG_STATE_HOME=os.environ["XDG_STATE_HOME"]) as lab:
        file = lab.work / "climate.ipynb"
        file.write_text(json.dumps(book | {"metadata": {"kernelspec": kernel}}))
        page = lab.open(browser, "lab/tree/climate.ipynb")
        page.wait_for_selector(".dask-ClusterListingItem", timeout=60_000)
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=90_000)
        # Before, JupyterLab would ask for a kernel.
        page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=90_000)
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_text("Run All Cells", exact=True).click()
        page.wait_for_selector(".jp-OutputArea-output .sn", timeout=120_000)
        page.wait_for_timeout(1_500)
        # Below a long list of Dask's plots, once the extension has connected to the dashboard.
        page.locator(".dask-ClusterListingItem").scroll_into_view_if_needed()
        data = page.screenshot()
        page.context.close()
    return data


def of_terminal(commands, title):
    """Return commands and what they print as an SVG of a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    for words, printed in commands:
        console.print(Text(f"$ scalable {words}", style="bold green"))
        console.print(Text.from_ansi(printed.rstrip("\n")))
        console.print()
    svg = console.export_svg(title=title)
    # A document loads no font from elsewhere.
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)


@contextmanager
def chromium():
    """Run a browser without a window."""
    with sync_playwright() as library:
        path = shutil.which("chromium")
        browser = library.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def scalable_in(place, *words):
    """Run a verb, and return what it prints."""
    command = [sys.executable, "-m", "scalable", *words]
    done = subprocess.run(command, cwd=place, check=True, timeout=150, stdout=subprocess.PIPE)
    return done.stdout.decode()


def pictures(directory, place):
    """Run a cluster, and write the pictures of what it does."""
    from scalable import ScalableSession
    from scalable.runs.reading import read_run
    from scalable.runs.report.run_report import report_on

    small = MANIFEST
    for count, less in COUNTS.items():
        small = small.replace(count, less)
    (place / "scalable.yaml").write_text(small)
    (place / "workflow.py").write_text(WORKFLOW)
    commands = ("plan --target local", "run --target local")
    printed = [(words, scalable_in(place, *words.split())) for words in commands]
    (directory / "terminal.svg").write_text(of_terminal(printed, "climate"))
    (place / "scalable.yaml").write_text(MANIFEST)
    scalable_in(place, "up", "--target", "local", "--name", NAME, "--dashboard", ":0", "--yes")
    try:
        told = scalable_in(place, "dashboard", NAME).split()
        link = next(word for word in told if word.startswith("http"))
        session = ScalableSession.attach(NAME)
        with session as client, chromium() as browser:
            futures = begin(client)
            time.sleep(12.0)
            run = session.overview().cluster["run"]
            save(of_html(browser, of_top(NAME)), directory / "top.png")
            save(of_page(browser, link, "light", 1350), directory / "page.png")
            save(of_page(browser, link, "dark", 1350), directory / "page-dark.png")
            save(of_html(browser, session._repr_html_()), directory / "notebook.png")
            save(of_lab(browser, place / "home"), directory / "jupyterlab.png")
            for future in futures:
                future.exception()
    finally:
        scalable_in(place, "down", NAME, "--yes")
    file = report_on(read_run(run)).save(place / "report.html")
    with chromium() as browser:
        save(of_page(browser, file.as_uri(), "light", 1800), directory / "report.png")


def main():
    """Make the pictures."""
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs" / "pictures").absolute()
    directory.mkdir(parents=True, exist_ok=True)
    # The pictures show this path: it has a name that says nothing of the machine.
    place = Path(tempfile.gettempdir()) / NAME
    place.mkdir(mode=0o700)
    try:
        os.environ["XDG_STATE_HOME"] = f"{place}/state"
        os.environ["SCALABLE_RUNS_DIR"] = f"{place}/runs"
        pictures(directory, place)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
