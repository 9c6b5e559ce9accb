"""``scalable plan``."""

import json

import pytest

PLAN = """\
Target:    cluster (provider slurm)
Time:      not known
Cost:      1.25 USD an hour (price_per_core_hour of target 'cluster')
Digest:    {lock}

Workers:
  tag       workers  cpus  memory  gpus
  model           2     1       -     0
  analysis        1   0.5    100M     0

Tasks:
  simulate -> model
  reduce -> analysis

Why:
  - No time is predicted: neither an earlier run nor the manifest describes 'simulate', 'reduce'.
  - Add to the manifest: `tasks.simulate.count` and `tasks.simulate.duration`; `tasks.reduce.count`
    and `tasks.reduce.duration`.
"""


def test_a_plan_for_people(invoke, project):
    result = invoke("plan", "--target", "cluster", "--dry-run")
    lock = json.loads(invoke("plan", "--target", "cluster", "--format", "json").out)["plan"]
    assert (result.code, result.err) == (0, "")
    assert result.out == PLAN.format(lock=lock["manifest_lock"])
    assert "Cost:      not known: no price is given\n" in invoke("plan").out


def test_a_plan_for_programs(invoke, project):
    value = json.loads(invoke("plan", "--format", "json").out)
    assert list(value) == ["version", "plan"]
    assert value["version"] == 1
    plan = value["plan"]
    assert (plan["target_name"], plan["provider_name"]) == ("local", "local")
    assert plan["scale_plan"]["workers_by_tag"] == {"model": 2, "analysis": 1}
    assert plan["task_to_component"] == {"simulate": "model", "reduce": "analysis"}


def test_a_plan_in_a_file_is_the_plan_itself_with_the_lock_beside_it(invoke, project):
    (project / "plans").mkdir()
    arguments = ("plan", "--target", "cluster", "--dry-run")
    result = invoke(*arguments, "--output", "plans/plan.json")
    assert (result.code, result.out) == (0, "")
    assert result.err == "wrote plans/plan.json, plans/manifest.lock\n"
    plan = json.loads((project / "plans" / "plan.json").read_text())
    assert plan == json.loads(invoke(*arguments, "--format", "json").out)["plan"]
    lock = (project / "plans" / "manifest.lock").read_text()
    assert lock == plan["manifest_lock"] + "\n"
    assert len(lock) == 64 + 1
    int(lock, 16)


def test_a_plan_that_is_not_asked_for_as_a_file_writes_nothing(invoke, project):
    before = sorted(project.rglob("*"))
    assert invoke("plan", "--dry-run").code == 0
    assert sorted(project.rglob("*")) == before


def test_the_target_may_come_from_the_environment(invoke, project, monkeypatch):
    monkeypatch.setenv("SCALABLE_TARGET", "cluster")
    assert invoke("plan").out.startswith("Target:    cluster ")
    assert invoke("plan", "--target", "other").out.startswith("Target:    other ")


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["--target", "moon"], 2, "no target is called 'moon'"),
        (["--policy", "reckless"], 2, "'safe', 'aggressive', 'manual'"),
    ],
)
def test_invalid_plans_are_refused_and_write_no_file(arguments, code, word, invoke, project):
    result = invoke("plan", *arguments, "--output", "plan.json")
    assert (result.code, result.out) == (code, "")
    assert word in result.err
    assert not (project / "plan.json").exists()


def test_bounds_that_cannot_hold_are_faults(invoke, project):
    file = project / "scalable.yaml"
    file.write_text(file.read_text().replace("max_workers: 3", "max_workers: 2"))
    result = invoke("plan")
    assert result.code == 2
    assert "scalable.yaml:7:18: error E_BAD_OPTION" in result.err
    assert result.err.endswith("error: target 'local' cannot be used: 1 error\n")


def test_warnings_do_not_mix_with_the_plan(invoke, project):
    file = project / "scalable.yaml"
    file.write_text(file.read_text().replace("memory: 100M", "memory: 900T"))
    result = invoke("plan")
    assert "W_LARGER_THAN_MACHINE" in result.err
    assert result.out.startswith("Target:    local")
    assert invoke("plan", "--format", "json").err == ""


def test_the_script_of_a_job_is_shown_on_request(invoke, project):
    result = invoke("plan", "--target", "cluster", "--show-script")
    assert result.code == 0
    assert result.out.count("\n#!/bin/bash\n") == 2
    assert "#SBATCH --job-name=climate.scalable-ID.cluster@model\n" in result.out
    shown = json.loads(
        invoke("plan", "--target", "cluster", "--show-script", "--format", "json").out
    )
    assert set(shown["scripts"]) == {"model", "analysis"}


def test_scripts_are_shown_for_paths_that_other_machines_have(invoke, project):
    (project / "scalable.yaml").write_text(
        "version: 1\nproject: {name: p}\n"
        "targets:\n  c: {provider: slurm, walltime: 1h, container_runtime: apptainer}\n"
        "components:\n  m: {image: /images/m.sif, workers: 1, mounts: {/only/on/nodes: /data}}\n"
    )
    assert invoke("validate").code == 0
    result = invoke("plan", "--show-script")
    assert result.code == 0, result.err
    assert "/only/on/nodes" in result.out


def test_a_place_without_scripts_says_so(invoke, project):
    result = invoke("plan", "--target", "local", "--show-script")
    assert result.code == 4
    assert "has no job scripts" in result.err
