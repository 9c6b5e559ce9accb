"""A directory of a user, and looks at the processes of his detached clusters, for tests."""

import json
import os
import signal

import psutil
import pytest

from scalable.records import find
from verbs import status

MANIFEST = """\
version: 1
project: {name: tests}
targets:
  local: {provider: local, processes: true, max_workers: 4, %s}
  second: {provider: local, processes: true, max_workers: 4}
  threads: {provider: local}
components:
  a: {cpus: 1, workers: 2}
  b: {cpus: 1, workers: 1}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A user's directory and state; whatever a test leaves of its clusters is ended behind it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SCALABLE_RUNS_DIR", str(tmp_path / "runs"))

    def write(options="", text=MANIFEST):
        (tmp_path / "scalable.yaml").write_text(text % options if "%s" in text else text)
        return tmp_path

    write.text = MANIFEST
    write()
    yield write
    for process in processes_of(tmp_path):
        process.kill()


#: Runs when a program of a cluster starts: constants of modules get other values.
SITE = r"""
import importlib.machinery, json, os, re, sys

VALUES = json.loads(os.environ["TESTED_CONSTANTS"])


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in VALUES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)

        def get_code(_):
            source = spec.loader.get_source(name)
            for constant, value in VALUES[name].items():
                line = re.compile(rf"^{constant} = .*$", re.MULTILINE)
                source, changes = line.subn(f"{constant} = {value!r}", source)
                assert changes == 1, constant
            return compile(source, spec.origin, "exec", dont_inherit=True)

        spec.loader.get_code = get_code
        return spec


sys.meta_path.insert(0, Finder)
"""


def change_constants(place, monkeypatch, **modules):
    """Give constants other values in the programs that a test starts from now on.

    Each module of `scalable`, with ``__`` for dots, comes with the values of its constants.
    """
    (place / "site").mkdir()
    (place / "site" / "sitecustomize.py").write_text(SITE)
    named = {f"scalable.{name.replace('__', '.')}": values for name, values in modules.items()}
    monkeypatch.setenv("TESTED_CONSTANTS", json.dumps(named))
    monkeypatch.setenv("PYTHONPATH", str(place / "site"))


def processes_of(place, *words):
    """Processes of any cluster whose state is below a directory."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        ours = f"{place}/state/scalable/clusters" in line and process.pid != os.getpid()
        if ours and all(word in line for word in words):
            found.append(process)
    return found


def nothing_is_left(place):
    clusters = place / "state" / "scalable" / "clusters"
    assert [p.name for p in clusters.iterdir() if p.name != ".lock"] == []
    assert processes_of(place) == []


def kill(service, name, number=signal.SIGKILL):
    process = psutil.Process(json.loads((find(name).path / service).read_text())["pid"])
    process.send_signal(number)
    return process


def running_workers(name):
    return {tag: pool["running"] for tag, pool in status(name)["pools"].items()}
