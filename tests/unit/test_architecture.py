"""What import-linter's contracts cannot say."""

import ast
import itertools
from pathlib import Path

import grimp

RUNS_CODE_OF_USERS = {
    "client/calls/backlog.py",
    "client/calls/dispatcher.py",
    "client/calls/executor.py",
    "protocol/messages.py",
    "worker/bundle_counts.py",
    "worker/bundles.py",
}
SOURCE = Path(__file__).parents[2] / "src" / "scalable"


def test_providers_are_strangers_to_each_other():
    graph = grimp.build_graph("scalable", cache_dir=None)
    folders = [
        module
        for module in graph.find_children("scalable.providers")
        if graph.find_children(module)
    ]
    assert len(folders) >= 5
    for one, other in itertools.permutations(folders, 2):
        chains = graph.find_shortest_chains(one, other)
        assert not chains, f"{one} reaches {other}"


def test_broad_excepts_stand_only_where_they_may():
    allowed = {"cli/main.py", "session/session.py", "providers/registry.py"}
    # Where the users' own code is run, pickled and unpickled: it raises whatever it likes.
    allowed |= RUNS_CODE_OF_USERS
    allowed.add("client/client.py")  # hears the answers to calls
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler) and (
                node.type is None or getattr(node.type, "id", "") == "Exception"
            ):
                found.add(str(path.relative_to(SOURCE)))
    assert found <= allowed


def test_only_the_output_of_the_command_line_prints():
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
    }
    assert found <= {"cli/output.py"}
