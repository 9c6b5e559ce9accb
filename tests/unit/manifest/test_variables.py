"""Expansion of variables, and whose fault an unset one is."""

import pytest

from scalable.errors import ManifestError
from scalable.manifest import Manifest

DOCUMENT = """\
version: 1
project: {{name: p}}
targets:
  t:
    provider: local
    max_workers: {workers}
components:
  a:
    env:
      X: {text}
"""


def expanded(load, text, **environ):
    """What an environment variable of a component becomes."""
    manifest = load(DOCUMENT.format(workers=1, text=text), environ=environ)
    return manifest.resolve("t").spec.components["a"].env["X"]


@pytest.mark.parametrize(("text", "value"), [
    ("${V}", "v"),
    ("a${V}b${V}", "avbv"),
    ('"${V}"', "v"),
    ("$V", "$V"),
    ("$HOME/x", "$HOME/x"),
    ("${UNSET:-d}", "d"),
    ("${EMPTY:-d}", "d"),
    ("${V:-d}", "v"),
    ("x${EMPTY}", "x"),
    ("${UNSET:-}", ""),
    ("${UNSET:-a:-b c/$d}", "a:-b c/$d"),
    ("$${V}", "${V}"),
    ("$${V}-${V}", "${V}-v"),
    ("$$V", "$$V"),
    ("${NESTED}", "${V}"),
    ("${NUMBER}", "007"),
    ("${N1:-${V}}", None),
    ("${}", None),
    ("${1}", None),
    ("${V", None),
    ("${V-d}", None),
    ("${UNSET}", None),
])  # fmt: skip
def test_expansion(load, faults, text, value):
    environ = {"V": "v", "EMPTY": "", "NESTED": "${V}", "NUMBER": "007"}
    if value is None:
        found = faults(DOCUMENT.format(workers=1, text=text), environ=environ)
        assert set(found) == {"E_BAD_OPTION@10:10 components.a.env.X"}
    else:
        assert expanded(load, text, **environ) == value


@pytest.mark.parametrize(("text", "environ", "workers"), [
    ("${N:-4}", {}, 4), ("${N:-4}", {"N": "6"}, 6), ("${N}", {"N": "0x10"}, 16),
    ("${N:-}", {}, None),
])  # fmt: skip
def test_a_plain_scalar_that_is_one_variable_is_typed_again(load, text, environ, workers):
    manifest = load(DOCUMENT.format(workers=text, text=1), environ=environ)
    assert manifest.resolve("t").spec.options["max_workers"] == workers


@pytest.mark.parametrize("text", ['"${N:-4}"', "'${N:-4}'", "${N:-4}${M:-}", "1${N:-4}", "${N:-x}"])
def test_other_scalars_stay_text(faults, text):
    assert faults(DOCUMENT.format(workers=text, text=1), in_schema=False) == [
        "E_BAD_MAX_WORKERS@6:18 targets.t.max_workers"
    ]


def test_a_variable_without_value_is_left_out(load):
    text = DOCUMENT.format(workers=1, text=1).replace("max_workers: 1", "idle_timeout: ${T:-}")
    assert load(text).resolve("t").spec.idle_timeout_s is None


def test_keys_are_not_expanded(load):
    text = DOCUMENT.format(workers=1, text=1).replace("X:", '"${V}":')
    text = text.replace("env:", "mounts:")
    mounts = load(text, environ={"V": "v"}).resolve("t").spec.components["a"].mounts
    assert mounts == {"${V}": "1"}


def test_the_environment_of_the_process_is_the_default(load, tmp_path, monkeypatch, models):
    (tmp_path / "m.yaml").write_text(DOCUMENT.format(workers="${SCALABLE_TEST_N}", text=1))
    monkeypatch.setenv("SCALABLE_TEST_N", "5")
    manifest = Manifest.load(tmp_path / "m.yaml", models)
    assert manifest.resolve("t").spec.options["max_workers"] == 5


def test_an_environment_that_is_no_text_is_a_fault(faults):
    found = faults(DOCUMENT.format(workers=1, text="${V}"), environ={"V": "\udcff"})
    assert found == ["E_BAD_OPTION@10:10 components.a.env.X"]


def test_an_unset_variable_is_named_and_brings_no_further_faults(diagnose):
    (found,) = diagnose(DOCUMENT.format(workers="${NOPE}", text=1))
    assert "NOPE is not set" in found.message
    assert "${NOPE:-...}" in found.hint
    assert found.code == "E_BAD_OPTION"


def test_a_variable_in_flow_style_is_explained(diagnose):
    (found,) = diagnose("version: 1\nproject: {name: ${NAME:-p}}\n")
    assert (found.code, found.line) == ("E_SYNTAX", 2)
    assert "in quotes" in found.hint


TWO_TARGETS = """\
version: 1
project: {name: p}
targets:
  here:
    provider: local
  there:
    provider: slurm
    overlay: big
    account: ${ACCOUNT}
components:
  a:
overlays:
  big:
    components:
      a:
        memory: ${BIG}
  other:
    components:
      a:
        memory: ${OTHER}
"""


@pytest.mark.parametrize(
    ("target", "errors", "warnings"),
    [("here", [], [9, 16, 20]), ("there", [9, 16], [20]), (None, [9, 16, 20], [])],
)
def test_unset_variables_of_what_is_not_used_are_warnings(load, diagnose, target, errors, warnings):
    if errors:
        found = diagnose(TWO_TARGETS, target=target)
    else:
        found = load(TWO_TARGETS, target=target).warnings
    assert [d.line for d in found if d.severity == "error"] == errors
    assert [d.line for d in found if d.severity == "warning"] == warnings


def test_resolving_another_target_finds_what_was_a_warning(load):
    manifest = load(TWO_TARGETS, target="here")
    assert manifest.resolve("here").spec.target_name == "here"
    with pytest.raises(ManifestError) as caught:
        manifest.resolve("there")
    assert [d.line for d in caught.value.diagnostics] == [9, 16]


def test_an_unset_section_of_an_overlay_that_is_not_used(load):
    text = """\
        version: 1
        project: {name: p}
        targets: {t: {provider: local}}
        components: {a: }
        tasks: {t: {component: a}}
        overlays:
          o:
            components: ${NOPE}
        """
    assert [d.line for d in load(text, target="t", in_schema=False).warnings] == [8]


def test_the_provider_may_be_a_variable(load, faults):
    text = DOCUMENT.format(workers=1, text=1).replace("provider: local", "provider: ${P:-LOCAL}")
    assert load(text).provider_of("t") == "local"
    assert faults(text, environ={"P": "slurm"}, in_schema=False) == [
        "E_UNKNOWN_TARGET_OPTION@6:5 targets.t.max_workers"
    ]
