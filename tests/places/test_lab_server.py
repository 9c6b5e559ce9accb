"""Our clusters in Jupyter's server, as the sidebar asks for them: no browser, and no JupyterLab."""

import asyncio
import http.server
import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest
from jupyter_lab import INSTALLED, JupyterLab, needed
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

import scalable
from scalable.clusters.creation import DetachOptions
from scalable.clusters.ending import end
from scalable.clusters.services import wait_until_ready
from scalable.protocol.credentials import new_credentials
from scalable.protocol.servers import cookie_name
from scalable.watch.lab import show
from scalable.watch.lab.sidebar import _trusting

pytestmark = pytest.mark.skipif(bool(needed()), reason=needed() or "nothing is missing")

MANIFEST = """\
version: 1
project: {name: climate}
targets: {local: {provider: local, max_workers: 3, processes: true}}
components: {fit: {cpus: 1, memory: 400M, workers: 1}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(place / "state"))
        patch.setenv("SCALABLE_RUNS_DIR", str(place / "runs"))
        patch.chdir(place)
        (place / "scalable.yaml").write_text(MANIFEST)
        yield place


@pytest.fixture(scope="module")
def cluster(place):
    """A cluster with a live page: its directory."""
    session = scalable.ScalableSession.from_yaml()
    directory = session.create(session.plan(), DetachOptions("climate", dashboard_address=":0"))
    try:
        wait_until_ready(directory, timeout_s=120)
        yield directory
    finally:
        end("climate")


@pytest.fixture(scope="module")
def jupyter(place, cluster):
    """Jupyter's server, on which nothing listens but the extensions."""
    with JupyterLab(place / "home", "/user/me/", "jupyter_server") as jupyter:
        yield jupyter


def rows(jupyter):
    code, text = jupyter.request("dask/clusters")
    assert code == 200, text
    return json.loads(text)


def pages(cluster):
    return f"dask/dashboard/{cluster.id}"


def test_a_cluster_that_was_started_elsewhere_is_listed(jupyter, cluster, eventually):
    (row,) = eventually(lambda: [r for r in rows(jupyter) if r["workers"] == 1])
    assert row == {
        "id": cluster.id,
        "name": "climate",
        "scheduler_address": cluster.scheduler()["address"],
        "dashboard_link": f"/user/me/{pages(cluster)}/scalable/",
        "workers": 1,
        "memory": "381.47 MiB",
        "cores": 1,
    }
    code, text = jupyter.request(f"dask/clusters/{cluster.id}")
    assert (code, json.loads(text)["name"]) == (200, "climate")
    assert jupyter.request(f"dask/clusters/{cluster.id[::-1]}")[0] == 404


def test_it_is_scaled_and_follows_its_load(jupyter, cluster, eventually):
    path = f"dask/clusters/{cluster.id}"
    assert jupyter.request(path, "PATCH", {"workers": 2, "adapt": None})[0] == 200
    eventually(lambda: rows(jupyter)[0]["workers"] == 2, "two workers run")
    code, text = jupyter.request(path, "PATCH", {"workers": 4, "adapt": None})
    assert (code, "exceeds max_workers 3" in json.loads(text)["message"]) == (409, True)
    bounds = {"minimum": 1, "maximum": 3}
    assert jupyter.request(path, "PATCH", {"workers": 2, "adapt": bounds})[0] == 200
    eventually(lambda: rows(jupyter)[0].get("adapt") == bounds, "the bounds are shown")
    assert jupyter.request(path, "PATCH", {"workers": 1, "adapt": None})[0] == 200
    eventually(lambda: "adapt" not in rows(jupyter)[0], "it does not follow its load any more")
    code, text = jupyter.request(path, "PATCH", {"adapt": {"minimum": 3, "maximum": 1}})
    assert (code, "cannot adapt" in json.loads(text)["message"]) == (409, True)


def test_its_pages_come_through_jupyter(jupyter, cluster):
    code, text = jupyter.request(f"{pages(cluster)}/scalable/overview.json")
    assert (code, json.loads(text)["page"]["name"]) == (200, "climate")
    code, text = jupyter.request(f"{pages(cluster)}/individual-plots.json")
    assert (code, "Individual Task Stream" in text) == (200, True)
    code, text = jupyter.request(f"{pages(cluster)}/scalable")  # a redirect stays below the prefix
    assert (code, "<title>" in text) == (200, True)


def test_who_is_not_logged_in_sees_nothing(jupyter, cluster):
    for path in ("dask/clusters", f"{pages(cluster)}/scalable/overview.json"):
        code, text = jupyter.request(path, authorized=False)
        assert code in (403, 200)  # a page of Jupyter's that asks for its token
        assert "climate" not in text
    for method in ("PATCH", "DELETE"):
        code, _ = jupyter.request(f"dask/clusters/{cluster.id}", method, {}, authorized=False)
        assert code == 403
    code, _ = jupyter.request(
        f"{pages(cluster)}/scalable/", authorized=False, Upgrade="websocket", Connection="Upgrade"
    )
    assert code == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_pages_are_only_read(jupyter, cluster, method):
    assert jupyter.request(f"{pages(cluster)}/api/v1/retire_workers", method, {})[0] == 405


def test_a_websocket_is_passed_on(jupyter, cluster):
    """The events of Dask's scheduler; the sockets of plots are passed on in the same way."""

    async def ask():
        url = f"{jupyter.url}{pages(cluster)}/eventstream".replace("http", "ws", 1)
        headers = {"Authorization": f"token {jupyter.token}"}
        socket = await websocket_connect(HTTPRequest(url, headers=headers))
        await asyncio.to_thread(compute)
        message = await asyncio.wait_for(socket.read_message(), 60)
        socket.close()
        while await asyncio.wait_for(socket.read_message(), 60) is not None:
            pass
        return json.loads(message)

    def compute():
        with scalable.connect("climate") as client:
            assert client.submit(abs, -6, tag="fit").result(timeout=60) == 6

    assert asyncio.run(ask())["name"] in ("transition", "add_worker")


def test_the_scheduler_sees_its_token_only_and_jupyters_log_none(jupyter, cluster, place):
    """A server in the scheduler's place writes down what it is sent."""
    sent = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            sent.append((self.path, dict(self.headers)))
            self.send_response(200)
            self.send_header("Set-Cookie", "of=the-scheduler")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_):
            pass

    known = cluster.scheduler()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        link = f"http://127.0.0.1:{server.server_address[1]}/status?token={cluster.token()}"
        cluster.write_scheduler({**known, "dashboard": link})
        try:
            request = urllib.request.Request(
                f"{jupyter.url}{pages(cluster)}/a%20b?x=1&token={jupyter.token}&y=",
                headers={"Cookie": "session=of-jupyter", "X-Xsrftoken": "z"},
            )
            headers = poll(request, lambda: sent)
        finally:
            cluster.write_scheduler(known)
            server.shutdown()
    path, seen = sent[-1]
    assert path == "/a%20b?x=1&y="
    token = cluster.token()
    assert seen.pop("Cookie") == f"{cookie_name(token)}={token}"
    assert jupyter.token not in str(seen)
    assert {"authorization", "x-xsrftoken"} & {name.lower() for name in seen} == set()
    assert "of=the-scheduler" not in str(headers)
    assert token not in jupyter.log.read_text()


def poll(request, condition):
    """Ask until the server in between has seen the changed file."""
    for _ in range(200):
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                headers = str(answer.headers)
        except urllib.error.HTTPError as error:
            error.close()
        if condition():
            return headers
    raise AssertionError("the server was not asked")


def test_the_token_of_a_page_is_not_in_the_process_list_or_the_environment(jupyter, cluster):
    token = cluster.token()
    for name in ("cmdline", "environ"):
        with open(f"/proc/{jupyter.process.pid}/{name}", "rb") as file:
            assert token.encode() not in file.read()


def test_disconnecting_hides_it_until_it_is_shown_again(jupyter, cluster):
    assert jupyter.request(f"dask/clusters/{cluster.id}", "DELETE")[0] == 204
    assert rows(jupyter) == []
    assert cluster.state(cluster.record(), cluster.status(), 0.0)[0] == "running"
    show("climate")
    assert [row["name"] for row in rows(jupyter)] == ["climate"]


def test_only_the_clusters_own_authority_is_trusted(cluster):
    """The context with which Jupyter's server reads pages that have TLS."""

    class Seen:
        directory = cluster

    pem = cluster.pem()
    own = (pem["tls_client_cert"], pem["tls_client_key"])
    _, certificate, key = new_credentials()
    assert handshake(own, _trusting(Seen)) is None
    assert "CERTIFICATE_VERIFY_FAILED" in str(handshake((certificate, key), _trusting(Seen)))


def handshake(credentials, trusting):
    """Return the error of a client that connects to a server with a certificate, or None."""
    path = f"server-{os.urandom(4).hex()}.pem"
    with open(path, "w", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
        file.write("\n".join(credentials))
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(path)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    server = serving.wrap_bio(outgoing, incoming, server_side=True)
    for _ in range(10):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return error
    return None


def test_the_extension_is_listed_as_ok(jupyter, tmp_path):
    # The list has the user's directory and those of the environment and the system, and no others; in an
    # environment in which scalable is installed the extension stands in two of them.
    shutil.copytree(INSTALLED / "jupyter", tmp_path, dirs_exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_server.extension.serverextension", "list"],
        env=jupyter.environment() | {"JUPYTER_CONFIG_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    shown = done.stdout + done.stderr
    checked = [
        line
        for line in shown.splitlines()
        if line.split()[:1] == ["scalable.watch.lab"] and "enabled" not in line
    ]
    assert checked, shown
    assert all("OK" in line for line in checked), shown
