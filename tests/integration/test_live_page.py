"""The live page: of embedded and detached clusters and of workers, for those who have its token."""

import asyncio
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest
from distributed import Nanny, Scheduler, Worker
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

import scalable
from scalable.clusters.connecting import connect
from scalable.clusters.creation import DetachOptions
from scalable.clusters.ending import end
from scalable.clusters.services import wait_until_ready
from scalable.manager.pool_cluster import PoolCluster
from scalable.scheduler.pool_scheduler import PoolScheduler
from scalable.worker.pool_worker import PoolWorker
from verbs import program

pytest.importorskip("bokeh")

MANIFEST = """\
version: 1
project: {name: tests}
targets: {local: {provider: local, max_workers: 1, processes: PROCESSES, dashboard_address: "0"}}
components: {small: {cpus: 1, memory: 300M}}
"""
PATHS = (
    "", "status", "health", "metrics", "info/main/workers.html", "json/counts.json",
    "sitemap.json", "statics/css/base.css", "status/ws", "api/v1",
)  # fmt: skip


def browser():
    return urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))


def get(url, opener=None, method="GET"):
    request = urllib.request.Request(url, method=method)
    try:
        with (opener or urllib.request.build_opener()).open(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def run_scalable(*arguments):
    done = program(*arguments, here=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def opens_websocket(base, cookie=None):
    async def tried():
        headers = {} if cookie is None else {"Cookie": cookie}
        request = HTTPRequest(f"ws{base.removeprefix('http')}/eventstream", headers=headers)
        try:
            connection = await websocket_connect(request)
            connection.close()
            while await connection.read_message() is not None:
                pass  # until it is closed
        except HTTPClientError as error:
            return error.code
        return 101

    return asyncio.run(tried())


def check_guarded(link, page="status"):
    """Every route refuses who has no token, and answers who opened the link once."""
    assert "?token=" in link
    base = link.partition("?")[0].removesuffix("/status")
    assert base.startswith("http://127.0.0.1:")
    for path in PATHS:
        for address in (f"{base}/{path}", f"{base}/{path}?token=wrong"):
            code, text = get(address)
            assert code == 403
            assert "scalable dashboard NAME" in text
            assert "dashboard_link" in text
    assert get(f"{base}/health", method="POST")[0] == 403
    opener = browser()
    assert get(link.replace("/status?", f"/{page}?"), opener)[0] == 200
    assert get(f"{base}/{page}", opener)[0] == 200
    assert get(f"{base}/{page}")[0] == 403
    return base, opener


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SCALABLE_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_of_a_session_answers_only_to_its_link(place):
    (place / "scalable.yaml").write_text(MANIFEST.replace("PROCESSES", "false"))
    with scalable.ScalableSession.from_yaml() as session:
        session.start()
        link = session.cluster.dashboard_link
        base, _ = check_guarded(link, "json/counts.json")
        (token,) = (place / "state").rglob("scheduler.json")
        assert token.stat().st_mode & 0o777 == 0o600
        (listed,) = scalable.list_clusters()
        assert listed.dashboard == link
        assert opens_websocket(base) == 403
        assert opens_websocket(base, "scalable_token=x") == 403


def test_two_pages_in_one_browser_keep_their_cookies_apart():
    opener = browser()
    options = {"dashboard_address": ":0", "host": "127.0.0.1", "port": 0}
    scheduler = {"cls": PoolScheduler, "options": options}
    with PoolCluster(scheduler=scheduler) as one, PoolCluster(scheduler=scheduler) as two:
        links = [c.dashboard_link.replace("status", "json/counts.json") for c in (one, two)]
        for link in links:
            assert get(link, opener)[0] == 200
        for link in links:
            assert get(link.partition("?")[0], opener)[0] == 200


def test_a_websocket_opens_with_the_cookie_alone():
    scheduler = {
        "cls": PoolScheduler,
        "options": {"dashboard_address": "0.0.0.0:0", "host": "127.0.0.1", "port": 0},
    }
    with PoolCluster(scheduler=scheduler) as cluster:
        link = cluster.dashboard_link.replace("status", "health")
        base = link.rpartition("/")[0]
        jar = CookieJar()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
        assert get(link, opener)[0] == 200
        (cookie,) = jar
        assert cookie.has_nonstandard_attr("HttpOnly")
        assert opens_websocket(base) == 403
        assert opens_websocket(base, f"{cookie.name}=wrong") == 403
        assert opens_websocket(base, f"{cookie.name}={cookie.value}") == 101


@pytest.mark.parametrize(
    ("cls", "address"),
    [(PoolScheduler, "0"), (PoolScheduler, ":0"), (PoolScheduler, "0,:0"), (Scheduler, ":0")],
)
def test_no_scheduler_of_ours_or_of_dask_listens_beyond_loopback_unasked(cls, address):
    options = {"dashboard_address": address, "host": "127.0.0.1", "port": 0, "dashboard": False}
    with PoolCluster(scheduler={"cls": cls, "options": options}) as cluster:
        assert cluster.scheduler.http_server.address == "127.0.0.1"
        check_guarded(cluster.dashboard_link, "health")


def test_a_scheduler_listens_on_an_ipv6_address():
    options = {"dashboard_address": "[::1]:0", "host": "127.0.0.1", "port": 0, "dashboard": False}
    with PoolCluster(scheduler={"cls": PoolScheduler, "options": options}) as cluster:
        assert cluster.dashboard_link.startswith("http://[::1]:")
        assert get(cluster.dashboard_link.partition("?")[0])[0] == 403


@pytest.mark.parametrize(("cls", "address"), [(PoolWorker, "0"), (Worker, None)])
def test_the_http_server_of_a_worker_is_guarded(cls, address):
    worker = {"cls": cls, "options": {"dashboard_address": address}}
    with PoolCluster(worker=worker) as cluster:
        cluster.scale(1)
        with scalable.ScalableClient(cluster) as client:
            client.wait_for_workers(1, timeout=60)
        (made,) = cluster.workers.values()
        assert made.http_server.address == "127.0.0.1"
        link = made.live_page
        assert get(link.partition("?")[0].replace("status", "health"))[0] == 403
        assert get(link.replace("status", "health"), browser())[0] == 200


def test_the_http_server_of_the_worker_of_a_nanny_is_guarded():
    with PoolCluster(worker={"cls": Nanny, "options": {}}) as cluster:
        cluster.scale(1)
        with scalable.ScalableClient(cluster) as client:
            client.wait_for_workers(1, timeout=60)
            (worker,) = client.scheduler_info(n_workers=-1)["workers"].values()
            port = worker["services"]["dashboard"]
            (host,) = client.run(lambda dask_worker: dask_worker.http_server.address).values()
        assert host == "127.0.0.1"
        assert get(f"http://127.0.0.1:{port}/health")[0] == 403


def _detached(place):
    (place / "scalable.yaml").write_text(MANIFEST.replace("PROCESSES", "true"))
    session = scalable.ScalableSession.from_yaml()
    directory = session.create(session.plan(), DetachOptions(name="one"))
    wait_until_ready(directory, timeout_s=120)
    return directory


def test_the_page_of_a_detached_cluster_is_found_by_its_owner_alone(place):
    directory = _detached(place)
    try:
        token = directory.token()
        with PoolCluster.from_name("one") as attached:
            link = attached.dashboard_link
        check_guarded(link, "json/counts.json")
        assert link.endswith(token)
        with connect("one") as client:
            assert client.dashboard_link == link
        page = run_scalable("dashboard", "one").strip()
        assert f"Dashboard: {page}\n" in run_scalable("status", "one")
        assert page == link.replace("/status?", "/scalable/?")
        assert "overview.json" in get(page.replace("/?", "/page.js?"), browser())[1]
        status = json.loads(run_scalable("status", "one", "--format", "json"))
        connected = json.loads(run_scalable("connect", "one", "--format", "json"))
        assert status["dashboard"] == connected["dashboard"] == link
        assert token not in connected["snippet"]
        _check_kept(token, directory)
    finally:
        end("one")


def _check_kept(token, directory):
    """The token is in private files, and in no log, argument or environment."""
    for path in directory.path.rglob("*"):
        if path.is_file() and token in path.read_text(errors="replace"):
            assert path.stat().st_mode & 0o777 == 0o600
            assert path.name in ("token", "scheduler.json")
    for place in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                said = (place / name).read_bytes()
            except OSError:
                continue
            assert token.encode() not in said
    for name in ("token", "scheduler.json"):
        if os.geteuid() == 0 and shutil.which("setpriv"):
            nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
            read = subprocess.run(
                [*nobody, "cat", directory.path / name], capture_output=True, check=False
            )
            assert read.returncode != 0
