"""Machines that their cloud takes back: metadata services over HTTP, and workers as processes.

``MachineLauncher`` starts each unit as a *machine*: this file as a program, which is the program of
a cloud's machine with another ``MachineSide``. When the time of a notice is over, the machine and
all its processes are killed.
"""

import contextlib
import datetime as dt
import json
import secrets
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil

from scalable.clusters.programs.machine import run_workers
from scalable.files import write_private
from scalable.manager.launcher import Observation, UnitState
from scalable.providers.remote.machines import CONFIG
from scalable.worker.config import WorkerConfig, security_fields

TIMEOUT_S = 5.0


class Metadata:
    """The metadata service of one machine, of EC2 (version 2, with tokens) or of GCE."""

    def __init__(self):
        self.end = None
        self.tokens = set()
        metadata = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_PUT(self):
                lives = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
                if self.path != "/latest/api/token" or not lives.isdigit():
                    return self.answer(400, "")
                token = secrets.token_urlsafe(20)
                metadata.tokens.add(token)
                return self.answer(200, token)

            def do_GET(self):
                if self.path == "/latest/meta-data/spot/instance-action":
                    if self.headers.get("X-aws-ec2-metadata-token") not in metadata.tokens:
                        return self.answer(401, "")
                    if metadata.end is None:
                        return self.answer(404, "")
                    end = dt.datetime.fromtimestamp(metadata.end, dt.UTC)
                    action = {"action": "terminate", "time": end.isoformat()}
                    return self.answer(200, json.dumps(action))
                if self.path == "/computeMetadata/v1/instance/preempted":
                    if self.headers.get("Metadata-Flavor") != "Google":
                        return self.answer(403, "")
                    return self.answer(200, "FALSE" if metadata.end is None else "TRUE")
                return self.answer(404, "")

            def answer(self, code, text):
                self.send_response(code)
                self.end_headers()
                self.wfile.write(text.encode())

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Ec2Side:
    """The part of a machine of EC2 that asks for notices, and tells its type."""

    def __init__(self, url, _notice_s):
        self.url = url

    def ask(self, path, method="GET", **headers):
        names = {key.replace("_", "-"): value for key, value in headers.items()}
        request = urllib.request.Request(self.url + path, method=method, headers=names)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.read().decode()

    def notice(self):
        lives = {"X_aws_ec2_metadata_token_ttl_seconds": "60"}
        token = self.ask("/latest/api/token", "PUT", **lives)
        try:
            text = self.ask(
                "/latest/meta-data/spot/instance-action", X_aws_ec2_metadata_token=token
            )
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise
        end = dt.datetime.fromisoformat(json.loads(text)["time"])
        return end.timestamp() - time.time()


class GceSide(Ec2Side):
    """The part of a machine of GCE that asks for notices: it is told that, and not when."""

    def __init__(self, url, notice_s):
        super().__init__(url, notice_s)
        self.notice_s = notice_s

    def notice(self):
        text = self.ask("/computeMetadata/v1/instance/preempted", Metadata_Flavor="Google")
        return self.notice_s if text == "TRUE" else None


SIDES = {"ec2": Ec2Side, "gce": GceSide}


class MachineLauncher:
    """Launcher of workers on machines that can be taken back."""

    def __init__(self, kind, directory, notice_s):
        self.kind, self.directory, self.notice_s = kind, Path(directory), notice_s
        self.scheduler, self.security, self.tag, self.manager = "", None, "", ""
        self.machines = {}
        self.requested = []
        self.ended_at = {}

    async def launch(self, entries):
        for name in entries:
            self.requested.append((time.monotonic(), name))
            metadata = Metadata()
            config = WorkerConfig(
                self.scheduler,
                "",
                resources={self.tag: 1},
                security=security_fields(self.security),
                manager=self.manager,
                hand_over=True,
            )
            files = self.directory / name / "files"
            files.mkdir(mode=0o700, parents=True)
            write_private(files / CONFIG, json.dumps(asdict(config)))
            command = [sys.executable, __file__, self.kind, metadata.url, str(self.notice_s)]
            with (self.directory / f"{name}.log").open("wb") as log:
                process = subprocess.Popen(
                    [*command, str(files), f"--scheduler={self.scheduler}", name],
                    stderr=log,
                    stdout=log,
                    start_new_session=True,
                )
            self.machines[name] = process, metadata

    def take_back(self, name, *, notice_s=None):
        """Announce the end of a machine, and end it when the time is over."""
        process, metadata = self.machines[name]
        notice_s = self.notice_s if notice_s is None else notice_s
        metadata.end = time.time() + notice_s
        threading.Timer(notice_s, kill_with_children, [process]).start()

    async def adopt(self):
        return {}

    async def stop(self, names):
        for name in names:
            if name in self.machines:
                process, metadata = self.machines.pop(name)
                self.ended_at[name] = time.monotonic()
                kill_with_children(process)
                process.wait(timeout=30)
                metadata.close()

    def observe(self):
        return {name: seen(process) for name, (process, _) in self.machines.items()}

    def look_soon(self):
        pass

    async def logs(self, name):
        return (self.directory / f"{name}.log").read_text()


def seen(process):
    code = process.poll()
    if code is None:
        return Observation(UnitState.RUNNING)
    return Observation(UnitState.ENDED, f"exit code {code}", from_outside=code < 0)


def kill_with_children(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()


def main():
    kind, url, notice_s, files, *arguments = sys.argv[1:]
    sys.exit(run_workers(SIDES[kind](url, float(notice_s)), Path(files), arguments))


if __name__ == "__main__":
    main()
