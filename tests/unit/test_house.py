"""The size of the packages, their docstrings, and their language."""

import ast
import functools
import re
from pathlib import Path

import pytest

import scalable
from scalable import providers
from scalable.manager import launcher
from scalable.providers import base, registry
from scalable.providers.remote import cloud, cloud_provider, options, session_cluster

SOURCE = Path(__file__).parents[2] / "src" / "scalable"
#: Largest number of lines and files of each package. A budget may only fall.
BUDGETS = {
    "base": (1_939, 14),
    "cache": (5_700, 15),
    "cli": (3_989, 23),
    "client": (7_649, 18),
    "clusters": (4_875, 23),
    "containers": (892, 4),
    "dask_compat": (2_548, 9),
    "manager": (2_638, 8),
    "manifest": (3_000, 14),
    "model": (2_509, 14),
    "planning": (3_344, 18),
    "pricing": (449, 5),
    "protocol": (4_349, 21),
    "providers": (19_100, 82),
    "records": (1_012, 6),
    "runs": (3_779, 14),
    "scaling": (2_666, 13),
    "scheduler": (6_425, 18),
    "session": (2_063, 7),
    "views": (3_465, 13),
    "watch": (2_000, 8),
    "worker": (3_254, 14),
}
SUFFIXES = (".py", ".js", ".css", ".html")


def measured():
    """Return the lines and files of each package, and of the files next to them as "base"."""
    found = {}
    for path in SOURCE.rglob("*"):
        if path.suffix not in SUFFIXES:
            continue
        parts = path.relative_to(SOURCE).parts
        name = "base" if len(parts) == 1 else parts[0]
        lines, files = found.get(name, (0, 0))
        found[name] = lines + len(path.read_text().splitlines()), files + 1
    return found


def test_no_package_exceeds_its_budget():
    over = {
        name: f"{size} of {BUDGETS.get(name)}"
        for name, size in measured().items()
        if size[0] > BUDGETS.get(name, (0, 0))[0] or size[1] > BUDGETS.get(name, (0, 0))[1]
    }
    assert over == {}


def test_each_budget_has_its_package():
    assert BUDGETS.keys() == measured().keys()


# Small modules ------------------------------------------------------------------------------------

#: Modules that are loaded by their names: a provider's traits and options, a program, a command.
LOADED_BY_NAME = re.compile(
    r"(.*/)?__(init|main)__|providers/\w+/(traits|options)|cli/commands/\w+|clusters/programs/\w+"
)
FEW_LINES = 60


def imports_in(tree):
    """Yield the names of the modules and of what is imported from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def docstrings_in(node, names=()):
    """Yield (line, names of the object and of those around it, docstring)."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            inner = (*names, ".".join([*names[-1:], child.name]))
            if text := ast.get_docstring(child, clean=False):
                yield child.lineno, inner, text
            yield from docstrings_in(child, inner)
        elif isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from docstrings_in(child, names)


@functools.cache
def parsed(path):
    """Return imports, docstrings and strings of a module: all trees would make collections slow."""
    tree = ast.parse(path.read_text())
    strings = literals_in(tree, documented="commands" in path.parts)
    return list(imports_in(tree)), list(docstrings_in(tree)), list(strings)


def importers():
    """Return the modules that import each module, by path."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        for name in parsed(path)[0]:
            if name.startswith("scalable."):
                found.setdefault(name.removeprefix("scalable."), set()).add(path)
    return found


def test_a_small_module_has_two_importers():
    users = importers()
    small = set()
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).with_suffix("").as_posix()
        few = len(path.read_text().splitlines()) < FEW_LINES
        alone = len(users.get(name.replace("/", "."), ())) < 2
        if few and alone and not LOADED_BY_NAME.fullmatch(name):
            small.add(name)
    assert small == set()


# Docstrings ---------------------------------------------------------------------------------------

SECTION = re.compile(r"^ *-{4,}$", re.MULTILINE)


@functools.cache
def public_names():
    """Return (module, qualified name) of the public objects and of the classes they inherit from."""
    objects = [getattr(scalable, name) for name in scalable.__all__]
    objects += [getattr(providers, name) for name in dir(providers)]
    for module in (base, registry, launcher, cloud, cloud_provider, options, session_cluster):
        objects += [
            value
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
        ]
    names = set()
    for each in objects:
        for one in each.__mro__ if isinstance(each, type) else [each]:
            names.add((one.__module__, one.__qualname__))
    return names


def docstrings(path, *, public=False):
    """Yield (line, docstring) of the names of a module that are not public, or of those that are."""
    relative = path.relative_to(SOURCE.parent).with_suffix("")
    module = ".".join(relative.parts).removesuffix(".__init__")
    for line, names, text in parsed(path)[1]:
        if any((module, name) in public_names() for name in names) is public:
            yield line, text


def test_numpydoc_sections_stand_in_public_docstrings_alone():
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, text in docstrings(path)
        if SECTION.search(text)
    ]
    assert found == []


def test_public_objects_have_docstrings():
    public = [*((scalable, n) for n in scalable.__all__), *((providers, n) for n in dir(providers))]
    without = [name for package, name in public if not getattr(package, name).__doc__]
    assert without == []


# Language -----------------------------------------------------------------------------------------

#: Words and phrases that are not plain English, or not the field's (CONTRIBUTING, "Language").
ODD = {
    "None after a semicolon": re.compile(r"; None\b"),
    "is no": re.compile(r"(?<![Tt]here )\b(?:is|are) no (?!longer\b|more\b)\w"),
    "an opening": re.compile(r"\A(?:Let|Have|Tell|Whoever|Whether)\b"),
    "told": re.compile(r"\btold\b"),
    "anew": re.compile(r"\banew\b"),
    "beside": re.compile(r"\bbeside\b"),
    "way out": re.compile(r"\bway out\b"),
}
LONGEST_SENTENCE = 35


def odd_in(text):
    """Return what is odd in a docstring, apart from names of code."""
    text = re.sub(r"``.*?``", "``", text, flags=re.DOTALL)
    found = [name for name, pattern in ODD.items() if pattern.search(text)]
    first = re.split(r"(?<=[.:])\s|\n\s*\n", text.strip())[0]
    if len(first.split()) > LONGEST_SENTENCE:
        found.append("a long first sentence")
    return found


def test_docstrings_are_plain():
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {', '.join(odd)}"
        for path in sorted(SOURCE.rglob("*.py"))
        for kind in (False, True)
        for line, text in docstrings(path, public=kind)
        if (odd := odd_in(text))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "odd"),
    [
        ("Return the port; None if there is none.", ["None after a semicolon"]),
        ("A failure is no result.", ["is no"]),
        ("Return why the task is no longer queued.", []),
        ("Return whether ``anew`` is set, if there is no file.", []),
        ("Let other processes connect.", ["an opening"]),
        ("Return what the user was told.", ["told"]),
        ("Make the file anew, beside the old one.", ["anew", "beside"]),
        ("Return " + "a " * 40 + "word.", ["a long first sentence"]),
    ],
)
def test_the_search_finds_odd_docstrings(text, odd):
    assert odd_in(text) == odd


# The field's words --------------------------------------------------------------------------------

ROOT = SOURCE.parents[1]
#: Words that stand for a term of the field (CONTRIBUTING, "Language"), and the term. The conditions
#: around a word leave out its other meanings: "took its place", "segmentation fault", "has room".
INVENTED = {
    "call: task": r"\b(?:the|this|each|every|running|waiting|queued|failed|cached|inside a|: a)"
    r" calls?\b(?! of)|(?:\d|number of) calls?\b|\bcalls (?:run|wait|fail)",
    "remember: cache": r"\bremember",
    "found: cache hit": r"(?:\d|\{\}) found\b|\bfound results\b|^\W*found:",
    "missed: cache miss": r"(?:\d|\{\}) missed\b",
    "place: backend, site": r"(?<!\bin )(?<!(?:ook|ken|.in) its )\bplaces?\b",
    "try: attempt": r"\btried again\b|\btries\b|\b(?:this|later|next|first|last) try\b",
    "live page: dashboard": r"\blive pages?\b",
    "taken back: preempted": r"\b(?:take|taken|took)\b[\w ]{0,20}\bback\b",
    "carry: upload": r"\bcarr(?:y|ies|ied)\b",
    "wanted: desired": r"(?<!-)\bwanted\b",
    "fault: error": r"(?<!segmentation )\bfault(?:s|y)?\b",
    "way out: hint": r"\bways? out\b",
    "lock: digest": r"\block:|^lock$|\b(?:its|manifest's|plan's) lock\b|\block %",
    "front: choices": r"(?<!-)\bfront\b(?! of you)",
    "spill: fall back": r"\bspill(?:s|ed)?\b",
    "night: soak test": r"(?<!every )(?<!another )\bnights?\b",
    "bar: goal": r"\bbars?\b",
    "room: package": r"(?<!has )\brooms?\b",
    "floor: layer": r"\bfloors?\b",
    "mend: fix": r"\bmend",
    "text: string": r"\ba text\b|\btexts\b|\b(?:be|not|valid) text\b|\btext as keys\b",
    "verb: command": r"\bverbs?\b",
    "anew: again": r"\banew\b",
    "beside: next to": r"\bbeside\b",
}

WORDS = {name: re.compile(word, re.IGNORECASE) for name, word in INVENTED.items()}


def invented_in(text):
    """Return which invented words a text has, apart from code in backticks and shell scripts."""
    if text.startswith("#!"):
        return []
    text = re.sub(r"``.*?``|`[^`]*`", "``", text, flags=re.DOTALL)
    return [name for name, word in WORDS.items() if word.search(text)]


def prose(page):
    """Yield (line, paragraph) of a page, without blocks of code, comments and targets of links."""
    code = re.compile(r"^ *```.*?^ *```|<!--.*?-->", re.DOTALL | re.MULTILINE)
    text = code.sub(lambda block: "\n" * block[0].count("\n"), page.read_text())
    line = 1
    for part in re.split(r"(\n\s*\n)", re.sub(r"\]\([^)]*\)", "]", text)):
        yield line, part
        line += part.count("\n")


def literals_in(tree, *, documented):
    """Yield (line, text) of the strings that users may read, including the help of commands."""
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped.update(ast.walk(node))
            parts = (v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Expr) and not documented:
            skipped.add(node.value)  # a docstring
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            # A single word is a name, unless it is a heading or a label.
            is_read = re.search(r"\w\W* \W*\w|^[A-Z][a-z]", node.value)
            yield from [(node.lineno, node.value)] if is_read and node not in skipped else []


def literals(module):
    """Yield (line, text) of the strings of a module that users may read."""
    return parsed(module)[2]


def labels(page):
    """Yield (line, text) of what a template or a script shows in the browser."""
    for line, text in enumerate(page.read_text().splitlines(), 1):
        if page.suffix == ".html":
            yield line, re.sub(r"\{\{.*?\}\}|\{%.*?%\}|<.*?>", " ", text)
        else:
            strings = re.findall(r'"([^"]*)"|`([^`]*)`', re.sub(r"\$\{[^}]*\}", "{}", text))
            yield from ((line, s) for s in map("".join, strings) if " " in s or s.istitle())


READ_BY_USERS = {
    prose: [
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
        *(ROOT / "README.md", ROOT / "CHANGELOG.md"),
    ],
    literals: sorted(SOURCE.rglob("*.py")),
    labels: sorted([*SOURCE.rglob("*.html"), *SOURCE.rglob("*.js")]),
}


@pytest.mark.parametrize("texts_of", READ_BY_USERS)
def test_users_read_the_terms_of_the_field(texts_of):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {'; '.join(words)}"
        for path in READ_BY_USERS[texts_of]
        for line, text in texts_of(path)
        if (words := invented_in(text))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("each call waits at its place", ["call: task", "place: backend, site"]),
        ("each call of a function; another job took its place", []),
        ("Cached results: 2 found, remembered", ["remember: cache", "found: cache hit"]),
        ("no file was found in place of `remembered.jsonl`", []),
        ("failed, tried again after 3 tries", ["try: attempt"]),
        ("the machine was taken back; AWS took it back", ["taken back: preempted"]),
        ("Lock: 12ab", ["lock: digest"]),
        ("a lock, a segmentation fault, and a node that has room", []),
        ("Wanted", ["wanted: desired"]),
        ("a tag is a text", ["text: string"]),
        ("text for people, in `scalable plan --front`", []),
    ],
)
def test_the_search_finds_invented_words(text, words):
    assert invented_in(text) == words


def test_the_search_reads_pages_messages_and_labels(tmp_path):
    page, module, script = (tmp_path / name for name in ("a.md", "a.py", "a.js"))
    page.write_text("One.\n\n```\nmade anew\n```\n\nMade anew, see [more](anew.md).\n")
    module.write_text('"""Made anew."""\nraise ValueError(f"{x} is made anew", "anew", "Anew")\n')
    script.write_text('draw("anew", "Anew", `${anew} made anew`);\n')
    assert [text for _, text in prose(page) if "anew" in text] == ["Made anew, see [more].\n"]
    assert [text for _, text in literals(module)] == ["{} is made anew", "Anew"]
    assert [text for _, text in labels(script)] == ["Anew", "{} made anew"]
