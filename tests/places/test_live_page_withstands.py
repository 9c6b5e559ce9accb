"""The live page with many workers and names, behind a proxy, and with a scheduler that goes."""

import asyncio
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from made_pages import MadeUp, chromium, overview_of, page_in, running_call, served, task

import nasty_names
from scalable.model import PoolStatus
from scalable.model.overview import PoolOverview

PREFIX = "/hub/user/me%40site/proxy/8787"
NASTY = (*nasty_names.NASTY.values(), "\ud800lone", "javascript:alert(3)")


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


def crowd():
    """1,000 workers in 120 pools, calls of 10,000 names, and as many rows as the model shows."""
    pools = {
        f"pool-{n}": PoolOverview(PoolStatus(wanted=9, running=8, launching=1), busy=8, slots=8)
        for n in range(120)
    }
    tasks = [task(f"fit-{n}", f"pool-{n % 120}", running=n % 3, done=n) for n in range(199)]
    tasks.append(task("(9801 other names)", "pool-1", done=98_010, names=9801))
    calls = [running_call(f"fit-{n}-key", f"fit-{n}", f"pool-{n}-1") for n in range(50)]
    source = MadeUp(lambda: overview_of(tasks, pools, running=calls))
    now = time.time()
    for turn in range(20):
        for worker in range(1000):
            began = now - 500 + 20 * turn + worker % 10
            span = [f"pool-{worker % 120}-{worker}", f"fit-{worker * 10 + turn % 10}"]
            span += [began, began + 15, worker % 97 == 0, 1, f"key-{worker}-{turn}"]
            source.recent.add("spans", span)
    for number in range(500):
        details = {"task_id": f"key-{number}", "frame": f"f.py:{number} in f", "task_name": "fit"}
        row = {"failure_class": "ValueError", "message": str(number), "timestamp": now}
        source.recent.add("failures", {**row, "details": details})
        change = {"timestamp": now, "tag": "pool-1", "from": 1, "to": 2, "reason": "load"}
        source.recent.add("decisions", {**change, "source": "adaptive"})
    return source


@pytest.fixture(scope="module")
def crowded():
    with served(crowd()) as link:
        yield link


def pager(page, part):
    return page.inner_text(f"#{part}-pages .pager span")


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_1000_workers_and_10000_names_are_shown_in_pages(browser, crowded, scheme):
    with page_in(browser, crowded, color_scheme=scheme) as page:
        page.wait_for_selector("#timeline-pages .pager", timeout=60_000)
        # The ring holds the last 20,000 spans; one answer has 1,000 of them.
        # 49 of the running tasks are on other workers than these.
        assert pager(page, "timeline") == "1 to 64 of 1049"
        assert pager(page, "tasks") == "1 to 50 of 200"
        assert pager(page, "pools") == "1 to 50 of 120"
        assert pager(page, "failures") == "1 to 50 of 100"
        assert page.locator("#tasks tbody tr").count() == 50
        for _ in range(3):
            page.click("#tasks-pages button:has-text('Next')")
        assert pager(page, "tasks") == "151 to 200 of 200"
        assert "(9801 other names)" in page.inner_text("#tasks")
        assert page.is_disabled("#tasks-pages button:has-text('Next')")
        page.wait_for_timeout(2500)  # it is drawn anew, on the same page
        assert pager(page, "tasks") == "151 to 200 of 200"
        page.fill("#tasks-filter", "fit-198")
        assert page.locator("#tasks tbody tr").count() == 1
        dark = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert (dark == "rgb(255, 255, 255)") == (scheme == "light")


def test_everything_is_reached_and_used_by_keyboard_alone(browser, crowded):
    with page_in(browser, crowded) as page:
        page.wait_for_selector("#timeline-pages .pager", timeout=60_000)
        reached = []
        for _ in range(500):
            page.keyboard.press("Tab")
            told = page.evaluate(
                "() => [document.activeElement.closest('section')?.id ?? 'head',"
                " document.activeElement.textContent, getComputedStyle(document.activeElement)"
                ".outlineStyle]"
            )
            reached.append(tuple(told))
            if told[:2] == ["decisions-part", "Next"]:
                break
        assert {outline for _, _, outline in reached} == {"solid"}  # the focus is always seen
        parts = {part for part, _, _ in reached}
        assert {"pools-part", "tasks-part", "running-part", "timeline-part"} <= parts
        assert {"failures-part", "decisions-part", "head"} <= parts
        page.keyboard.press("Enter")  # "Next" of the decisions
        assert pager(page, "decisions") == "51 to 100 of 500"
        page.focus("#failures summary")
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_selector("#call dl", timeout=60_000)
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")  # back
        page.wait_for_selector("#pools", timeout=60_000)


def test_nasty_texts_change_nothing(browser):
    tasks = [task(name, tag=name) for name in NASTY]
    pools = {name: PoolOverview(PoolStatus(running=1, reason=name)) for name in NASTY}
    calls = [running_call(name, name, name) for name in NASTY]
    source = MadeUp(lambda: overview_of(tasks, pools, running=calls, name=NASTY[0]))
    now = time.time()
    for name in NASTY:
        source.recent.add("spans", [name, name, now - 5, now, True, 1, name])
        details = {"task_id": name, "task_name": name, "frame": name, "arguments": name}
        details |= {"traceback": name, "output": name, "stderr": name, "worker": name, "tag": name}
        row = {"failure_class": name, "message": name, "timestamp": now, "details": details}
        source.recent.add("failures", row)
        change = {"timestamp": now, "tag": name, "from": 1, "to": 2, "reason": name, "source": name}
        source.recent.add("decisions", change)
    with served(source) as link, page_in(browser, link) as page:
        page.wait_for_selector("#failures details", timeout=60_000)
        assert page.locator("main img, main script").count() == 0
        text = page.evaluate("() => document.body.innerText + document.title")
        assert not set("\x1b\x07\u202e\u2066") & set(text)
        assert NASTY[0] in text
        wide = page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0
        count = len(NASTY)
        assert page.locator("#running a").count() == count
        for number in range(count):
            page.goto(page.url.partition("#")[0] + "#summary")
            page.locator("#running a").nth(number).click()
            page.wait_for_selector("#call dl", timeout=60_000)
            assert page.locator("#call img, #call script").count() == 0
            assert "State" not in page.inner_text("#call-title")
            assert page.inner_text("#call-state") == "done"


def test_the_page_says_how_many_of_the_running_tasks_it_shows(browser):
    calls = [running_call(f"fit-{n}", "fit", f"small-{n}") for n in range(50)]
    source = MadeUp(lambda: overview_of([task("fit", running=120)], running=calls))
    with served(source) as link, page_in(browser, link) as page:
        page.wait_for_selector("#running tbody tr", timeout=60_000)
        assert page.inner_text("#timeline-note").startswith("50 of 120 running tasks; open a task")
        assert "50 of 120 running tasks" in page.inner_text("#running-pieces")
        calls.extend(running_call(f"fit-{n}", "fit", f"small-{n}") for n in range(50, 120))
        page.wait_for_function(
            "() => !document.getElementById('timeline-note').innerText.includes('running tasks')"
        )


# Behind a proxy -----------------------------------------------------------------------------------


@contextmanager
def proxied(link):
    """Serve a page below a path of another server; yield its link there, and what was asked."""
    web = pytest.importorskip("aiohttp.web")
    aiohttp = pytest.importorskip("aiohttp")
    target, query = link.partition("/scalable/")[::2]
    asked, ready, told = [], threading.Event(), {}

    async def forwarded(request):
        asked.append(request.raw_path)
        if not request.raw_path.startswith(f"{PREFIX}/"):
            return web.Response(status=404, text="outside of the prefix")
        url = target + request.raw_path.removeprefix(PREFIX)
        names = {n: v for n, v in request.headers.items() if n.lower() in ("cookie", "accept")}
        async with told["client"].get(url, headers=names, allow_redirects=False) as answer:
            kept = ("Content-Type", "Location", "Content-Security-Policy", "Set-Cookie")
            pairs = [(n, v) for n, v in answer.headers.items() if n in kept]
            return web.Response(status=answer.status, body=await answer.read(), headers=pairs)

    async def serve():
        application = web.Application()
        application.router.add_route("*", "/{tail:.*}", forwarded)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        told["port"] = runner.addresses[0][1]
        told["end"], told["loop"] = asyncio.Event(), asyncio.get_running_loop()
        async with aiohttp.ClientSession() as told["client"]:
            ready.set()
            await told["end"].wait()
        await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    try:
        yield f"http://127.0.0.1:{told['port']}{PREFIX}/scalable/{query}", asked
    finally:
        told["loop"].call_soon_threadsafe(told["end"].set)
        thread.join(60)


def test_the_page_works_below_a_path_of_a_proxy(browser):
    source = MadeUp(lambda: overview_of([task("fit")], running=[running_call("a/b", "fit")]))
    with served(source) as link, proxied(link) as (there, asked):
        with page_in(browser, there) as page:
            assert urlsplit(page.url).path == f"{PREFIX}/scalable/"
            assert "token" not in page.url
            page.click("#running a")
            page.wait_for_selector("#call dl", timeout=60_000)
            assert "('a/b')" in page.inner_text("#call")
            dask = page.evaluate("() => document.getElementById('pages-of-dask').href")
            assert urlsplit(dask).path == f"{PREFIX}/status"
        # Its address without the last slash leads there too.
        short = there.replace("/scalable/?", "/scalable?")
        with page_in(browser, short) as page:
            assert urlsplit(page.url).path == f"{PREFIX}/scalable/"
    assert asked
    assert all(path.startswith(f"{PREFIX}/scalable") for path in asked)


# A scheduler that goes ----------------------------------------------------------------------------


def test_a_scheduler_that_goes_is_told_and_its_successor_at_the_same_address_is_shown(browser):
    first = MadeUp(lambda: overview_of([task("before")], started_at=1.0))
    for number in range(30):  # the page has seen higher numbers than the successor gives
        first.recent.add("decisions", {"timestamp": 1.0, "tag": "a", "reason": f"old {number}"})
    second = MadeUp(lambda: overview_of([task("after")], started_at=2.0))
    second.recent.add("decisions", {"timestamp": 2.0, "tag": "a", "reason": "new"})
    with chromium_page(browser, first) as (page, port):
        page.wait_for_selector("#tasks:has-text('before')", timeout=60_000)
        assert page.locator("#decisions tbody tr").count() == 30
        assert not page.is_visible("#connection")
        page.server.__exit__(None, None, None)
        page.wait_for_selector("#connection", state="visible", timeout=60_000)
        told = page.inner_text("#connection")
        assert told.startswith("No answer since ")
        assert "asks again" in told
        assert "before" in page.inner_text("#tasks")  # the last state stays
        with served(second, port):
            page.wait_for_selector("#tasks:has-text('after')", timeout=60_000)
            page.wait_for_selector("#decisions:has-text('new')", timeout=60_000)
            page.wait_for_selector("#connection", state="hidden", timeout=60_000)
            assert page.locator("#decisions tbody tr").count() == 1


@contextmanager
def chromium_page(browser, source):
    """Open the page of a source whose server the test ends; yield the page and the port."""
    server = served(source)
    link = server.__enter__()
    with page_in(browser, link, faultless=False) as page:
        page.server = server
        yield page, urlsplit(link).port


def test_another_token_is_told(browser):
    """A cluster that was made anew at the same port: the page does not look like a busy one."""
    with chromium_page(browser, MadeUp()) as (page, _):
        page.context.clear_cookies()
        page.wait_for_selector("#connection", state="visible", timeout=60_000)
        assert "token" in page.inner_text("#connection")
        page.server.__exit__(None, None, None)


# Growth -------------------------------------------------------------------------------------------


def test_two_browsers_that_look_for_long_do_not_grow(browser):
    """Each look brings new events: the page keeps the latest of each kind, as the scheduler."""
    source = MadeUp(lambda: overview_of([task(f"fit-{n}") for n in range(50)]))
    rounds = []

    def happen():
        now = time.time()
        for number in range(900):
            worker, name = f"small-{number % 50}", f"fit-{number}-{len(rounds) % 100}"
            span = [worker, name, now - 2, now - 1, False, 1, f"{name}-{len(rounds)}"]
            source.recent.add("spans", span)
        for number in range(25):
            row = {"failure_class": "E", "message": "m" * 500, "timestamp": now}
            row["details"] = {"task_id": f"{number}", "frame": f"f.py:{len(rounds) % 700}"}
            source.recent.add("failures", row)
            source.recent.add("decisions", {"timestamp": now, "tag": "small", "reason": "r" * 100})
        source.recent.sample({"at": now + 2 * len(rounds), "pools": {"small": [1, 1, 1, 1, 1]}})
        rounds.append(1)

    with served(source) as link, page_in(browser, link) as one, page_in(browser, link) as two:
        pages = [one, two]
        for page in pages:
            page.clock.install()
            page.reload()
            page.wait_for_selector("#facts dd", timeout=60_000)

        def look(times):
            for _ in range(times):
                happen()
                for page in pages:
                    looked = page.evaluate("() => Number(document.body.dataset.looked)")
                    page.clock.run_for(2100)
                    page.wait_for_function(
                        f"() => Number(document.body.dataset.looked) > {looked}", timeout=60_000
                    )

        look(24)  # every ring is full: 20,000 spans, 500 failures, 500 decisions
        before = [size(page) for page in pages]
        look(15)
        after = [size(page) for page in pages]
    for (heap, nodes), (heap_later, nodes_later) in zip(before, after, strict=True):
        assert heap_later < 1.2 * heap + 2e6, (before, after)
        assert nodes_later < 3 * nodes, (before, after)


def size(page):
    """Return the used bytes of the page's heap and the number of its nodes, without garbage."""
    tools = page.context.new_cdp_session(page)
    for _ in range(3):  # what one collection frees may hold nodes that the next one frees
        tools.send("HeapProfiler.collectGarbage")
    heap = tools.send("Runtime.getHeapUsage")["usedSize"]
    nodes = tools.send("Memory.getDOMCounters")["nodes"]
    tools.detach()
    return heap, nodes
