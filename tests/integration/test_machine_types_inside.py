"""Programs on a cloud's machine learn the type of the machine from the metadata service."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from scalable.providers.aws.inside import METADATA_VARIABLE, Instance
from scalable.providers.gcp.inside import GoogleMachine


@pytest.fixture
def service():
    """A metadata service; it answers what is in the dictionary, and 404 or 500 otherwise."""
    answers = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            found = next((a for path, a in answers.items() if self.path.endswith(path)), 404)
            self.send_response(found if isinstance(found, int) else 200)
            self.end_headers()
            if isinstance(found, str):
                self.wfile.write(found.encode())

        do_PUT = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield answers, f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_type_of_an_instance_is_told(service, monkeypatch):
    answers, address = service
    monkeypatch.setenv(METADATA_VARIABLE, f"http://{address}")
    answers.update({"api/token": "secret", "meta-data/instance-type": "c7i.4xlarge"})
    assert Instance().machine_type() == "c7i.4xlarge"
    answers["meta-data/instance-type"] = 500
    assert Instance().machine_type() == ""


def test_the_type_of_a_google_machine_is_told(service, monkeypatch):
    answers, address = service
    monkeypatch.setenv("GCE_METADATA_HOST", address)
    answers["instance/machine-type"] = "projects/123/machineTypes/n2-standard-8"
    assert GoogleMachine().machine_type() == "n2-standard-8"
    answers.clear()
    assert GoogleMachine().machine_type() == ""
