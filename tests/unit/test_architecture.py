"""What import-linter's contracts cannot say."""

import ast
import itertools
import re
from pathlib import Path

import grimp
import pytest

RUNS_CODE_OF_USERS = {
    "caching/entries.py",  # where results are unpickled
    "caching/failed_arguments.py",
    "caching/objects.py",  # the library of a store raises whatever it likes
    "caching/payloads.py",
    "caching/resumable.py",
    "caching/run_results.py",
    "caching/store.py",
    "client/calls/backlog.py",
    "client/calls/executor.py",
    "client/calls/held_calls.py",
    "client/calls/in_flight.py",
    "client/calls/kept_results.py",
    "client/calls/mapped_calls.py",
    "client/calls/options.py",
    "client/calls/outcomes.py",
    "client/calls/packing.py",
    "client/calls/uploads.py",
    "client/unsendable.py",
    "protocol/described_failures.py",
    "protocol/messages.py",
    "protocol/private_socket.py",  # a defect of a handler is the asker's answer
    "protocol/shown_values.py",
    "session/answered.py",
    "worker/bundle_counts.py",
    "worker/outcomes.py",
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


def test_no_modules_import_each_other():
    graph = grimp.build_graph("scalable", exclude_type_checking_imports=False, cache_dir=None)
    imports = {m: graph.find_modules_directly_imported_by(m) for m in graph.modules}
    circles = [sorted(circle) for circle in circles_of(imports)]
    assert circles == []


def circles_of(imports):
    """Return the groups of modules that reach each other: a module, all that it reaches and back."""
    reached = {}
    for module in imports:
        found, rest = set(), [module]
        while rest:
            new = imports[rest.pop()] - found
            found |= new
            rest.extend(new)
        reached[module] = found
    return {
        frozenset(other for other in found if module in reached[other])
        for module, found in reached.items()
        if module in found
    }


def test_circles_are_found():
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert circles_of(imports) == {frozenset("abc"), frozenset("de")}


def test_broad_excepts_stand_only_where_they_may():
    allowed = {"cli/main.py", "session/session.py", "providers/registry.py"}
    # Where the users' own code is run, pickled and unpickled: it raises whatever it likes.
    allowed |= RUNS_CODE_OF_USERS
    allowed.add("client/scheduler_line.py")  # fails the calls of a message that it cannot read
    # A listener that raises keeps no event from the others, as in Dask's own calls of plug-ins.
    allowed.add("scheduler/ledger.py")
    allowed.add("storage.py")  # the library of a store raises whatever it likes
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


#: Where a provider may be named outside its folder, and why.
PROVIDERS_NAMED = {
    "__init__.py": "public names",
    "session/session.py": "ScalableSession.local, a word of the user's surface, and its target",
    "session/local_pools.py": "ScalableSession.local, a word of the user's surface, and its target",
    "manifest/choose.py": "the target that is called local is chosen before others",
    "manifest/starter.py": "text of the example manifest",
}
PROVIDERS = ("local", "slurm", "kubernetes", "aws", "gcp")
IDENTIFIER = re.compile(r"(?<![a-z])(Local|Slurm|Kubernetes|AWS|GCP)[A-Z]|slurm|kubernetes")


def names_a_provider(node):
    """Whether a node of a syntax tree is a provider's name, or an identifier made of one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.lower() in PROVIDERS
    name = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "name", None)
    if isinstance(node, ast.ImportFrom):
        name = node.module
    return isinstance(name, str) and bool(IDENTIFIER.search(name))


def test_no_provider_is_named_outside_its_folder():
    found = {}
    for path in SOURCE.rglob("*.py"):
        room, *rest = path.relative_to(SOURCE).parts
        if room == "providers" and rest[0] in PROVIDERS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if names_a_provider(node):
                found.setdefault(str(path.relative_to(SOURCE)), node.lineno)
    assert not {file: line for file, line in found.items() if file not in PROVIDERS_NAMED}


@pytest.mark.parametrize(
    "text", ["x == 'slurm'", "SlurmCluster()", "import_module('LOCAL')", "a.KubernetesOptions"]
)
def test_the_search_finds_names_of_providers(text):
    assert any(names_a_provider(node) for node in ast.walk(ast.parse(text)))


@pytest.mark.parametrize("text", ["threading.local()", "x = 'localhost'", "locals()"])
def test_the_search_passes_other_words(text):
    assert not any(names_a_provider(node) for node in ast.walk(ast.parse(text)))


def test_no_file_passes_450_lines():
    lengths = {
        str(path.relative_to(SOURCE)): len(path.read_text().splitlines())
        for path in SOURCE.rglob("*.py")
    }
    assert not {name: lines for name, lines in lengths.items() if lines > 450}


def is_boolean_property(node):
    """Tell whether a function is a property that returns a boolean: "Whether ..." names it well."""
    decorators = {getattr(decorator, "id", "") for decorator in getattr(node, "decorator_list", ())}
    returned = getattr(getattr(node, "returns", None), "id", "")
    return bool(decorators & {"property", "cached_property"}) and returned == "bool"


def question_words():
    """Return where the first line of a docstring opens with a question word."""
    questions = ("What", "Whether", "How", "Where", "Which", "Who", "Whose", "When", "Why")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, documented):
                continue
            first, *_ = (ast.get_docstring(node) or "").split(maxsplit=1) or [""]
            if first.rstrip(",:") in questions and not is_boolean_property(node):
                yield f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 1)}"


def test_docstrings_state_and_do_not_ask():
    assert list(question_words()) == []
