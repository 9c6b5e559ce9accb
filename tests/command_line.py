"""A project in a directory of its own, and the command line: in this process, or in one of its own."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from fabricated import put_on_record
from scalable.cli.main import main

MANIFEST = """\
version: 1
project:
  name: climate
targets:
  local:
    provider: local
    max_workers: 3
  other:
    provider: local
  cluster:
    provider: slurm
    price_per_core_hour: 0.5
components:
  model:
    cpus: 1
    workers: 2
  analysis:
    cpus: 0.5
    memory: 100M
tasks:
  simulate:
    component: model
  reduce:
    component: analysis
"""
LOCK_DIGITS = 64
# A session's part in the record of a run, without a cluster.
RECORD = """\
import os
from scalable.runs.directory import RunDirectory

def record(project="climate"):
    run = RunDirectory.create(
        project, "local", provider="local", manifest_yaml="", manifest_lock="0" * 64, plan={}
    )
    with open(os.environ["SCALABLE_RUN_LIST"], "a") as listing:
        listing.write(f"{run.path}\\n")
    return run
"""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    for name in list(os.environ):
        if name.startswith(("SCALABLE_", "_SCALABLE_", "SLURM_")) or name in ("NO_COLOR", "TERM"):
            monkeypatch.delenv(name)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The current directory, with a manifest that has no faults."""
    (tmp_path / "scalable.yaml").write_text(MANIFEST)
    (tmp_path / "record.py").write_text(RECORD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def invoke(capfd):
    """Run a verb in this process; what a workflow prints is part of the output."""

    def run(*arguments):
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run


@pytest.fixture
def spawn():
    """Start the program in a process (and a group) of its own."""
    started = []

    def run(*arguments, **options):
        given = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "start_new_session": True,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "scalable", *map(str, arguments)], **(given | options)
        )
        started.append(process)
        return process

    yield run
    for process in started:
        with process:
            process.kill()


@pytest.fixture
def recorded():
    """Put a cluster on record."""
    return put_on_record


@pytest.fixture
def complete(capfd):
    """What a shell is offered behind some words."""

    def offered(words, form="bash_complete"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("_SCALABLE_COMPLETE", form)
            patch.setenv("COMP_WORDS", words)
            patch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
            capfd.readouterr()
            with pytest.raises(SystemExit):
                main([])
        return capfd.readouterr().out.split()

    return offered
