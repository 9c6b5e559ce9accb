"""Raw graphs: what is refused, what is run under which tag, and what comes out."""

import operator
from operator import add
from typing import NamedTuple

import dask
import pytest
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef
from dask.utils import key_split
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scalable.client.graphs import is_raw, prepare
from scalable.errors import ClusterError

GRAPH = {"a": 1, "b": (add, "a", 10), "c": (add, "a", "b"), "d": (add, "c", "b"), "e": (int, "7")}


class Point(NamedTuple):
    x: int
    y: int


def inc(x):
    return x + 1


def gather(*args):
    return args


def evaluate(prepared):
    """The results in the keys' shape, each node run where it comes, as a worker would."""
    nodes = {key: node for layer in prepared.nodes.values() for key, node in layer.items()}
    values = {}

    def value_of(key):
        if key not in values:
            node = nodes[key]
            values[key] = node({other: value_of(other) for other in node.dependencies})
        return values[key]

    def shaped(keys):
        return [shaped(key) for key in keys] if isinstance(keys, list) else value_of(keys)

    return shaped(prepared.keys)


def run(graph, keys):
    return evaluate(prepare(graph, keys))


def names_run(prepared):
    return sorted(key.rsplit("-", 1)[1] for layer in prepared.nodes.values() for key in layer)


# What comes out -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("node", "expected"), [
    ((gather, "a", "text", 3.5, None), (1, "text", 3.5, None)),
    ((gather, (inc, (inc, "a"))), (3,)),
    ((sum, ["a", "a", (inc, "a")]), 4),
    ((gather, ("a", "text"), {"a"}, [["b"]]), ((1, "text"), {1}, [[2]])),
    ((gather, Point("a", "b")), (Point(1, 2),)),
    ((gather, {"k": "a"}), ({"k": "a"},)),
    ((gather, {"k": (inc, 1)}), ({"k": (inc, 1)},)),
    ((gather, ("x", 0)), ("a tuple's",)),
    ((gather, "alias"), (2,)),
    ((gather, (1, [])), ((1, []),)),
    ((gather,), ()),
    ("alias", 2),
    ("text", "text"),
    (["a", "b", "text"], [1, 2, "text"]),
    ({"k": "a"}, {"k": "a"}),
    ((), ()),
    ((gather, "empty", "long"), ([], "x" * 5000)),
])  # fmt: skip
def test_arguments_are_replaced_by_the_nodes_that_they_name(node, expected):
    graph = {
        "a": 1, "b": (inc, "a"), "other": "b", "alias": "other", ("x", 0): "a tuple's", "empty": [],
        "long": "x" * 5000, "node": node,
    }  # fmt: skip
    assert run(graph, "node") == expected
    assert dask.get(graph, "node") == expected


def test_aliases_and_what_they_stand_for_may_be_asked_for_together():
    graph = {"a": (inc, 1), "b": "a", "c": "b", "d": (add, "b", "c")}
    prepared = prepare(graph, ["c", "a", "d"])
    assert evaluate(prepared) == [2, 2, 4]
    assert names_run(prepared) == ["a", "d"]


@st.composite
def graphs(draw):
    """Graphs without cycles whose nodes take earlier ones, by name, in lists and nested calls."""
    graph = {}
    for i in range(draw(st.integers(1, 8))):
        names = st.sampled_from(sorted(graph)) if graph else st.nothing()
        literal = st.integers(-5, 5) | st.sampled_from(["text", "other"]) | st.lists(st.integers())
        argument = st.recursive(
            names | literal,
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.tuples(st.just(gather), inner, inner)
                | st.tuples(inner, inner)
            ),
            max_leaves=5,
        )
        call = st.lists(argument, max_size=3).map(lambda args: (gather, *args))
        graph[f"n{i}"] = draw(call | literal | names | st.lists(argument, max_size=3))
    shuffled = draw(st.permutations(sorted(graph)))
    keys = draw(st.lists(st.sampled_from(sorted(graph)), unique=True))
    return {name: graph[name] for name in shuffled}, keys


def plainly(value, graph):
    if isinstance(value, tuple) and value and callable(value[0]):
        return value[0](*(plainly(arg, graph) for arg in value[1:]))
    if isinstance(value, str) and value in graph:
        return plainly(graph[value], graph)
    if isinstance(value, list | tuple):
        return type(value)(plainly(part, graph) for part in value)
    return value


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(graphs())
def test_any_graph_means_what_it_says(drawn):
    graph, keys = drawn
    assert run(graph, keys) == [plainly(key, graph) for key in keys]


def test_long_chains_do_not_recurse():
    graph = {"n0": 0} | {f"n{i}": (inc, f"n{i - 1}") for i in range(1, 5000)}
    assert len(names_run(prepare(graph, "n4999"))) == 4999
    with pytest.raises(ClusterError, match="cycle"):
        prepare(graph | {"n0": "n4999"}, "n4999")


# What is run, and where ----------------------------------------------------------------------------


def nested(levels, innermost=1):
    value = innermost
    for _ in range(levels):
        value = [value]
    return value


def test_arguments_may_be_nested_as_deeply_as_python_allows():
    assert run({"a": (len, nested(900)), "b": nested(900)}, ["a"]) == [1]
    assert not is_raw({"a": nested(5000, Task("t", len, [])), "b": 1})


def test_names_that_are_nested_too_deeply_are_refused_by_the_node():
    with pytest.raises(ClusterError, match="node 'b' of the graph is nested too deeply"):
        prepare({"a": 1, "b": (len, nested(5000, "a"))}, "b")


def test_names_may_be_bytes():
    assert run({b"a": (inc, 1), "b": (inc, b"a"), "c": [b"a", "b"]}, ["c", b"a"]) == [[2, 3], 2]


def test_a_large_value_goes_to_those_who_need_it():
    graph = {"large": [0] * 9, "a": (sum, "large"), "b": (len, "large")}
    assert {
        tag: len(layer)
        for tag, layer in prepare(graph, ["a", "b"], None, {"a": "x", "b": "x"}).nodes.items()
    } == {"x": 3}


def test_keys_are_new_each_time_and_readable():
    first, second = prepare(GRAPH, ["d", "c"]), prepare(GRAPH, ["d", "c"])
    assert not set(first.key_of.values()) & set(second.key_of.values())
    assert {key_split(key) for key in first.keys} == {"add"}
    same_looks = prepare({1: (inc, 1.5), "1": (inc, 2.5)}, [1, "1"])
    assert evaluate(same_looks) == [2.5, 3.5]


# What is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("graph", "keys", "tags", "words"), [
    ({"a": (inc, "b"), "b": (inc, "a")}, "a", {}, "cycle: a -> b -> a"),
    ({"a": (inc, "a")}, "a", {}, "cycle: a -> a"),
    ({"a": "b", "b": "a"}, "a", {}, "cycle: a -> b -> a"),
    ({"a": 1, "b": (sum, [(inc, "c")]), "c": "b"}, "a", {}, "cycle: b -> c -> b"),
    ({"z": (inc, "a"), "a": (inc, "b"), "b": (inc, "a")}, "z", {}, "cycle: a -> b -> a"),
    (GRAPH, "x", {}, "no node 'x', given in keys.*'a', 'b'"),
    (GRAPH, ["a", ["x"]], {}, "no node 'x', given in keys"),
    (GRAPH, ("a", "b"), {}, "several names are given as a list"),
    (GRAPH, {"a"}, {}, "several names are given as a list"),
    (GRAPH, "a", {"x": "tag"}, "no node 'x', given in tags="),
    (dict.fromkeys(map(str, range(99)), 0), "x", {}, "'9' and 89 more"),
    ({}, "x", {}, "it is empty"),
    (GRAPH, ["a", ["b", "a"]], {}, "node 'a' occurs twice in keys"),
    ({None: 1}, [], {}, "a node named None"),
])  # fmt: skip
def test_ambiguous_graphs_and_keys_are_refused(graph, keys, tags, words):
    with pytest.raises(ClusterError, match=words):
        prepare(graph, keys, None, tags)


def test_graphs_of_collections_are_not_raw():
    assert is_raw(GRAPH)
    assert is_raw({})
    assert is_raw({"a": TaskRef("a future's key")})
    assert not is_raw({"a": 1, "b": Task("b", inc, TaskRef("a"))})
    assert not is_raw({"a": (inc, [Task(None, inc, 1)])})
    assert not is_raw(HighLevelGraph({}, {}))
    assert not is_raw(dask.delayed(operator.neg)(1).__dask_graph__())


@pytest.mark.parametrize(
    "place", [lambda f: f, lambda f: [f], lambda f: {"k": [f]}, lambda f: (gather, f)]
)
def test_futures_are_dependencies_wherever_they_are(place):
    future = TaskRef("elsewhere")
    (layer,) = prepare(
        {"a": (gather, place(future)), "b": place(future)}, ["a", "b"]
    ).nodes.values()
    assert [node.dependencies for node in layer.values()] == [{"elsewhere"}] * 2
    values = [node({"elsewhere": 5}) for node in layer.values()]
    expected = evaluate(prepare({"b": place(5)}, "b"))
    assert values == [(expected,), expected]
