"""The JSON Schema itself; that it agrees with loading is asked by every test that loads."""

import json

import pytest

from scalable.manifest import json_schema

BASE = {
    "version": 1,
    "project": {"name": "p"},
    "targets": {"t": {"provider": "local"}},
    "components": {"a": None},
}


@pytest.fixture
def valid(models):
    import jsonschema  # takes a second: not where tests are only collected

    validator = jsonschema.Draft202012Validator(json_schema(models))
    return validator.is_valid


def test_it_is_a_schema_of_plain_json(models):
    import jsonschema

    schema = json_schema(models)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)
    assert json.loads(json.dumps(schema)) == schema


def test_it_describes_every_key(models):
    schema = json_schema(models)
    parts = [schema, *(schema["$defs"][k] for k in ("project", "component", "task", "manager"))]
    parts += [schema["$defs"][f"target_{name}"] for name in models if name != "mine"]
    for part in parts:
        assert part["properties"]
        for name, described in part["properties"].items():
            assert described.get("description"), name


def test_a_target_is_checked_by_the_branch_of_its_provider(valid):
    def target(**options):
        return valid({**BASE, "targets": {"t": options}})

    assert target(provider="local", max_workers=2)
    assert target(provider="LOCAL", max_workers=2)
    assert not target(provider="local", queue="q")
    assert not target(provider="Local", max_workers="2")
    assert target(provider="slurm", queue="q")
    assert not target(provider="slurm", max_workers=2)
    assert target(provider="mine", whatever=[1])
    assert not target(provider="mine", idle_timeout="soon")
    assert not target(provider="locale")
    assert not target(queue="q")
    assert target(provider="${P:-local}", whatever=1)


def test_variables_may_stand_for_values(valid):
    def component(**keys):
        return valid({**BASE, "components": {"a": keys}})

    assert component(cpus="${N}", memory="${M:-2}G", workers={"minimum": "${N:-1}"})
    assert not component(cpus="4${N}")
    assert not component(cpus="${1}")
    assert not component(memory="G")


def test_only_what_may_be_left_out_may_be_empty(valid):
    assert valid({**BASE, "tasks": None, "overlays": {"o": None}, "managers": None})
    places = [{"target": "local"}]
    assert valid({**BASE, "managers": {"policy": "cheapest", "places": places}})
    assert not valid({**BASE, "managers": {"policy": "best"}})
    assert not valid({**BASE, "managers": {"places": [{"limits": {}}]}})
    assert valid({**BASE, "components": {"a": {"cpus": None, "env": {"A": None}}}})
    assert not valid({**BASE, "project": {"name": None}})
    assert not valid({**BASE, "components": None})
    assert not valid({**BASE, "tasks": {"t": None}})


def test_overlays_are_partial_manifests(valid):
    def overlay(**sections):
        return valid({**BASE, "overlays": {"o": sections}})

    assert overlay(project={"local_cache": "x"}, tasks={"t": {"count": 2}})
    assert overlay(targets={"t": {"max_workers": 3}}, components={"a": {"cpus": 2}})
    assert not overlay(version=1)
    assert not overlay(components={"a": {"cpu": 2}})
    assert not overlay(targets={"t": {"adaptive": {"minimum": -1}}})
