"""The guard of the HTTP server: wrong tokens, many of them, and redirections."""

import http.client
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urljoin, urlsplit

import pytest
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine

from scalable.manager.pool_cluster import PoolCluster
from scalable.protocol import servers
from scalable.protocol.servers import APART_S, FIRST_LINE_S, WrongTokens, admits, cookie_name
from scalable.scheduler.pool_scheduler import PoolScheduler

WRONG = ["x", "", "%00", "%FF%FE", "%E2%80%AE", "a" * 5000, "TOKEN", "token"]


@pytest.fixture(scope="module")
def link():
    options = {"dashboard_address": ":0", "host": "127.0.0.1", "port": 0}
    with PoolCluster(scheduler={"cls": PoolScheduler, "options": options}) as cluster:
        yield cluster.dashboard_link.replace("/status?", "/scalable/?")


class Connection:
    """Connection of a request that was made up."""

    context = None


@contextmanager
def connection(link):
    parts = urlsplit(link)
    opened = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    try:
        yield opened
    finally:
        opened.close()


def status(opened, path, cookie=None):
    opened.request("GET", path, headers={} if cookie is None else {"Cookie": cookie})
    answer = opened.getresponse()
    answer.read()
    return answer.status


def told(caplog):
    return [r.getMessage() for r in caplog.records if "wrong token" in r.getMessage()]


def test_many_wrong_tokens_are_refused_and_told_in_one_line(link, caplog, monkeypatch):
    monkeypatch.setattr(servers, "APART_S", 1e6)
    token = link.partition("token=")[2]
    with caplog.at_level(logging.DEBUG), connection(link) as opened:
        answers = set()
        for number in range(200):
            if number % 2:
                path, cookie = f"/scalable/overview.json?token={token[:-1]}-{number}", None
            else:
                path, cookie = "/scalable/overview.json", f"{cookie_name(token)}=wrong{number}"
            answers.add(status(opened, path, cookie))
        assert answers == {403}
        # At once, and on the same connection.
        assert status(opened, f"/scalable/overview.json?token={token}") == 302
        assert status(opened, "/scalable/", f"{cookie_name(token)}={token}") == 200
        deadline = time.monotonic() + 60
        while not (lines := told(caplog)) and time.monotonic() < deadline:
            time.sleep(0.1)
    assert len(lines) == 1
    assert token[:-1] not in caplog.text
    assert "overview.json" not in caplog.text


def test_wrong_tokens_are_counted_and_told_at_most_once_in_a_minute(caplog):
    later = []
    wrong = WrongTokens(lambda seconds, tell: later.append((seconds, tell)))
    for _ in range(1000):
        wrong.add("10.0.0.1")
    ((_, tell),) = later
    tell()
    for _ in range(7):
        wrong.add("10.0.0.2")
    later[1][1]()
    later[2][1]()  # none since then: the next is told soon
    assert [row.split()[0] for row in told(caplog)] == ["1000", "7"]
    assert [seconds for seconds, _ in later] == [FIRST_LINE_S, APART_S, APART_S]


def test_wrong_tokens_hold_no_other_reader(link):
    """Requests with the right token are answered between those with a wrong one."""
    token = link.partition("token=")[2]
    cookie = f"{cookie_name(token)}={token}"
    ended = threading.Barrier(5, timeout=60)

    def hammer():
        with connection(link) as opened:
            ended.wait()
            for number in range(100):
                assert status(opened, f"/scalable/?token=wrong{number}") == 403

    with ThreadPoolExecutor(4) as threads, connection(link) as opened:
        hammering = [threads.submit(hammer) for _ in range(4)]
        ended.wait()
        answered = 0
        while not all(each.done() for each in hammering):
            assert status(opened, "/scalable/page.css", cookie) == 200
            answered += 1
        for each in hammering:
            each.result()
    assert answered > 8


@pytest.mark.parametrize("wrong", WRONG)
def test_a_token_is_compared_in_constant_time(wrong, monkeypatch):
    """Each comparison is that of `hmac`, also for another length, other bytes and no token."""
    compared = []
    real = servers.hmac.compare_digest
    monkeypatch.setattr(
        servers.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b)
    )
    line = RequestStartLine("GET", f"/x?token={wrong}", "HTTP/1.1")
    headers = HTTPHeaders({"Cookie": f"{cookie_name('secret')}=no", "Host": "here"})
    request = HTTPServerRequest(start_line=line, headers=headers, connection=Connection())
    assert admits(request, "secret") == (False, False)
    assert len(compared) == 2
    assert all(type(given) is type(known) is bytes for given, known in compared)


@pytest.mark.parametrize(
    "path",
    [
        "/scalable/",
        "/status",
        "//evil.example/x",
        "/a/..//evil.example",
        "/\\evil.example",
        "/",
        "/a:b",
    ],
)
def test_a_link_leads_to_the_same_page_without_its_token_also_behind_a_prefix(link, path):
    token = link.partition("token=")[2]
    with connection(link) as opened:
        opened.putrequest("GET", f"{path}?token={token}&b=1", skip_host=False)
        opened.endheaders()
        answer = opened.getresponse()
        answer.read()
    assert answer.status == 302
    to = answer.getheader("Location")
    assert token not in to
    assert to.startswith("./")
    assert to.endswith("?b=1")
    before = "http://here.example/prefix/of/proxy"
    assert urlsplit(urljoin(before + path, to)).hostname == "here.example"
    if path == "/scalable/":
        assert urljoin(before + path, to) == before + "/scalable/?b=1"
