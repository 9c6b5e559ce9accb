"""The sort keys of waiting calls."""

from hypothesis import given
from hypothesis import strategies as st

from scalable.scaling.order import rank
from scalable.scaling.precedence import (
    LITTLE_MEMORY,
    MUCH_MEMORY,
    Precedence,
    ranks_count,
    shared_epochs,
)


def test_the_users_priority_comes_first_and_older_workflows_before_long_paths():
    usual = Precedence(0, 2, -rank(100.0, 0), 2, 0)
    urgent = Precedence(-1, 9, -rank(1.0, 0), 9, 0)
    older = Precedence(0, 1, -rank(1.0, 0), 1, 5)
    shorter = Precedence(0, 2, -rank(50.0, 0), 2, 0)
    assert sorted([shorter, usual, older, urgent]) == [urgent, older, usual, shorter]


def test_nearly_equal_paths_run_in_the_static_order_of_their_graph():
    first, second = (Precedence(0, 1, -rank(path, 2), 1, i) for i, path in ((0, 100), (1, 102)))
    assert first < second


def test_connected_calls_have_the_smallest_epoch_among_them():
    epochs = {"old": 1.0, "join": 1.0, "young": 7.0, "head": 7.0, "other": 4.0}
    waits = {"join": ["old", "young", "ended"], "young": ["head"], "other": []}
    assert shared_epochs(epochs, waits) == {
        "old": 1.0, "join": 1.0, "young": 1.0, "head": 1.0, "other": 4.0,
    }  # fmt: skip


def test_calls_of_calls_share_no_epoch():
    epochs = {"outer": 3.0, "nested": -0.01}
    assert shared_epochs(epochs, {"nested": ["outer"]}) == epochs
    assert shared_epochs(epochs, {"outer": ["nested"]}) == epochs


@given(st.data())
def test_epochs_are_those_of_the_connected_components(data):
    count = data.draw(st.integers(1, 12))
    epochs = {i: float(data.draw(st.integers(1, 5))) for i in range(count)}
    waits = {
        i: data.draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else [] for i in range(count)
    }
    expected = dict(epochs)
    for _ in range(count):
        for call, others in waits.items():
            for other in others:
                least = min(expected[call], expected[other])
                expected[call] = expected[other] = least
    assert shared_epochs(epochs, waits) == expected


def test_paths_stop_to_count_when_results_fill_the_memory_and_count_again_later():
    limit = 1e9
    assert ranks_count(0.9 * MUCH_MEMORY * limit, limit, counted=True)
    assert not ranks_count(1.1 * MUCH_MEMORY * limit, limit, counted=True)
    assert not ranks_count(1.1 * LITTLE_MEMORY * limit, limit, counted=False)
    assert ranks_count(0.9 * LITTLE_MEMORY * limit, limit, counted=False)
    assert ranks_count(1e12, 0, counted=True)
