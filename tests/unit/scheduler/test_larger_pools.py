"""A task that ran out of memory goes to the smallest pool with more memory that can run it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable.model import ComponentSpec
from scalable.scheduler.retrying import larger_component

SMALL = ComponentSpec("small", image="model:1", memory="4G", gpus=1, env={"A": "1"})
LARGE = replace(SMALL, name="large", memory="8G")
HUGE = replace(SMALL, name="huge", memory="64G")


def chosen(*others, factor=1.5, slots=1):
    pools = {component.name: component for component in (SMALL, *others)}
    return larger_component(pools, "small", factor, slots)


def test_the_smallest_that_suffices_is_taken():
    assert chosen(HUGE, LARGE) == "large"
    assert chosen(HUGE, LARGE, factor=3.0) == "huge"
    assert chosen(HUGE, LARGE, factor=17.0) is None


@pytest.mark.parametrize("change", [
    {"image": "model:2"}, {"image": None}, {"env": {}}, {"mounts": {"/data": "/data"}},
    {"preload_script": "load.py"}, {"gpus": 0}, {"memory": None}, {"memory": "5G"},
], ids=str)  # fmt: skip
def test_a_pool_that_cannot_run_the_call_is_not_taken(change):
    assert chosen(replace(LARGE, **change)) is None


def test_a_call_needs_its_slots():
    assert chosen(LARGE, slots=2) is None
    assert chosen(replace(LARGE, slots=2), slots=2) == "large"


def test_memory_that_is_not_known_has_no_multiple():
    pools = {"small": replace(SMALL, memory=None), "large": LARGE}
    assert larger_component(pools, "small", 1.5) is None
    assert larger_component(pools, "unknown", 1.5) is None


@given(st.lists(st.integers(1, 100), max_size=8), st.floats(1.01, 5))
def test_no_smaller_pool_would_do(sizes, factor):
    others = [replace(SMALL, name=f"p{i}", memory=f"{size}G") for i, size in enumerate(sizes)]
    found = chosen(*others, factor=factor)
    enough = [other for other in others if other.memory_bytes >= factor * SMALL.memory_bytes]
    assert (found is None) == (not enough)
    if found is not None:
        memory = {other.name: other.memory_bytes for other in others}
        assert memory[found] == min(other.memory_bytes for other in enough)
