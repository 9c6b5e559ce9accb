"""The live page of a cluster in a real browser."""

import json
import shutil
import time
import urllib.error
import urllib.request

import pytest
from distributed import Event, get_worker

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


def broken(x):
    raise KeyError(x)


def held(name, given):
    get_worker()
    Event(name).wait(timeout="120s")


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "scalable.yaml"
    path.write_text(MANIFEST)
    session = ScalableSession.from_yaml(path, "local")
    with session.start() as client:
        done = [client.submit(fit, n, tag="small", pure=False) for n in range(12)]
        failed = []
        for number in range(3):  # one after the other: the page shows the newest first
            failed.append(client.submit(fail, number, tag="small", pure=False))
            failed[-1].exception()
        with client.pool("small") as pool:
            strange = [pool.submit(hostile, 1)]
            assert pool.submit(broken, "<b>of an executor</b>").exception() is not None
            client.gather(done)
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
    context = browser.new_context()
    page = context.new_page()
    page.errors = []
    page.on("console", lambda m: page.errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("dialog", lambda dialog: page.errors.append(f"dialog: {dialog.message}"))
    yield page
    context.close()


def count(page, state):
    """Return the number of tasks in a state; states without tasks are not shown."""
    shown = page.locator(f'[data-state="{state}"]')
    return int(shown.get_attribute("data-count")) if shown.count() else 0


def of_scheduler(session):
    async def ask():
        overviews = session.cluster.manager.controller.overviews
        overviews._made_at = 0.0
        return overviews.answer()["overview"]

    return session.cluster.sync(ask)


def test_numbers_are_those_of_the_scheduler(session, page, link):
    page.goto(link)
    page.wait_for_selector("#pools tbody tr", timeout=60_000)
    deadline = time.monotonic() + 60
    while True:
        calls = of_scheduler(session)["counts"]
        shown = {state: count(page, state) for state in ("done", "failed", "queued")}
        told = {state: calls[state] for state in shown}
        if shown == told == {"done": 13, "failed": 4, "queued": 0}:
            break
        assert time.monotonic() < deadline, (shown, calls)
        page.wait_for_timeout(300)
    assert page.inner_text("#percent") == "100 %"
    assert page.inner_text("#count") == "17 of 17 tasks"
    assert page.inner_text("#pools tbody tr td:first-child") == "small"
    (summary,) = page.locator("#failures summary", has_text="ValueError").all_inner_texts()
    assert summary.startswith("3 x ValueError: <script>alert(1)</script> ")
    assert page.errors == []


def opened(page, link, words):
    """Open the page, and from there the first call of a group of failures."""
    page.goto(link)
    group = page.locator("#failures details", has_text=words)
    group.locator("summary").click()
    group.locator(".calls a").first.click()
    page.wait_for_selector("#call dl", timeout=60_000)
    return page.inner_text("#call-part")


def test_a_failed_call_has_a_page_with_its_own_address(page, link, browser):
    told = opened(page, link, "ValueError")
    assert "#call/fail-" in page.url
    for words in ("ValueError: <script>alert(1)</script>", "raise ValueError", "in fail", "(2)"):
        assert words in told
    again = page.context.new_page()  # the address alone leads there
    again.goto(page.url)
    again.wait_for_selector("#call dl", timeout=60_000)
    assert "raise ValueError" in again.inner_text("#call-part")
    assert not again.is_visible("#pools-part")
    again.click("text=Back to the overview")
    again.wait_for_selector("#pools-part", state="visible", timeout=60_000)
    again.wait_for_selector("#call-part", state="hidden", timeout=60_000)
    again.close()
    assert page.errors == []


def test_a_failed_call_of_an_executor_has_a_page(page, link):
    told = opened(page, link, "KeyError")
    assert page.url.endswith("/0")
    for words in (
        "('<b>of an executor</b>')",
        "KeyError",
        "raise KeyError",
        "Position in the bundle",
    ):
        assert words in told
    assert page.errors == []


def chosen_bar(page):
    """Return the description of the latest bar of the timeline."""
    page.focus("#timeline")
    page.keyboard.press("ArrowRight")
    return page.inner_text("#timeline-chosen")


def test_a_running_call_is_opened_by_keyboard_and_followed_to_its_end(session, page, link):
    client = session.client
    future = client.submit(held, "page", {"region": "<i>north</i>"}, tag="small", pure=False)
    try:
        page.goto(link)
        page.wait_for_selector("#running a", timeout=60_000)
        looked = page.evaluate("() => Number(document.body.dataset.looked)")
        chosen = chosen_bar(page)
        assert chosen.startswith("held on small-")
        assert ", running for " in chosen
        page.focus("#running a")
        page.wait_for_timeout(2500)  # it is drawn anew meanwhile, and keeps the focus
        assert page.evaluate("() => document.activeElement.matches('#running a')")
        newer = "looked => Number(document.body.dataset.looked) > looked"
        page.wait_for_function(newer, arg=looked, timeout=60_000)
        grown = chosen_bar(page)
        assert ", running for " in grown
        assert grown != chosen
        assert page.inner_text("#legend").split().count("running") == 1
        page.focus("#running a")
        page.keyboard.press("Enter")
        page.wait_for_selector("#call dl", timeout=60_000)
        assert page.inner_text("#call-state") == "running"
        assert "('page', {'region': '<i>north</i>'})" in page.inner_text("#call")
    finally:
        Event("page", client=client).set()
    future.result()
    page.wait_for_selector("#call-state:has-text('done')", timeout=60_000)
    assert page.errors == []


def test_calls_that_ended_are_reached_from_the_timeline_by_mouse_and_keyboard(page, link):
    page.goto(link)
    page.wait_for_selector("#running-pieces .calls a", state="attached", timeout=60_000)
    page.focus("#timeline")
    for key in ("ArrowLeft", "ArrowLeft", "ArrowUp", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    chosen = page.inner_text("#timeline-chosen")
    assert " on small-" in chosen
    page.keyboard.press("Enter")
    page.wait_for_selector("#call dl", timeout=60_000)
    assert "#call/" in page.url
    page.go_back()
    page.wait_for_selector("#timeline", timeout=60_000)
    page.locator("#timeline").scroll_into_view_if_needed()
    box = page.locator("#timeline").bounding_box()
    right = box["x"] + box["width"]
    for x in range(1, int(box["width"])):
        page.mouse.move(right - x, box["y"] + 24)
        if page.get_attribute("#timeline", "title"):
            break
    page.mouse.down()
    page.mouse.up()
    page.wait_for_selector("#call dl", timeout=60_000)
    assert page.errors == []


@pytest.mark.parametrize("address", ["#call/", "#call/%", "#call/a/b", "#call/x/99999999999", "#x"])
def test_an_address_that_names_no_call_shows_the_overview(address, page, link):
    page.goto(link)
    page.goto(page.url.partition("#")[0] + address)
    page.wait_for_selector("#pools tbody tr", timeout=60_000)
    page.wait_for_selector("#call-part", state="hidden", timeout=60_000)
    assert page.errors == []


def test_a_call_that_nobody_knows_is_told(page, link):
    page.goto(link)
    page.goto(page.url.partition("#")[0] + "#call/" + "%3Cb%3E" + "x" * 5000 + "%ED%A0%80/3")
    page.goto(page.url.partition("#")[0] + "#call/%3Cb%3Enone/3")
    page.wait_for_selector("#call-state:has-text('unknown')", timeout=60_000)
    assert "has no record of this task" in page.inner_text("#call")
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
    for _ in range(120):
        page.keyboard.press("Tab")
        focused = "() => document.activeElement.id || document.activeElement.tagName"
        reached.add(page.evaluate(focused))
    assert {"A", "tasks-filter", "window", "zoom", "timeline", "SUMMARY", "BUTTON"} <= reached


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
        assert set(json.load(answer)) == {"page", "events", "colours", "pages_of_dask"}
