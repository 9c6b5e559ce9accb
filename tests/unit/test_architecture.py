"""What import-linter's contracts cannot say."""

import ast
import functools
import itertools
import re
from pathlib import Path

import grimp
import pytest

RUNS_CODE_OF_USERS = {
    "cache/entries.py",  # where results are unpickled
    "cache/resume.py",
    "cache/store.py",  # the library of a bucket raises whatever it likes
    "client/backlog.py",
    "client/executor.py",
    "client/dispatcher.py",
    "client/failures.py",
    "client/client.py",
    "dask_compat/client.py",
    "protocol/failures.py",
    "protocol/messages.py",
    "protocol/private_socket.py",  # a defect of a handler is the asker's answer
    "worker/outcomes.py",
}
SOURCE = Path(__file__).parents[2] / "src" / "scalable"


@functools.cache
def found_in_source():
    """Return what the tests below look for, of each module: kind -> name of the file -> lines.

    The trees of all modules together would make each collection of garbage slow.
    """
    found = {"broad except": {}, "print": {}, "provider": {}, "question": {}}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for kind in kinds_of(node):
                name = str(path.relative_to(SOURCE))
                found[kind].setdefault(name, []).append(getattr(node, "lineno", 1))
    return found


def kinds_of(node):
    """Yield what a node of a syntax tree is, of what the tests look for."""
    if isinstance(node, ast.ExceptHandler) and (
        node.type is None or getattr(node.type, "id", "") == "Exception"
    ):
        yield "broad except"
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
        yield "print"
    if names_a_provider(node):
        yield "provider"
    if asks(node):
        yield "question"


@functools.cache
def import_graph():
    return grimp.build_graph("scalable", exclude_type_checking_imports=False, cache_dir=None)


def test_providers_are_strangers_to_each_other():
    graph = import_graph()
    folders = [
        module
        for module in graph.find_children("scalable.providers")
        if f"{module}.provider" in graph.modules
    ]
    assert len(folders) >= 5
    for one, other in itertools.permutations(folders, 2):
        chains = graph.find_shortest_chains(one, other)
        assert not chains, f"{one} reaches {other}"


def test_no_modules_import_each_other():
    graph = import_graph()
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
    allowed.add("client/executor_connection.py")  # fails the tasks of a message that it cannot read
    # A listener that raises keeps no event from the others, as in Dask's own calls of plug-ins.
    allowed.add("scheduler/task_log.py")
    allowed.add("storage.py")  # the library of a store raises whatever it likes
    assert found_in_source()["broad except"].keys() <= allowed


def test_only_the_output_of_the_command_line_prints():
    assert found_in_source()["print"].keys() <= {"cli/output.py"}


#: Where a provider may be named outside its folder, and why.
PROVIDERS_NAMED = {
    "__init__.py": "public names",
    "session/session.py": "ScalableSession.local, a word of the user's surface, and its target",
    "manifest/manifest.py": "the target that is called local is chosen before others",
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
    found = {
        file: lines
        for file, lines in found_in_source()["provider"].items()
        if not file.startswith(tuple(f"providers/{name}/" for name in PROVIDERS))
    }
    assert not {file: lines for file, lines in found.items() if file not in PROVIDERS_NAMED}


def test_the_search_finds_names_of_providers_and_passes_other_words():
    texts = ["x == 'slurm'", "SlurmCluster()", "import_module('LOCAL')", "a.KubernetesOptions"]
    others = ["threading.local()", "x = 'localhost'", "locals()"]
    found = [t for t in texts + others if any(map(names_a_provider, ast.walk(ast.parse(t))))]
    assert found == texts


def is_boolean_property(node):
    """Tell whether a function is a property that returns a boolean: "Whether ..." names it well."""
    decorators = {getattr(decorator, "id", "") for decorator in getattr(node, "decorator_list", ())}
    returned = getattr(getattr(node, "returns", None), "id", "")
    return bool(decorators & {"property", "cached_property"}) and returned == "bool"


def asks(node):
    """Tell whether a docstring opens with a question word."""
    questions = ("What", "Whether", "How", "Where", "Which", "Who", "Whose", "When", "Why")
    if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    first, *_ = (ast.get_docstring(node) or "").split(maxsplit=1) or [""]
    return first.rstrip(",:") in questions and not is_boolean_property(node)


def test_docstrings_state_and_do_not_ask():
    assert found_in_source()["question"] == {}


# The tests themselves -----------------------------------------------------------------------------

TESTS = Path(__file__).parents[1]
TIERS = ("unit", "property", "cli", "docs", "providers", "integration", "processes")
#: Longest sleep of a test, and of what it runs, in seconds: what lasts until it is told waits for a
#: file or an event.
LONGEST_SLEEP_S = 0.2
NUMBER = r"(\d[\d_]*(?:\.\d+)?|\.\d+)"
SLEEP = re.compile(rf"\bsleep(?:\(|, *(?:args=)?\(?){NUMBER}[,)]|\bsleep +{NUMBER}")


def without_slow_tests(text):
    """Return the lines of a file of tests, those of tests with the mark ``slow`` as empty ones."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and ast.unparse(node).startswith("pytestmark = "):
            lines = [] if "mark.slow" in ast.unparse(node.value) else lines
        for mark in getattr(node, "decorator_list", ()):
            if ast.unparse(mark).startswith("pytest.mark.slow"):
                first, last = node.lineno - 1, node.end_lineno
                lines[first:last] = [""] * (last - first)
    return lines


def long_sleeps(text):
    """Return the numbers of the lines on which something sleeps for long, also in strings."""
    if not SLEEP.search(text):
        return []
    return [
        number
        for number, line in enumerate(without_slow_tests(text), 1)
        for found in SLEEP.finditer(line)
        if float(found[1] or found[2]) > LONGEST_SLEEP_S
    ]


def test_no_test_sleeps_for_long():
    found = [
        f"{path.relative_to(TESTS)}:{number}"
        for tier in TIERS
        for path in sorted((TESTS / tier).rglob("*.py"))
        for number in long_sleeps(path.read_text())
    ]
    assert not found, f"more than {LONGEST_SLEEP_S} s: {', '.join(found)}"


@pytest.mark.parametrize(("text", "found"), [
    ("time.NAP(0.3)", True),
    ("await asyncio.NAP(1_000)", True),
    ("'import time; time.NAP(600)'", True),
    ("'[ -z $X ] || NAP 1; exit'", True),
    ("asyncio.to_thread(time.NAP, 60)", True),
    ("Thread(target=time.NAP, args=(100,))", True),
    ("time.NAP(0.2)", False),
    ("time.NAP(pause_s)", False),
    ("time.NAP(3 * PAUSE_S)", False),
    ("'while :; do NAP .05; done'", False),
    ("@pytest.mark.slow\ndef test_it():\n    time.NAP(9)", False),
    ("pytestmark = pytest.mark.slow\ntime.NAP(9)", False),
    ("@pytest.mark.slow\ndef test_it():\n    pass\ntime.NAP(9)", True),
])  # fmt: skip
def test_the_search_finds_long_sleeps(text, found):
    assert bool(long_sleeps(text.replace("NAP", "sleep"))) is found
