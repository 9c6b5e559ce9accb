"""What ``scalable init`` writes is right as it stands."""

import ast

import pytest

from scalable.manifest import starter_manifest, starter_workflow


@pytest.mark.parametrize("name", [
    "demo", "my-project_2", "true", "Null", "007", "a: b", "#x", "", "ä 'q' \"d\" \\", "${HOME}",
    "a\nb",
])  # fmt: skip
def test_it_loads_without_warnings(load, diagnose, name):
    text = starter_manifest(name)
    if name in ("", "a\nb"):
        assert [d.dotted_path for d in diagnose(text.encode())] == ["project.name"]
        return
    manifest = load(text.encode())
    assert manifest.warnings == ()
    assert manifest.project_name == name
    assert manifest.target_names == ("local", "hpc")


def test_its_account_comes_from_the_environment(load):
    manifest = load(starter_manifest("demo").encode(), environ={"SLURM_ACCOUNT": "0042"})
    assert manifest.resolve("hpc").spec.options["account"] == "0042"


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
