"""Whatever is written: a manifest or a ManifestError, and one lock for one meaning."""

import json
import random
import string

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scalable.errors import ManifestError
from scalable.manifest import Manifest
from scalable.manifest.check import backward_edges
from scalable.manifest.document import resolve_plain
from scalable.providers.local.options import LocalOptions
from scalable.providers.slurm.options import SlurmOptions

MODELS = {"local": LocalOptions, "slurm": SlurmOptions, "mine": None}

# PyYAML, which dumps here, leaves 08 without quotes: names start with a letter.
names = st.text(string.ascii_letters + string.digits + "_", max_size=8).map(lambda text: f"n{text}")
lines = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp")),
    min_size=1,
    max_size=20,
).filter(lambda text: "${" not in text and not text.startswith("-"))


def optional(**keys):
    return st.fixed_dictionaries({}, optional=keys)


components = optional(
    image=lines,
    cpus=st.integers(1, 64) | st.floats(0.1, 64),
    memory=st.sampled_from(["1G", "2.5 GiB", "500000000"]),
    gpus=st.integers(0, 4),
    workers=st.integers(0, 9),
    env=st.dictionaries(names, lines, max_size=3),
    tags=st.lists(lines, max_size=3),
)
targets = optional(queue=lines, account=lines, n_workers=st.integers(1, 99)).map(
    lambda options: {"provider": "slurm", **options}
)


@st.composite
def manifests(draw):
    parts = draw(st.dictionaries(names, components, min_size=1, max_size=4))
    tag = st.sampled_from(sorted(parts))
    task = st.fixed_dictionaries({"component": tag}, optional={"count": st.integers(1, 99)})
    return {
        "version": 1,
        "project": {"name": draw(lines)},
        "targets": {"t": draw(targets), "other": {"provider": "local"}},
        "components": parts,
        "tasks": draw(st.dictionaries(names, task, max_size=3)),
    }


def shuffled(value, seed):
    """The same with keys in another order."""
    if isinstance(value, dict):
        items = list(value.items())
        random.Random(seed).shuffle(items)
        return {key: shuffled(item, seed) for key, item in items}
    return value


def from_text(tmp_path, text, suffix=".yaml"):
    path = tmp_path / f"m{suffix}"
    path.write_text(text, encoding="utf-8")
    return Manifest.load(path, MODELS, environ={})


def outcome(make):
    try:
        return make()
    except ManifestError as error:
        return error


def toml(data):
    """Write maps, lists, text and numbers as TOML."""
    if isinstance(data, dict):
        return "{" + ", ".join(f"{toml(k)} = {toml(v)}" for k, v in data.items()) + "}"
    if isinstance(data, list):
        return "[" + ",\n ".join(map(toml, data)) + "]"
    return json.dumps(data, ensure_ascii=False)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("manifests")


@given(data=manifests(), seed=st.integers(), flow=st.booleans())
def test_one_meaning_has_one_lock(directory, data, seed, flow):
    reference = Manifest.from_mapping(data, MODELS).resolve("t")
    mixed = shuffled(data, seed)
    dumped = yaml.safe_dump(mixed, default_flow_style=flow, sort_keys=False, allow_unicode=True)
    commented = "# first\n" + dumped.replace("\ncomponents:", "\n\n# more\ncomponents:")
    in_toml = "\n".join(f"{key} = {toml(value)}" for key, value in mixed.items())
    for text, suffix in (
        (dumped, ".yaml"),
        (commented, ".yaml"),
        (json.dumps(mixed, indent=2), ".json"),
        (in_toml, ".toml"),
    ):
        resolved = from_text(directory, text, suffix).resolve("t")
        assert resolved.data == reference.data
        assert resolved.lock == reference.lock


@given(data=manifests())
def test_the_written_manifest_resolves_to_itself(directory, data):
    resolved = Manifest.from_mapping(data, MODELS).resolve("t")
    again = from_text(directory, resolved.to_yaml()).resolve("t")
    assert (again.lock, again.data) == (resolved.lock, resolved.data)
    assert again.spec.components == resolved.spec.components


@given(data=manifests(), cpus=st.integers(65, 99))
def test_another_meaning_has_another_lock(data, cpus):
    before = Manifest.from_mapping(data, MODELS).resolve("t").lock
    tag = next(iter(data["components"]))
    changed = {**data, "components": {**data["components"], tag: {"cpus": cpus}}}
    assert Manifest.from_mapping(changed, MODELS).resolve("t").lock != before


@given(
    content=st.binary(max_size=200)
    | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))
    | st.lists(
        st.sampled_from(
            [
                *("version: 1", "\n", "  ", "- ", "targets:", "components:", "a: ", "{", "}", "["),
                *("]", "&a ", "*a", "<<: ", "${A}", "${", "'", '"', "!x ", "provider: local", "|"),
            ]
        ),
        max_size=30,
    ).map(lambda parts: "".join(parts).encode()),
    suffix=st.sampled_from([".yaml", ".toml", ".json"]),
)
def test_any_file_is_a_manifest_or_a_manifest_error(directory, content, suffix):
    path = directory / f"any{suffix}"
    path.write_bytes(content)
    made = outcome(lambda: Manifest.load(path, MODELS, environ={}))
    if isinstance(made, ManifestError):
        assert made.diagnostics
        assert all(d.code.startswith("E_") and d.file == str(path) for d in made.diagnostics)
        assert str(made)
    else:
        assert made.target_names


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@given(
    data=st.fixed_dictionaries(
        {"version": st.just(1) | json_values},
        optional={
            **dict.fromkeys(("project", "targets", "components", "tasks", "managers"), json_values),
            "overlays": st.dictionaries(
                names, st.dictionaries(st.sampled_from(["targets", "tasks"]), json_values)
            ),
        },
    )
    | st.fixed_dictionaries(
        {
            "version": st.just(1),
            "project": st.just({"name": "p"}),
            "targets": st.fixed_dictionaries({"t": st.just({"provider": "mine"}) | json_values}),
            "components": st.fixed_dictionaries({"a": json_values}),
            "tasks": st.dictionaries(names, json_values, max_size=2),
        }
    )
)
def test_any_mapping_is_a_manifest_or_a_manifest_error(data):
    made = outcome(lambda: Manifest.from_mapping(data, MODELS))
    if isinstance(made, ManifestError):
        assert all(d.code.startswith("E_") and d.message for d in made.diagnostics)
    else:
        for target in made.target_names:
            assert len(made.resolve(target).lock) == 64


@given(number=st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_read_as_they_are_printed(number):
    resolved = resolve_plain(json.dumps(number))
    assert resolved == number
    assert type(resolved) is type(number)


@given(st.dictionaries(names, st.lists(names, max_size=4), max_size=8))
def test_without_the_edges_that_are_found_nothing_is_cyclic(waits):
    found = backward_edges(waits)
    left = {name: list(others) for name, others in waits.items()}
    for cycle in found:
        for name, waited in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
            assert waited in waits[name]
        if cycle[0] in left[cycle[-1]]:
            left[cycle[-1]].remove(cycle[0])
    done: set[str] = set()
    while ready := {
        n for n, o in left.items() if n not in done and not set(o) & left.keys() - done
    }:
        done |= ready
    assert done == left.keys() or any(len(o) != len(set(o)) for o in waits.values())
