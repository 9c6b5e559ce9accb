"""Functions of the package that a plain task passes through, from submit to its result."""

import builtins
import logging
import sys
import threading
from pathlib import Path

import dask
import pytest
from distributed import get_worker

import scalable
from scalable import ScalableSession
from scalable.client.client import ScalableClient

MANIFEST = """\
version: 1
project: {name: path}
targets:
  local: {provider: local, processes: true}
components:
  a: {}
"""
SOURCE = str(Path(scalable.__file__).parent)
#: Rounds that are compared: what happens now and then, such as a heartbeat, is not in all of them.
ROUNDS = 6
#: File whose coroutines wake up several times a second to look whether the worker has closed.
POLLS = "/worker/program.py"
#: Largest numbers of functions and of files, of the client and its worker together.
MOST_FUNCTIONS, MOST_FILES = 39, 12
MOST_OF_CLIENT, MOST_FILES_OF_CLIENT = 16, 7


def increment(x):
    return x + 1


def count_here(source):
    """Note from now on which functions of the package this thread of a worker calls."""
    logging.disable(logging.INFO)  # a line for each function that a client runs on a worker
    if not hasattr(builtins, "functions_seen"):
        builtins.functions_seen = set()
    sys.setprofile(noting_in(builtins.functions_seen, source))


def noting_in(seen, source):
    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(source):
            seen.add((code.co_filename[len(source) :], code.co_name, code.co_firstlineno))

    return note


def seen_since():
    seen = set(builtins.functions_seen)
    builtins.functions_seen.clear()
    return seen


def stop_here():
    sys.setprofile(None)
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def session(running_session):
    with running_session(MANIFEST, workers=1) as session:
        yield session


@pytest.fixture
def seen(session, monkeypatch):
    """Return a function that returns what a submission passes through, in client and worker."""
    monkeypatch.delitem(sys.modules, "IPython", raising=False)  # in a notebook, waits show output
    own = session.client
    with ScalableClient(own.scheduler.address, security=own.security) as client:
        client.submit(count_here, SOURCE, tag="a").result()
        client.run(count_here, SOURCE)
        noted = set()
        note, noting = noting_in(noted, SOURCE), threading.Event()
        client.loop.add_callback(sys.setprofile, note)

        def pass_through(**options):
            client.submit(increment, 1, tag="a", **options).result()
            client.loop.add_callback(noting.set)
            assert noting.wait(60)
            client.run(seen_since)
            noted.clear()
            sys.setprofile(note)
            try:
                assert client.submit(increment, 2, tag="a", **options).result() == 3
            finally:
                sys.setprofile(None)
            ours = set(noted)
            (theirs,) = client.run(seen_since).values()
            return ours, theirs

        def in_all_rounds(**options):
            ours, theirs = zip(*(pass_through(**options) for _ in range(ROUNDS)), strict=True)
            timed = {function for function in set.union(*theirs) if function[0] == POLLS}
            return set.intersection(*ours), set.intersection(*theirs) - timed

        yield in_all_rounds
        client.loop.add_callback(sys.setprofile, None)
        client.submit(stop_here, tag="a").result()
        client.run(stop_here)


def files_of(functions):
    return {file for file, _, _ in functions}


def test_a_plain_task_passes_through_few_functions(seen):
    ours, theirs = seen()
    assert len(ours) <= MOST_OF_CLIENT, sorted(ours)
    assert len(files_of(ours)) <= MOST_FILES_OF_CLIENT, files_of(ours)
    both = [*ours, *theirs]
    assert len(both) <= MOST_FUNCTIONS, sorted(theirs)
    assert len(files_of(both)) <= MOST_FILES, files_of(both)


def test_a_special_case_is_decided_once_at_submit(seen):
    plain, _ = seen()
    kept, _ = seen(errors="keep")
    assert files_of(kept) - files_of(plain) == {"/client/failures.py"}


def pool_here():
    (tag,) = get_worker().state.total_resources
    return tag


def test_each_task_is_sent_with_its_own_keywords():
    with ScalableSession.local({"a": 1, "b": 1}) as client:

        def pool_of(**keywords):
            return client.submit(pool_here, **keywords).result()

        for _ in range(2):  # the second time, the client has noted how the first were sent
            assert [pool_of(tag="a"), pool_of(tag="b")] == ["a", "b"]
            with client.use(tag="b"):
                assert pool_of() == "b"
                assert pool_of(tag="a") == "a"
            with dask.annotate(tag="a"):
                assert pool_of() == "a"
            (of_b,) = [
                name
                for name, worker in client.scheduler_info()["workers"].items()
                if "b" in worker["resources"]
            ]
            assert pool_of(workers=of_b) == "b"
            assert pool_of(tag="b", resources={"b": 1}) == "b"
