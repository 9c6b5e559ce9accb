"""A cluster with workers that see the files of its client, and workers that do not."""

import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys

import pytest

from scalable import ScalableSession
from scalable.protocol.handlers import Handler
from scalable.protocol.pools import Attachment
from scalable.worker.config import WorkerConfig, security_fields

MODEL = """
from pathlib import Path

HERE = Path(__file__).parent


def place():
    return str(HERE)


def data():
    return (HERE / "data.csv").read_text()


def has(name):
    return (HERE / name).exists()


def lazily():
    import model_of_two_lazy

    return model_of_two_lazy.ANSWER
"""


def write(directory, **files):
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    directory = tmp_path_factory.mktemp("two_kinds")
    write(directory, model_of_two__py=MODEL, model_of_two_lazy__py="ANSWER = 1\n")
    write(directory, data__csv="1", large__nc="x", pyproject__toml="")
    (directory / ".gitignore").write_text("*.nc\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.syspath_prepend(directory)
        yield directory


@pytest.fixture(scope="module")
def client(project):
    session = ScalableSession.local({"crops": 1}, processes=True)
    with session as client:
        client.wait_for_workers(1, timeout=60)
        yield client


@pytest.fixture(scope="module")
def waiting(client, project):
    """A call for a worker that is not there yet, made while no worker needs any files."""
    model = importlib.import_module("model_of_two")
    assert not client._code.sends_files
    return client.submit(model.lazily, workers=["away-1"], pure=False)


@pytest.fixture(scope="module")
def workers(client, waiting, tmp_path_factory):
    """The address of a worker that sees the files, and of one that does not."""
    (near,) = client.scheduler_info(n_workers=-1)["workers"]
    away = Attachment("away", "x", shares_files=False, pools={})
    assert client._ask(Handler.ATTACH, **dataclasses.asdict(away))["accepted"]
    file = tmp_path_factory.mktemp("worker") / "config.json"
    config = WorkerConfig(
        scheduler=client.scheduler.address,
        name="",
        resources={"crops": 1},
        security=security_fields(client.security),
        shares_files=False,
    )
    file.write_text(json.dumps(dataclasses.asdict(config)))
    file.chmod(0o600)
    command = [sys.executable, "-m", "scalable.worker.program", str(file), "away-1"]
    process = subprocess.Popen(command, cwd="/")
    try:
        client.wait_for_workers(2, timeout=60)
        # An older answer to the client's regular question may replace that of scheduler_info().
        yield near, next(worker for worker in client.run(int) if worker != near)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def run(client, worker, function, *args):
    return client.submit(function, *args, workers=[worker], pure=False).result(timeout=60)


def test_a_call_from_before_the_first_such_worker_finds_the_files_too(client, workers, waiting):
    assert waiting.result(timeout=60) == 1


def test_workers_that_see_the_files_use_them_and_others_the_archive(client, workers, project):
    near, away = workers
    model = importlib.import_module("model_of_two")
    assert run(client, near, model.place) == str(project)
    carried = run(client, away, model.place)
    assert not carried.startswith(str(project))
    for worker in workers:
        assert run(client, worker, model.data) == "1"
        assert run(client, worker, model.lazily) == 1
    assert run(client, near, model.has, "large.nc")
    assert not run(client, away, model.has, "large.nc")


def test_after_an_edit_both_run_the_new_files(client, workers, project):
    model = importlib.import_module("model_of_two")
    write(project, model_of_two_lazy__py="ANSWER = 2000\n", data__csv="2")
    client.sync_code()
    for worker in workers:
        assert run(client, worker, model.lazily) == 2000
        assert run(client, worker, model.data) == "2"


def test_equal_files_are_sent_once(client, workers, project, monkeypatch):
    model = importlib.import_module("model_of_two")
    assert run(client, workers[1], model.data) == "2"
    handlers, answers = client.cluster.scheduler.handlers, []
    take = handlers[Handler.TAKE_FILES]
    taken = lambda **given: answers.append(take(**given)) or answers[-1]  # noqa: E731
    monkeypatch.setitem(handlers, Handler.TAKE_FILES, taken)
    monkeypatch.delitem(handlers, Handler.FILES)
    for number in range(3):
        calls = [client.submit(model.data, workers=[workers[1]], pure=False) for _ in range(5)]
        assert client.gather(calls) == ["2"] * 5
        client.sync_code()  # nothing has changed
        os.utime(project / "data.csv", (number, number))
    assert answers == [True] * len(answers), "the scheduler has the files already"
