import threading

import pytest

from scalable.cache.store import ResultStore


@pytest.fixture
def store(tmp_path):
    return ResultStore.open(tmp_path / "results")


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
