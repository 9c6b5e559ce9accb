"""What ``scalable init`` writes is right as it stands."""

import ast

import pytest
import yaml

from scalable.manifest import json_schema, starter_manifest, starter_workflow


@pytest.mark.parametrize(
    "name",
    [
        "demo",
        "my-project_2",
        "true",
        "Null",
        "007",
        "a: b",
        "#x",
        "",
        "ä 'q' \"d\" \\",
        "${HOME}",
        "a\nb",
    ],
)
def test_it_loads_without_warnings(load, diagnose, name):
    text = starter_manifest(name)
    if name in ("", "a\nb"):
        assert [d.dotted_path for d in diagnose(text.encode())] == ["project.name"]
        return
    manifest = load(text.encode())
    assert manifest.warnings == ()
    assert manifest.project_name == name
    assert manifest.target_names == ("local", "hpc")


def test_the_starter_manifest_has_a_local_and_a_slurm_target(load):
    text = starter_manifest("demo")
    modeline = "# yaml-language-server: $schema=./scalable.schema.json"
    assert text.splitlines()[0] == modeline
    manifest = load(text.encode())
    local, hpc = manifest.resolve("local").spec, manifest.resolve("hpc").spec
    assert local.options["processes"] is True
    assert local.options["max_workers"] == 3
    assert hpc.provider_name == "slurm"
    assert hpc.options["account"] is None
    assert len(local.components) == 2
    assert all(task.expected_work_s for task in local.tasks.values())
    assert {task.component for task in local.tasks.values()} == set(local.components)


def test_its_account_comes_from_the_environment(load):
    manifest = load(starter_manifest("demo").encode(), environ={"SLURM_ACCOUNT": "0042"})
    assert manifest.resolve("hpc").spec.options["account"] == "0042"


def test_it_validates_against_the_schema(models):
    import jsonschema  # takes a second: not where tests are only collected

    jsonschema.validate(yaml.safe_load(starter_manifest("demo")), json_schema(models))


def test_the_workflow_uses_the_tasks_of_the_manifest(load):
    tree = ast.parse(starter_workflow())
    tasks = {
        keyword.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "task"
    }
    assert tasks == set(load(starter_manifest("demo").encode()).resolve("local").spec.tasks)


def test_the_workflow_runs_as_a_script(monkeypatch, capsys):
    class Future:
        def __init__(self, value):
            self.value = value

        def result(self):
            return self.value

    class Client:
        def submit(self, function, *args, task):
            plain = [[f.value for f in a] if isinstance(a, list) else a for a in args]
            return Future(function(*plain))

    class Session:
        from_yaml = classmethod(lambda cls: cls())
        __enter__ = lambda self: Client()  # noqa: E731
        __exit__ = lambda self, *error: None  # noqa: E731

    import scalable

    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setitem(vars(scalable), "ScalableSession", Session)
    exec(compile(starter_workflow(), "workflow.py", "exec"), {"__name__": "imported"})
    assert capsys.readouterr().out == ""
    exec(compile(starter_workflow(), "workflow.py", "exec"), {"__name__": "__main__"})
    assert "'runs': 20" in capsys.readouterr().out
