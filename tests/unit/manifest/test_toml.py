"""TOML: the same schema, with places found by a walk over the text."""

import pytest

DOCUMENT = '''\
# a comment with [brackets] = 1
version = 1
project = { name = "p", "default_storage" = 's3://[x]' }

[targets.local]
provider = "local"
processes = true

[targets."h.p.c"]
provider = "slurm"
walltime = 12:00:00
worker_port_range = """40000\\
:41000"""
directives = [
  "--a=b", # one
  '--c]',
]

[components]
a.cpus = 2
a.env = { X = 0x10, Y = 1.50, Z = true }
b = {}

[[managers]]
target = "local"

[[managers]]
target = "h.p.c"
[managers.limits]
a = 3
'''


def test_values(load):
    manifest = load(DOCUMENT, suffix=".toml")
    resolved = manifest.resolve("h.p.c")
    spec = resolved.spec
    assert spec.default_storage == "s3://[x]"
    assert spec.options["walltime"] == "12:00:00"
    assert spec.options["worker_port_range"] == "40000:41000"
    assert spec.options["directives"] == ["--a=b", "--c]"]
    assert spec.components["a"].env == {"X": "0x10", "Y": "1.50", "Z": "true"}
    assert [m.target for m in spec.managers] == ["local", "h.p.c"]
    assert spec.managers[1].limits == {"a": 3}


@pytest.mark.parametrize(("old", "new", "expected"), [
    ("version = 1", "version = 2", "E_BAD_VERSION@2:11 version"),
    ('"p"', "1.5.2", "E_SYNTAX@3:22 "),
    ("version = 1", "version = " + "1" * 5000, "E_SYNTAX@1:1 "),
    ("'s3://[x]'", "true", "E_BAD_OPTION@3:45 project.default_storage"),
    ("processes = true", "procesess = 1", "E_UNKNOWN_TARGET_OPTION@7:1 targets.local.procesess"),
    ("processes = true", "processes = 1", "E_BAD_OPTION@7:13 targets.local.processes"),
    ('provider = "slurm"', "", "E_MISSING_KEY@9:2 targets.h.p.c.provider"),
    ("12:00:00", "true", "E_BAD_OPTION@11:12 targets.h.p.c.walltime"),
    ("'--c]'", "true", "E_BAD_OPTION@16:3 targets.h.p.c.directives[1]"),
    ("a.cpus = 2", "a.cpus = '2'", "E_BAD_OPTION@20:10 components.a.cpus"),
    ("Y = 1.50", "Y = [1]", "E_BAD_OPTION@21:21 components.a.env.Y"),
    ("b = {}", "b = {cpu = 1}", "E_UNKNOWN_COMPONENT_KEY@22:6 components.b.cpu"),
    ('target = "h.p.c"', 'target = "no"', "E_BAD_OPTION@28:10 managers[1].target"),
    ("a = 3", "a = -3", "E_BAD_OPTION@30:5 managers[1].limits.a"),
    ("a = 3", "z = 3", "E_BAD_OPTION@30:1 managers[1].limits.z"),
    ("a = 3", "a = 3\na = 4", "E_DUPLICATE_KEY@31:6 "),
    ("[components]", "[components]\n[targets.local]", "E_DUPLICATE_KEY@20:15 "),
    ("b = {}", "b = ", "E_SYNTAX@22:5 "),
    ("b = {}", "[tasks]\nt.count = 3", "E_MISSING_KEY@23:1 tasks.t.component"),
    ("version = 1\n", "", "E_MISSING_KEY@1:1 version"),
])  # fmt: skip
def test_faults_have_places(faults, old, new, expected):
    assert old in DOCUMENT
    text = DOCUMENT.replace(old, new, 1)
    if expected.startswith("E_SYNTAX@3"):
        expected = faults(text, suffix=".toml")[0]
        assert expected.startswith("E_SYNTAX@3:")
    assert faults(text, suffix=".toml") == [expected]


def test_lists_of_tables_keep_their_places(faults):
    text = 'version = 1\nproject.name = "p"\nmanagers = [\n  {target = "x"},\n  {target = "y"}\n]\n'
    text += '[targets.t]\nprovider = "local"\n[components.a]\n'
    assert faults(text, suffix=".toml") == [
        "E_BAD_OPTION@4:13 managers[0].target",
        "E_BAD_OPTION@5:13 managers[1].target",
    ]


def test_text_that_is_one_variable_is_typed(load, faults):
    text = 'version = 1\nproject.name = "p"\n[targets.t]\nprovider = "local"\nmax_workers = "%s"\n'
    text += "[components.a]\n"
    manifest = load(text % "${N:-4}", suffix=".toml")
    assert manifest.resolve("t").spec.options["max_workers"] == 4
    for value in ("4", "1${N:-4}"):
        assert faults(text % value, suffix=".toml") == [
            "E_BAD_MAX_WORKERS@5:15 targets.t.max_workers"
        ]


@pytest.mark.parametrize("text", [
    "", "a = " + "[" * 5000, "a = " + "{b = " * 5000, "a." * 20_000 + "b = 1",
    "[" + "a." * 20_000 + "b]", "a = [" + "1, " * 1100 + "]", "a = 1" + "\n" * 2_000_000,
    "a = " + "[" * 101 + "]" * 101,
], ids=["empty", "lists", "maps", "key", "table", "values", "large", "deep"])  # fmt: skip
def test_unfit_files(diagnose, few_values, text):
    (found,) = diagnose(text.encode(), suffix=".toml")
    assert found.code == ("E_UNREADABLE" if len(text) > 1024**2 else "E_SYNTAX")
