"""The live page of a cluster in a real browser."""

import json
import shutil
import time
import urllib.error
import urllib.request

import pytest

from scalable import ScalableSession

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")

MANIFEST = """\
version: 1
project: {name: tests}
targets: {local: {provider: local, max_workers: 2, processes: false, dashboard_address: "0"}}
components: {small: {cpus: 1, memory: 300M}}
"""
HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\u202e" + "x" * 10_000


def fit(x):
    return x


def hostile(x):
    return x


# The name of a task is that of its function.
hostile.__name__ = hostile.__qualname__ = HOSTILE


def fail(x):
    raise ValueError(f"<script>alert(1)</script> {x}")


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "scalable.yaml"
    path.write_text(MANIFEST)
    session = ScalableSession.from_yaml(path, "local")
    with session.start() as client:
        done = [client.submit(fit, n, tag="small", pure=False) for n in range(12)]
        failed = [client.submit(fail, n, tag="small", pure=False) for n in range(3)]
        with client.pool("small") as pool:
            strange = [pool.submit(hostile, 1)]
            client.gather(done)
            [future.exception() for future in failed]
            [future.result() for future in strange]
        yield session
        del done, failed


@pytest.fixture(scope="module")
def link(session):
    return session.cluster.dashboard_link.replace("/status?", "/scalable/?")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as library:
        browser = library.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    page = browser.new_page()
    page.errors = []
    page.on("console", lambda m: page.errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("dialog", lambda dialog: page.errors.append(f"dialog: {dialog.message}"))
    yield page
    page.close()


def fact(page, name):
    return page.inner_text(f'[data-fact="{name}"]')


def of_scheduler(session):
    async def ask():
        overviews = session.cluster.controller.overviews
        overviews._made_at = 0.0
        return overviews.answer()["overview"]

    return session.cluster.sync(ask)


def test_numbers_are_those_of_the_scheduler(session, page, link):
    page.goto(link)
    page.wait_for_selector("#pools tbody tr", timeout=60_000)
    deadline = time.monotonic() + 60
    while True:
        calls = of_scheduler(session)["calls"]
        shown = {name: int(fact(page, name)) for name in ("Done", "Failed")}
        if shown == {"Done": calls["done"], "Failed": calls["failed"]} == {"Done": 13, "Failed": 3}:
            break
        assert time.monotonic() < deadline, (shown, calls)
        page.wait_for_timeout(300)
    assert page.inner_text("#pools tbody tr td:first-child") == "small"
    (summary,) = page.locator("#failures summary").all_inner_texts()
    assert summary.startswith("3 x ValueError: <script>alert(1)</script> ")
    assert page.errors == []


def test_the_page_keeps_its_token_out_of_its_address_and_needs_it(page, link, browser):
    page.goto(link)
    assert "token" not in page.url
    stranger = browser.new_context().new_page()
    answer = stranger.goto(link.partition("?")[0])
    assert answer.status == 403
    stranger.close()


def test_the_page_asks_nobody_but_its_scheduler(page, link):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(link)
    page.wait_for_selector("#pools tbody tr", timeout=60_000)
    own = link.partition("/scalable/")[0]
    assert asked
    assert [url for url in asked if not url.startswith((own, "data:"))] == []


def test_all_parts_are_reached_by_keyboard(page, link):
    page.goto(link)
    page.wait_for_selector("#failures summary", timeout=60_000)
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        focused = "() => document.activeElement.id || document.activeElement.tagName"
        reached.add(page.evaluate(focused))
    assert {"A", "filter", "window", "timeline", "SUMMARY"} <= reached


@pytest.mark.parametrize("since", ["-1", "x", "9" * 40, "1.5"])
def test_a_number_that_is_none_is_refused(since, link):
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    opener.open(link, timeout=30).close()
    url = link.partition("?")[0] + f"overview.json?since={since}"
    with pytest.raises(urllib.error.HTTPError) as refused:
        opener.open(url, timeout=30)
    assert refused.value.code == 400
    refused.value.close()
    with opener.open(url.partition("?")[0], timeout=30) as answer:
        assert set(json.load(answer)) == {"overview", "events", "colours"}
