import threading
from hashlib import sha256

import pytest

from scalable.cache.key import CallKey
from scalable.cache.store import LAYOUT, ResultStore


@pytest.fixture
def store(tmp_path):
    return ResultStore.open(tmp_path / "results")


@pytest.fixture
def make_key():
    """Return a function that makes the key of a task with a number, and with given parts."""

    def make(number, parts=None, function="model.run"):
        digest = sha256(str(number).encode()).hexdigest()
        return CallKey(digest, {"argument:x": str(number)} if parts is None else parts, function)

    return make


@pytest.fixture
def files_of():
    """Return a function that lists the files below a store's results."""

    def files(store):
        root = store.file_digests._store / LAYOUT
        return sorted(path for path in root.rglob("*") if path.is_file())

    return files


@pytest.fixture
def at_once():
    """Return a function that calls a function in several threads at once, and returns the results."""

    def run(function, arguments):
        barrier, results = threading.Barrier(len(arguments)), []

        def act(argument):
            barrier.wait(60)
            results.append(function(argument))

        threads = [threading.Thread(target=act, args=(each,)) for each in arguments]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(results) == len(arguments)
        return results

    return run
