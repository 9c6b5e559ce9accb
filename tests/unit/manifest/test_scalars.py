"""Scalars by the core schema of YAML 1.2, and text that stays what was written."""

import pytest

from scalable.manifest.document import resolve_plain

DOCUMENT = """\
version: 1
project: {{name: p}}
targets: {{t: {{provider: {provider}, {option}: {value}}}}}
components: {{a: }}
"""


@pytest.mark.parametrize(("text", "value"), [
    ("", None), ("~", None), ("null", None), ("true", True), ("False", False), ("0", 0),
    ("-19", -19), ("+3", 3), ("00123", 123), ("0o17", 15), ("0x1F", 31), ("1.5", 1.5), (".5", 0.5),
    ("1.", 1.0), ("1e3", 1000.0), ("-.inf", float("-inf")), ("9" * 100, int("9" * 100)),
])  # fmt: skip
def test_typed(text, value):
    resolved = resolve_plain(text)
    assert (type(resolved), resolved) == (type(value), value)


@pytest.mark.parametrize("text", [
    *("yes", "no", "on", "off", "y", "n", "No", "OFF", "tRUE", "nuLL"),
    *("12:00:00", "1:30", "190:20:30", "2001-12-14", "2001-12-14t21:59:43.10-05:00"),
    *("1_000", "0b101", "0o8", "0x", "1e", ".", "-", "+", "-.", "e5", "1.2.3", "\u0661"),
    *("=", "<<", "4 ", "4G", "9" * 5000),
])  # fmt: skip
def test_text(text):
    assert resolve_plain(text) == text


@pytest.mark.parametrize(("option", "value"), [
    ("walltime", "12:00:00"),
    ("walltime", "1-12:00:00"),
    ("walltime", "90"),
    ("account", "no"),
    ("account", "00123"),
    ("account", "1e5"),
    ("account", "1.10"),
    ("account", "0x1F"),
    ("queue", "on"),
    ("queue", "2001-12-14"),
    ("worker_port_range", "40000:41000"),
    ("worker_port_range", "40000"),
])  # fmt: skip
def test_options_keep_what_was_written(load, option, value):
    text = DOCUMENT.format(provider="slurm", option=option, value=value)
    assert load(text).resolve("t").spec.options[option] == value


def test_memory_and_project_keep_what_was_written(spec_of):
    spec = spec_of("""\
        version: 1
        project: {name: 007}
        targets: {t: {provider: local}}
        components: {a: {memory: 2000000000}, b: {memory: 1.5G}, c: {memory: "20G"}}
        """)
    assert spec.project_name == "007"
    assert [spec.components[tag].memory for tag in "abc"] == ["2000000000", "1.5G", "20G"]
    assert spec.resources("b").memory_bytes == 1_500_000_000


def test_env_keeps_what_was_written(spec_of):
    spec = spec_of("""\
        version: 1
        project: {name: p}
        targets: {t: {provider: kubernetes, env: {A: True, B: 010, C: 1.10}}}
        components:
          a:
            env: {A: True, B: 010, C: 1.10, D: yes, E: "x y", F: false, G: "", H: , I: ~, J: null}
        """)
    env = dict(spec.components["a"].env)
    assert env == {
        "A": "True", "B": "010", "C": "1.10", "D": "yes", "E": "x y", "F": "false", "G": "",
        "H": "",
    }  # fmt: skip
    assert spec.options["env"] == {"A": "True", "B": "010", "C": "1.10"}


def test_text_styles_of_yaml(load):
    manifest = load(
        "version: 1\nproject:\n  name: !!str 12\n  local_cache: >-\n    one\n    two\n"
        "  default_storage: 'it''s'\ntargets: {t: {provider: local}}\ncomponents: {a: }\n"
    )
    spec = manifest.resolve("t").spec
    assert (spec.project_name, spec.local_cache, spec.default_storage) == ("12", "one two", "it's")


def test_merge_keys_fill_what_is_not_written(spec_of):
    spec = spec_of("""\
        version: 1
        project: {name: p}
        targets: {t: {provider: local}}
        components:
          base: &base {cpus: 2, memory: 1G}
          more: &more {gpus: 1, cpus: 9}
          a: {<<: *base, cpus: 4}
          b: {<<: [*base, *more]}
        """)
    a, b = spec.components["a"], spec.components["b"]
    assert (a.cpus, a.memory) == (4, "1G")
    assert (b.cpus, b.memory, b.gpus) == (2, "1G", 1)


def test_a_merge_key_takes_maps(faults):
    text = "version: 1\nproject: {name: p}\ntargets: {t: {provider: local}}\n"
    assert faults(f"{text}components:\n  a:\n    <<: 3\n") == ["E_SYNTAX@6:5 components.a.<<"]
