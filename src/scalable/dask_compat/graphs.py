"""Seams of the graphs that a client sends."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from dask._expr import HLGExpr, LLGExpr
from dask.highlevelgraph import HighLevelGraph
from distributed.client import _MapExpr

from scalable.dask_compat.facts import Seams, accepts, contains, has, mentions

seams = Seams("client of graphs")

_HLG = "dask._expr:HLGExpr"


@seams.relies_on(
    contains(f"{_HLG}._parameters", "dsk"),
    has("dask._expr:Expr", "find_operations", "operand"),
    mentions("dask._expr:Expr.__reduce__", "operands"),
    contains(f"{_HLG}._parameters", "low_level_optimizer"),
    mentions(f"{_HLG}.__dask_annotations__", "_optimized_dsk", "layers", "annotations"),
    accepts("dask.highlevelgraph:HighLevelGraph.__init__", 4),
    mentions("dask.highlevelgraph:HighLevelGraph.__init__", "key_dependencies"),
)
def annotate_layers(expr: Any, annotate: Callable[[dict[str, Any]], dict[str, Any]]) -> set[str]:
    """Replace the annotations of an expression's layers before it is sent, and return all names.

    The layers themselves, which collections share, do not change. ``annotate`` is called for layers
    with annotations only. Expressions are pickled by their operands, of which ``dsk`` is a graph of
    layers.
    """
    names: set[str] = set()
    nodes = list(expr.find_operations(HLGExpr))
    for node in nodes:
        graph = node.operand("dsk")
        if not isinstance(graph, HighLevelGraph):
            continue
        new = {
            name: _with(layer, annotate(dict(layer.annotations)))
            for name, layer in graph.layers.items()
            if layer.annotations
        }
        names.update(*(layer.annotations for layer in new.values()))
        if new:
            graph = HighLevelGraph(
                {**graph.layers, **new}, graph.dependencies, graph.key_dependencies
            )
            _set(node, "dsk", graph)
    if "resources" in names:
        for node in nodes:
            if node.low_level_optimizer is not None:
                _set(node, "low_level_optimizer", _keeping_resources(node.low_level_optimizer))
    return names


def _set(node: Any, parameter: str, value: Any) -> None:
    node.operands[node._parameters.index(parameter)] = value  # noqa: SLF001
    node.__dict__.pop("_optimized_dsk", None)


def _with(layer: Any, annotations: dict[str, Any]) -> Any:
    if annotations == layer.annotations:
        return layer
    routed = copy.copy(layer)
    routed.annotations = annotations
    return routed


def _keeping_resources(optimize: Callable[..., Any]) -> Callable[..., Any]:
    """Return an optimizer that skips graphs whose layers would lose their resources."""

    # A nested function is pickled by value, so that the scheduler need not import this package.
    def optimized(graph: Any, keys: Any, **options: Any) -> Any:
        import dask
        from dask.core import flatten

        def resources(graph: Any) -> set[str]:
            layers = getattr(graph, "layers", {}).values()
            return {repr((layer.annotations or {}).get("resources")) for layer in layers}

        with dask.config.set({"optimization.fuse.active": False}):
            better = optimize(graph, keys, **options)
        return better if resources(graph) <= resources(better) else graph.cull(set(flatten(keys)))

    return optimized


@seams.relies_on(
    has("dask._expr:LLGExpr", "_layer"),
    mentions("distributed.client:Client.submit", "LLGExpr"),
    mentions("distributed.client:Client.map", "_MapExpr"),
)
def has_layers(expr: Any) -> bool:
    """Return whether an expression's graph may have layers with annotations."""
    return not isinstance(expr, LLGExpr | _MapExpr)
