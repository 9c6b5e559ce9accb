"""Overlays, the request that a manifest makes, its lock, and places of later findings."""

from pathlib import Path

import pytest

from scalable.errors import ManifestError
from scalable.manifest import Manifest, read_targets
from scalable.model import (
    ComponentSpec,
    Diagnostic,
    ManagerSpec,
    RetryPolicy,
    TaskSpec,
    WorkerRange,
)

DOCUMENT = """\
version: 1
project: {name: p, local_cache: .cache}
targets:
  dev:
    provider: Local
    max_workers: 2
  big:
    provider: slurm
    overlay: big
    queue: short
    directives: [--a, --b]
    adaptive: {minimum: 1, maximum: 3}
components:
  model:
    cpus: 1
    env: {A: a, B: b}
    tags: [x, y]
  post:
tasks:
  run: {component: model, count: 3}
overlays:
  big:
    project:
      name: p-big
    targets:
      big:
        queue: long
        directives: [--c]
        adaptive:
          maximum: 30
    components:
      model:
        cpus: 16
        env: {B: bb, C: c}
        tags: [z]
      extra:
        gpus: 1
    tasks:
      run:
        count: 300
"""


def test_the_overlay_of_the_target_is_merged_deeply(load):
    spec = load(DOCUMENT).resolve("big").spec
    assert spec.project_name == "p-big"
    assert spec.local_cache == ".cache"
    assert spec.tags == ("model", "post", "extra")
    model = spec.components["model"]
    assert (model.cpus, model.tags) == (16, ("z",))
    assert model.env == {"A": "a", "B": "bb", "C": "c"}
    assert spec.options["queue"] == "long"
    assert spec.options["directives"] == ["--c"]
    assert spec.adaptive == WorkerRange(1, 30)
    assert spec.tasks["run"].count == 300
    assert spec.tasks["run"].component == "model"


def test_a_target_without_overlay_sees_none(load):
    spec = load(DOCUMENT).resolve("dev").spec
    assert spec.project_name == "p"
    assert spec.tags == ("model", "post")
    assert spec.components["model"].cpus == 1


def test_null_in_an_overlay_takes_a_value_away(load):
    text = DOCUMENT.replace("adaptive:\n          maximum: 30", "adaptive:").replace(
        "queue: long", "queue: ~"
    )
    spec = load(text).resolve("big").spec
    assert spec.adaptive is None
    assert spec.options["queue"] is None
    assert "queue" not in spec.written_options


@pytest.mark.parametrize(("old", "new", "expected"), [
    ("cpus: 16", "cpus: x", ["E_BAD_OPTION@33:15 components.model.cpus"]),
    ("cpus: 16", "cpu: 1", ["E_UNKNOWN_COMPONENT_KEY@33:9 components.model.cpu"]),
    ("queue: long", "quee: a", ["E_UNKNOWN_TARGET_OPTION@27:9 targets.big.quee"]),
    ("maximum: 30", "maximum: 0", ["E_BAD_OPTION@12:5 targets.big.adaptive"]),
    ("count: 300", "component: no", ["E_TASK_COMPONENT_REF@40:20 tasks.run.component"]),
    ("name: p-big", "nam: x", ["E_BAD_OPTION@24:7 project.nam"]),
    ("      extra:\n        gpus: 1", "      extra: 1", ["E_BAD_OPTION@36:14 components.extra"]),
])  # fmt: skip
def test_faults_of_the_merged_result_point_into_the_overlay(faults, old, new, expected):
    assert old in DOCUMENT
    in_schema = "targets" not in expected[0]
    assert faults(DOCUMENT.replace(old, new, 1), in_schema=in_schema) == expected


def test_overlays_that_no_target_names_are_checked_too(faults):
    text = DOCUMENT.replace("    overlay: big\n", "").replace("cpus: 16", "cpus: -1")
    assert faults(text) == ["E_BAD_OPTION@32:15 components.model.cpus"]


def test_every_field_of_the_request_is_filled(spec_of, tmp_path):
    spec = spec_of("""\
        version: 1
        project: {name: p, default_storage: s3://b, local_cache: c}
        targets:
          t:
            provider: slurm
            queue: q
            scheduler: login
            adaptive: {minimum: 1}
            idle_timeout: 10m
            time_to_live: 8h
            spill_after: 90
            price_per_core_hour: 0.05
        components:
          a:
            image: i
            runtime: podman
            cpus: 2.5
            memory: 20G
            gpus: 1
            slots: 2
            mounts: {~/x: /x, ./y: /y}
            env: {A: 1}
            preload_script: p.py
            workers: {minimum: 1, maximum: 4}
            tags: [u]
          b: {workers: 3}
        tasks:
          one:
            component: a
            cache: true
            outputs: [f]
            count: 2
            duration: 1m30s
            memory: 1G
            retries: {count: 3, backoff: 10s, on: [IOError, OutOfMemory, a.b.C]}
            memory_on_retry: 1.5x
          two: {component: b, outputs: {name: path}, after: [one], retries: 2}
          three: {component: b, memory_on_retry: 2}
        managers:
          - {target: t, priority: 2, limits: {a: 5}}
        """)
    assert spec.components["a"] == ComponentSpec(
        name="a",
        image="i",
        runtime="podman",
        cpus=2.5,
        memory="20G",
        gpus=1,
        slots=2,
        mounts={"~/x": "/x", "./y": "/y"},
        env={"A": "1"},
        preload_script="p.py",
        workers=WorkerRange(1, 4),
        tags=("u",),
    )
    assert spec.components["b"] == ComponentSpec(name="b", workers=WorkerRange(3, 3))
    assert spec.tasks == {
        "one": TaskSpec(
            "one",
            "a",
            True,
            ("f",),
            2,
            90.0,
            "1G",
            retries=RetryPolicy(3, 10.0, ("OSError", "OutOfMemory", "a.b.C"), 1.5),
        ),
        "two": TaskSpec("two", "b", outputs=("path",), after=("one",), retries=RetryPolicy(2)),
        "three": TaskSpec("three", "b", retries=RetryPolicy(1, 0.0, ("OutOfMemory",), 2.0)),
    }
    assert (spec.target_name, spec.provider_name) == ("t", "slurm")
    assert spec.written_options == {"queue", "scheduler"}
    assert spec.options["scheduler_port"] == 8786
    assert "provider" not in spec.options
    assert spec.adaptive == WorkerRange(1, None)
    assert (spec.idle_timeout_s, spec.time_to_live_s, spec.spill_after_s) == (600, 28800, 90)
    assert spec.price_per_core_hour == 0.05
    assert spec.managers == (ManagerSpec("t", 2, {"a": 5}),)
    assert (spec.local_cache, spec.default_storage) == ("c", "s3://b")
    assert spec.workflow_dir == str(tmp_path)


def test_a_provider_without_a_model_takes_any_option(spec_of):
    spec = spec_of("""\
        version: 1
        project: {name: p}
        targets: {t: {provider: MINE, flavour: [sweet, 1], max_workers: "4", deep: {a: ~, b: 2}}}
        components: {a: }
        """)
    assert spec.provider_name == "mine"
    assert spec.options == {"flavour": ["sweet", 1], "max_workers": "4", "deep": {"b": 2}}
    assert spec.written_options == {"flavour", "max_workers", "deep"}


def test_names_and_places_of_the_manifest(load, tmp_path):
    manifest = load(DOCUMENT)
    assert manifest.path == Path("m.yaml")
    assert manifest.directory == tmp_path
    assert manifest.project_name == "p"
    assert manifest.target_names == ("dev", "big")
    assert manifest.provider_of("dev") == "local"
    assert manifest.warnings == ()
    assert read_targets("m.yaml") == {"dev": "local", "big": "slurm"}


@pytest.mark.parametrize("ask", [Manifest.resolve, Manifest.provider_of])
def test_an_unknown_target_lists_the_targets(load, ask):
    with pytest.raises(ManifestError) as caught:
        ask(load(DOCUMENT), "bog")
    (found,) = caught.value.diagnostics
    assert (found.code, found.line, found.column) == ("E_UNKNOWN_TARGET", 3, 1)
    assert "did you mean 'big'?" in found.hint
    assert "dev, big" in found.hint


@pytest.mark.parametrize("target", [None, 3, True, [], ["dev"], Path("dev")])
@pytest.mark.parametrize("ask", [Manifest.resolve, Manifest.provider_of])
def test_a_target_that_is_not_text_lists_the_targets(load, ask, target):
    with pytest.raises(ManifestError) as caught:
        ask(load(DOCUMENT), target)
    (found,) = caught.value.diagnostics
    assert (found.code, found.line, found.column) == ("E_UNKNOWN_TARGET", 3, 1)
    assert caught.value.message == f"a target must be given by its name, not {target!r}"
    assert found.hint == caught.value.hint == "targets: dev, big"


@pytest.mark.parametrize("data", [None, "version: 1", [1], 3])
def test_a_manifest_of_plain_values_must_be_a_map(data, models):
    with pytest.raises(ManifestError) as caught:
        Manifest.from_mapping(data, models)
    (found,) = caught.value.diagnostics
    assert found.message == "a manifest must be a map of keys to values"


def test_loading_for_an_unknown_target(faults):
    assert faults(DOCUMENT, target="bog") == ["E_UNKNOWN_TARGET@3:1 targets"]


@pytest.mark.parametrize(("path", "place"), [
    (("targets", "big", "queue"), (27, 16)),
    (("targets", "big", "provider"), (8, 15)),
    (("targets", "big", "walltime"), (7, 3)),
    (("components", "model", "cpus"), (33, 15)),
    (("components", "model", "env", "A"), (16, 14)),
    (("components", "model", "tags", 0), (35, 16)),
    (("components", "post"), (18, 3)),
    (("components", "extra", "gpus", "x"), (37, 15)),
    (("nothing",), (1, 1)),
    ((), (1, 1)),
])  # fmt: skip
def test_locate(load, path, place):
    found = load(DOCUMENT).resolve("big").locate(Diagnostic("E_X", path, "m", "h"))
    assert (found.file, found.line, found.column) == ("m.yaml", *place)
    assert found.excerpt.splitlines()[1] == " " * (place[1] - 1) + "^"
    assert (found.code, found.path, found.message, found.hint) == ("E_X", path, "m", "h")


def test_locate_keeps_a_place_that_is_known(load):
    known = Diagnostic("E_X", ("targets",), "m", file="other", line=7, column=1)
    assert load(DOCUMENT).resolve("big").locate(known) == known


def test_whole_numbers_are_written_without_a_point(load):
    text = SMALL.replace("provider: slurm", "provider: mine\n    x: [4.0, 4.5]")
    resolved = load(text.replace("cpus: 2", "cpus: 2.0")).resolve("t")
    assert "cpus: 2\n" in resolved.to_yaml()
    assert "- 4\n    - 4.5\n" in resolved.to_yaml()


def test_a_policy_of_managers_with_its_places(load):
    policy = "managers: {policy: cheapest, places: [{target: dev}]}\n"
    resolved = load(DOCUMENT + policy).resolve("big")
    assert resolved.spec.managers == (ManagerSpec("dev"),)
    assert resolved.spec.manager_policy == "cheapest"
    assert set(resolved.data["targets"]) == {"big", "dev"}
    listed = load(DOCUMENT + "managers: [{target: dev}]\n").resolve("big")
    assert listed.spec.manager_policy == "waterfall"
    assert resolved.lock != listed.lock
    alone = load(DOCUMENT + "managers: {policy: cheapest}\n").resolve("big").spec
    assert (alone.manager_policy, alone.managers) == ("cheapest", ())


def test_a_literal_dollar_survives_being_written(load):
    text = "version: 1\nproject: {name: p}\ntargets: {t: {provider: local}}\n"
    resolved = load(f"{text}components: {{a: {{env: {{A: '$${{X}}', B: 010, C: 0o7}}}}}}").resolve(
        "t"
    )
    assert resolved.data["components"]["a"]["env"] == {"A": "${X}", "B": "010", "C": "0o7"}
    assert load(resolved.to_yaml()).resolve("t").data == resolved.data


SMALL = """\
version: 1
project: {name: p}
targets:
  t:
    provider: slurm
    account: 7
    walltime: 12:00:00
    n_workers: 2
components: {a: {cpus: 2, env: {X: 1, Y: two}}, b: }
tasks: {r: {component: a, after: []}}
"""


@pytest.mark.parametrize("same", [
    "# a comment\n" + SMALL,
    SMALL.replace("provider: slurm", "provider: SLURM"),
    SMALL.replace("account: 7", 'account: "7"'),
    SMALL.replace("cpus: 2", "cpus: 2.0"),
    SMALL.replace("cpus: 2, env: {X: 1, Y: two}", "env: {Y: two, X: '1'}, cpus: 2"),
    SMALL.replace("n_workers: 2", "n_workers: ${N:-2}"),
    SMALL.replace("b: }", "b: {}}"),
    SMALL.replace("targets:\n", "targets:\n  u: {provider: local}\n"),
    SMALL.replace("cpus: 2", "cpus: 2, gpus: "),
    SMALL + "overlays: {o: {components: {a: {cpus: 3}}}}\n",
])  # fmt: skip
def test_the_lock_does_not_depend_on_how_it_is_written(load, same):
    assert load(same).resolve("t").lock == load(SMALL).resolve("t").lock


def test_the_lock_follows_the_environment(load):
    text = SMALL.replace("n_workers: 2", "n_workers: ${N:-2}")
    assert load(text, environ={"N": "3"}).resolve("t").lock != load(text).resolve("t").lock


def test_the_same_from_yaml_toml_json_and_a_mapping(load, models, tmp_path):
    toml = """\
        version = 1
        project.name = "p"
        [targets.t]
        provider = "slurm"
        account = "7"
        walltime = 12:00:00
        n_workers = "${N:-2}"
        [components.a]
        cpus = 2
        env = {X = 1, Y = "two"}
        [components.b]
        [tasks.r]
        component = "a"
        after = []
        """
    json = (
        '{"version": 1,\t"project": {"name": "p"}, "targets": {"t": {"provider": "slurm", "account"'
        ': "7", "walltime": "12:00:00", "n_workers": "${N:-2}"}}, "components": {"a": {"cpus": 2, '
        '"env": {"X": 1, "Y": "two"}}, "b": {}}, "tasks": {"r": {"component": "a", "after": []}}}'
    )
    mapping = {
        "version": 1,
        "project": {"name": "p"},
        "targets": {
            "t": {"provider": "slurm", "account": 7, "walltime": "12:00:00", "n_workers": 2}
        },
        "components": {"a": {"cpus": 2, "env": {"X": 1, "Y": "two"}}, "b": None},
        "tasks": {"r": {"component": "a", "after": ()}},
    }
    reference = load(SMALL).resolve("t")
    made = Manifest.from_mapping(mapping, models, directory=tmp_path)
    assert made.path is None
    assert made.directory == tmp_path
    for manifest in (load(toml, suffix=".toml"), load(json, suffix=".json"), made):
        resolved = manifest.resolve("t")
        assert resolved.data == reference.data
        assert resolved.lock == reference.lock
        assert resolved.spec == reference.spec


def test_a_mapping_starts_where_we_are(models, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    data = {
        "version": 1,
        "project": {"name": "p"},
        "targets": {"local": {"provider": "local", "dashboard_address": Path(":0")}},
        "components": {"a": {}},
    }
    resolved = Manifest.from_mapping(data, models).resolve("local")
    assert resolved.spec.workflow_dir == str(tmp_path)
    found = resolved.locate(Diagnostic("E_X", ("targets", "local"), "m"))
    assert (found.file, found.line, found.excerpt) == (None, None, None)
