"""The live page with overviews that are made up, and a browser that tells what it was asked for."""

import asyncio
import shutil
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from scalable.model import PoolStatus
from scalable.model.overview import (
    Overview,
    PoolOverview,
    RunningTask,
    TaskCounts,
    TaskOverview,
    TaskView,
)
from scalable.protocol.handlers import Handler
from scalable.scheduler.overviews import RecentEvents
from scalable.watch.pages import page_application

CHROMIUM = shutil.which("chromium")
TOKEN = "token-of-a-test"


class MadeUp:
    """Stands for a scheduler: answers the page with overviews that a test makes.

    Attributes
    ----------
    recent
        Events, in the rings of a real scheduler.
    overview
        Function that returns the present overview.
    """

    def __init__(self, overview=None):
        self.recent = RecentEvents()
        self.overview = overview or overview_of
        self.asked = 0
        self.handlers = {Handler.OVERVIEW.value: self._overview, Handler.CALL.value: self._call}

    async def _overview(self, since=None):
        self.asked += 1
        return {
            "overview": self.overview().to_dict(),
            "events": self.recent.since(since or 0).to_dict(),
        }

    async def _call(self, key, position=None):
        return TaskView(key, name=key, state="done", arguments=f"({key!r})").to_dict()


def overview_of(tasks=(), pools=None, started_at=1.0, running=(), **cluster):
    """Return an overview with these parts."""
    return Overview(
        at=time.time(),
        cluster={"name": "made", "state": "running", "reason": None, "started_at": started_at}
        | cluster,
        pools=pools if pools is not None else {"small": PoolOverview(PoolStatus(running=1))},
        tasks=tuple(tasks),
        running=tuple(running),
    )


def task(name, tag="small", running=0, done=1, names=1):
    """Return the row of a task name."""
    return TaskOverview(name, tag, TaskCounts(running=running, done=done), names=names)


def running_call(key, name, worker="small-1"):
    """Return a call that runs."""
    return RunningTask(key, name, "small", worker, 3.0)


@contextmanager
def served(source, port=0, path="/scalable/"):
    """Serve the page in a thread; yield its link, and stop it at the end."""
    ready, stopped = threading.Event(), []
    told = {}

    async def serve():
        server = HTTPServer(page_application(source, TOKEN))
        sockets = bind_sockets(port, "127.0.0.1")
        server.add_sockets(sockets)
        told["port"], told["loop"] = sockets[0].getsockname()[1], asyncio.get_running_loop()
        told["end"] = asyncio.Event()
        ready.set()
        await told["end"].wait()
        server.stop()
        await server.close_all_connections()
        stopped.append(True)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    try:
        yield f"http://127.0.0.1:{told['port']}{path}?token={TOKEN}"
    finally:
        told["loop"].call_soon_threadsafe(told["end"].set)
        thread.join(60)
        assert stopped


@contextmanager
def chromium():
    """Start a browser; skip where there is none."""
    library = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    with library.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--enable-precise-memory-info", "--js-flags=--expose-gc"],
        )
        yield browser
        browser.close()


@contextmanager
def page_in(browser, link, *, faultless=True, **options):
    """Open the page, and check at the end: no error, and nothing asked of anybody else."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.errors, page.asked = [], []
    page.on("console", lambda m: page.errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("dialog", lambda dialog: page.errors.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: page.asked.append(request.url))
    page.goto(link)
    page.wait_for_selector("#facts dd", timeout=60_000)
    yield page
    own = urlsplit(link).netloc
    assert page.asked
    others = [url for url in page.asked if urlsplit(url).netloc != own and url[:5] != "data:"]
    assert not others
    if faultless:
        assert page.errors == []
    context.close()
