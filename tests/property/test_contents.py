"""Digests of values made of any parts: equal exactly where the values are."""

import copy
import math
import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scalable.cache.content import Contents


def digest(value):
    return Contents(lambda code: code.__qualname__).part(value)


def shape(value):
    """Return a value with the types of its parts, so that == tells 1, 1.0 and True apart."""
    if isinstance(value, dict):
        return ("dict", [(shape(k), shape(v)) for k, v in value.items()])
    if isinstance(value, set | frozenset):
        return (type(value).__name__, sorted(repr(shape(v)) for v in value))
    if isinstance(value, list | tuple):
        return (type(value).__name__, [shape(v) for v in value])
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, value.shape, value.tobytes(), value.flags.writeable)
    if isinstance(value, float):
        return ("float", value.hex(), math.copysign(1, value))
    return (type(value).__name__, repr(value))


plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
)
keys = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab:,", max_size=2)
arrays = st.builds(
    lambda kind, n: np.arange(n).astype(kind),
    st.sampled_from(["i4", "f8", "i8", "S2"]),
    st.integers(0, 3),
)
values = st.recursive(
    plain | arrays,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | st.sets(keys, max_size=3)
        | st.frozensets(keys, max_size=3)
    ),
    max_leaves=8,
)
#: Few values, so that two draws are often equal.
close = st.recursive(
    st.sampled_from([0, 1, True, 1.0, "", "1", b"1", None]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.sampled_from([1, "1", None]), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(values | close, values | close)
def test_digests_are_equal_exactly_where_values_are(one, other):
    assert (digest(one) == digest(other)) == (shape(one) == shape(other))


@given(values)
def test_copy_that_a_worker_gets_has_the_digest_of_the_original(value):
    assert digest(pickle.loads(pickle.dumps(value))) == digest(value)


class Node:
    """An object that is told apart from equal ones, with links to others."""


def linked(links, names, order):
    """Return a graph of objects whose sets are filled in an order, as seen from the first one."""
    nodes = [Node() for _ in names]
    for node, name in zip(nodes, names, strict=True):
        node.name, node.others = name, set()
    for start, end in (links[number] for number in order):
        nodes[start].others.add(nodes[end])
    return nodes[0]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8), st.randoms())
def test_order_in_which_sets_are_filled_has_no_part_in_a_digest(links, order):
    shuffled = list(range(len(links)))
    order.shuffle(shuffled)
    graphs = [linked(links, "abcde", one) for one in (range(len(links)), shuffled)]
    assert digest(graphs[0]) == digest(graphs[1]) == digest(copy.deepcopy(graphs[0]))


@given(values, st.lists(st.integers(0, 3), max_size=3))
def test_value_never_shares_the_digest_of_what_contains_it(value, path):
    wrapped = value
    for step in [0, *path]:
        wrapped = [lambda v: [v], lambda v: (v,), lambda v: {"": v}, lambda v: [v, v]][step](
            wrapped
        )
    assert digest(wrapped) != digest(value)
