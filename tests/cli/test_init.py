"""``scalable init`` and ``scalable schema``, and that what they write is good for the other verbs."""

import json

import pytest
import yaml

FILES = ["scalable.yaml", "workflow.py", "scalable.schema.json"]
INIT = """\
wrote scalable.yaml, workflow.py, scalable.schema.json
next:
  scalable validate
  scalable run --target local
"""


def names(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def here(tmp_path, monkeypatch):
    directory = tmp_path / "my-model"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


def test_a_new_project_validates_and_plans(here, invoke):
    import jsonschema  # takes a second: not where tests are only collected

    result = invoke("init")
    assert (result.code, result.out, result.err) == (0, INIT, "")
    assert names(here) == sorted(FILES)
    manifest = yaml.safe_load((here / "scalable.yaml").read_text())
    assert manifest["project"]["name"] == "my-model"
    schema = json.loads((here / "scalable.schema.json").read_text())
    jsonschema.validate(manifest, schema)
    assert invoke("validate").code == 0
    assert invoke("plan", "--target", "local").code == 0
    assert invoke("run", "--target", "local", "--dry-run").out == invoke("plan").out


def test_elsewhere_the_commands_to_run_name_the_manifest(here, invoke):
    result = invoke("init", "a new/place", "--name", "Löss & Lehm")
    assert result.code == 0
    assert names(here / "a new" / "place") == sorted(FILES)
    manifest = yaml.safe_load((here / "a new" / "place" / "scalable.yaml").read_text())
    assert manifest["project"]["name"] == "Löss & Lehm"
    assert result.out.endswith(
        "next:\n  scalable validate 'a new/place/scalable.yaml'\n"
        "  scalable run 'a new/place/scalable.yaml' --target local\n"
    )
    assert invoke("validate", "a new/place/scalable.yaml").code == 0
    value = json.loads(invoke("init", "other", "--format", "json").out)
    assert (value["version"], value["next"][0]) == (1, "scalable validate other/scalable.yaml")
    assert value["files"] == [f"other/{name}" for name in FILES]


def test_nothing_is_replaced_without_force(here, invoke):
    (here / "workflow.py").write_text("mine")
    result = invoke("init")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "error: workflow.py already exists\n  hint: nothing was written; use --force to replace "
        "existing files\n"
    )
    assert names(here) == ["workflow.py"]
    assert (here / "workflow.py").read_text() == "mine"
    assert invoke("init", "--force").code == 0
    assert "ScalableSession" in (here / "workflow.py").read_text()


def test_a_directory_that_cannot_be_made(here, invoke):
    (here / "file").touch()
    assert invoke("init", "file").code == 2
    result = invoke("init", "file/below")
    assert result.code == 1
    assert "Not a directory" in result.err


def test_the_schema_is_plain_in_both_forms(here, invoke):
    import jsonschema

    result = invoke("schema")
    assert (result.code, result.err) == (0, "")
    schema = json.loads(result.out)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert set(schema["required"]) == {"version", "project", "targets", "components"}
    assert "version" not in schema
    assert invoke("schema", "--format", "json").out == result.out
    assert invoke("schema", "--output", "s.json").out == ""
    assert (here / "s.json").read_text() == result.out
    assert invoke("init").code == 0
    assert (here / "scalable.schema.json").read_text() == result.out
