"""The outer side of each test bed: a process that plays a place, and commands to it."""

import contextlib
import http.client
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path


def require_packages(bed, *modules):
    """End this program, with one line, if modules that a test bed imports are missing."""
    missing = []
    for name in modules:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:  # of the package that contains it
            found = None
        missing += [] if found else [name]
    if missing:
        sys.exit(
            f"the {bed} needs Python packages that {sys.executable} does not have "
            f"({', '.join(missing)}): run `make .venv/.places`, then .venv/bin/python {sys.argv[0]}; or "
            "pip install --editable . --group test --group places, with pip 25.1 or newer"
        )


class _Connection(http.client.HTTPConnection):
    """HTTP through a Unix socket."""

    def __init__(self, path):
        super().__init__("bed", timeout=60)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class BedProcess:
    """A process that plays a place on this machine, as a context manager.

    It ends with the process that made it, whatever way that ends, and so does all that runs in it.
    Classes that derive from this one set `name`, as messages say it, and `program`, a module whose
    `main(directory)` calls `bed_program.serve`.
    """

    name = ""
    program = ""

    def __init__(self):
        if reason := self.unavailable():
            raise RuntimeError(f"the {self.name} cannot run: {reason}")
        self.directory = Path(tempfile.mkdtemp(prefix=f"{self.program.split('_')[0]}-bed-"))
        self.process = None

    @staticmethod
    def unavailable():
        """Return why it cannot run on this machine, "" if it can."""
        raise NotImplementedError

    def start(self):
        """Start the process and wait until it listens."""
        here = str(Path(__file__).parent)
        code = f"import sys; sys.path.insert(0, {here!r}); from {self.program} import main; main({str(self.directory)!r})"
        with (self.directory / "errors").open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env=self.variables(),
            )
        if self.process.stdout.readline() != b"ready\n":
            text = self.errors()
            self.stop()
            raise RuntimeError(f"the {self.name} did not start:\n{text}")
        self.started()
        return self

    def variables(self):
        """Return the environment of the process."""
        return dict(os.environ)

    def started(self):
        """Read what the process wrote into its directory before it was ready."""

    def stop(self):
        """End the process and what runs in it, and remove its directory."""
        if self.process is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    def errors(self):
        """Return what the process wrote to its standard error."""
        path = self.directory / "errors"
        return path.read_text() if path.exists() else ""

    def ask(self, command, **arguments):
        """Run a command of the process (`do_...` in its program) and return its result."""
        connection = _Connection(self.directory / "control")
        try:
            connection.request("POST", f"/{command}", json.dumps(arguments))
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        if "error" in answer:
            raise RuntimeError(f"{command} of the {self.name}: {answer['error']}")
        return answer["result"]
