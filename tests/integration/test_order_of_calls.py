"""The order in which waiting calls begin, on real worker processes."""

import contextlib
import time

import pytest

MANIFEST = """\
version: 1
project: {name: ordered}
targets:
  local: {provider: local, processes: true}
components:
  a: {cpus: 1, workers: 1}
"""
SUBMITTED = MANIFEST.replace("ordered", "ordered, order: submitted")
WORKERS = 1
HANG_S = 30.0


def note(path, name, *_):
    """Write a line with a name into a file."""
    with path.open("a") as file:
        file.write(f"{name}\n")


def leaf(path, name, *_):
    note(path, name)


def link(path, name, *_):
    """Take long enough that no leaf is measured to be as long as several links."""
    note(path, name)
    time.sleep(0.2)


def new(path, name, *_):
    note(path, name)


def block(path, _name):
    """Wait for a file."""
    deadline = time.monotonic() + HANG_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


@contextlib.contextmanager
def blocked(client, directory):
    """Keep the only slot taken within the block."""
    gate = directory / "gate"
    blocker = client.submit(block, gate, "", tag="a", pure=False, priority=100)
    try:
        yield
    finally:
        gate.touch()
    blocker.result()


def chain(path, length):
    graph, before = {}, ()
    for i in range(length):
        graph[f"link-{i}"] = (link, path, f"link {i}", *before)
        before = (f"link-{i}",)
    return graph


def leaves(path, count):
    return {f"leaf-{i}": (leaf, path, f"leaf {i}") for i in range(count)}


def waiting(dask_worker):
    """Return the keys of the calls that a worker has not begun, the next one first."""
    return [str(task.key) for task in dask_worker.state.constrained.sorted()]


def wait_for(client, condition):
    """Wait until a condition holds for the calls that wait on the only worker."""
    deadline = time.monotonic() + HANG_S
    while not condition(keys := next(iter(client.run(waiting).values()))):
        assert time.monotonic() < deadline, f"waiting on the worker: {keys}"
        time.sleep(0.05)


def begun(client, path, graph, directory, during=lambda _: None):
    """Run a graph whose calls all wait for one slot, and return the order in which they began."""
    with blocked(client, directory):
        futures = client.get(graph, list(graph), tag="a", sync=False)
        heads = sum(1 for call in graph.values() if call[-1] not in graph)
        wait_for(client, lambda keys: len(keys) == heads)
        more = during(futures)
    client.gather([futures, more or []])
    return path.read_text().splitlines()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "begun"


@pytest.fixture(scope="module", autouse=True)
def known(client, tmp_path_factory):
    """Have the lengths of some tasks known."""
    path = tmp_path_factory.mktemp("known") / "begun"
    client.gather([client.submit(function, path, "", tag="a") for function in (leaf, link)])


def test_the_head_of_a_long_chain_begins_before_many_leaves(client, path, tmp_path):
    order = begun(client, path, leaves(path, 8) | chain(path, 4), tmp_path)
    assert order[0] == "link 0"
    # Dask's order of the leaves depends on their keys, which are random.
    assert sorted(name for name in order if "leaf" in name) == [f"leaf {i}" for i in range(8)]


def test_the_users_priority_comes_first(client, path, tmp_path):
    def during(_):
        urgent = client.submit(leaf, path, "urgent", tag="a", pure=False, priority=1)
        wait_for(client, lambda keys: str(urgent.key) in keys)
        return urgent

    order = begun(client, path, leaves(path, 4) | chain(path, 4), tmp_path, during)
    assert order[0] == "urgent"


def test_a_call_of_an_unknown_task_begins_early(client, path, tmp_path):
    graph = leaves(path, 6) | {"new-0": (new, path, "new 0")}
    assert begun(client, path, graph, tmp_path)[0] == "new 0"


def test_a_call_that_a_worker_has_moves_ahead_when_others_come_to_wait_for_it(
    client, path, tmp_path
):
    def during(futures):
        later = futures[-1]
        for i in range(6):
            later = client.submit(link, path, f"after-{i}", later, tag="a", pure=False)
        wait_for(client, lambda keys: keys[0] == str(futures[-1].key))
        return later

    order = begun(client, path, leaves(path, 6), tmp_path, during)
    assert order[0] == "leaf 5"


def test_submitted_is_the_order_of_dask(running_session, tmp_path):
    with running_session(SUBMITTED, WORKERS) as session:
        found = []
        # Dask's own order depends on the keys, which are random: in one of eight it is the chain.
        for attempt in range(5):
            directory = tmp_path / str(attempt)
            directory.mkdir()
            path = directory / "begun"
            order = begun(session.client, path, leaves(path, 8) | chain(path, 4), directory)
            found.append(order[:8])
            if order[:8] == [f"leaf {i}" for i in range(8)]:
                return
        raise AssertionError(f"the chain was always first: {found}")
