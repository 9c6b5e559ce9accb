"""``run`` and ``up`` with options that choose a plan, and with a plan that was made before."""

import json

import pytest

from scalable import ScalableSession
from scalable.errors import PlanError
from scalable.records import find
from scalable.runs.overview import list_runs

MANIFEST = """\
version: 1
project: {name: climate}
targets:
  local: {provider: local, max_workers: 4, price_per_core_hour: 0.5}
  apart: {provider: local, processes: true, max_workers: 4}
components:
  model: {cpus: 1}
  post: {cpus: 1}
tasks:
  simulate: {component: model, count: 12, duration: 60s}
  reduce: {component: post, count: 1, duration: 1s, after: [simulate]}
"""
WORKFLOW = """\
from scalable import ScalableSession

if __name__ == "__main__":
    session = ScalableSession.from_yaml()
    with session as client:
        assert client.submit(abs, -1, tag="model").result() == 1
        print({row["tag"]: row["to"] for row in session.scaling_history})
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scalable.yaml").write_text(MANIFEST)
    (tmp_path / "workflow.py").write_text(WORKFLOW)
    return tmp_path


def counts_in(file):
    return json.loads(file.read_text())["scale_plan"]["workers_by_tag"]


def recorded(place):
    (path,) = list_runs(place / ".scalable" / "runs")
    return json.loads((path / "plan.json").read_text())


def test_a_run_starts_the_plan_of_a_file(place, invoke):
    assert invoke("plan", "--deadline", "1h", "--output", "plan.json").code == 0
    data = json.loads((place / "plan.json").read_text())
    data["scale_plan"]["workers_by_tag"] = {"model": 1, "post": 2}  # no plan of its own
    (place / "plan.json").write_text(json.dumps(data))
    result = invoke("run", "--plan", "plan.json")
    assert result.code == 0, result.err
    assert result.out.startswith("{'model': 1, 'post': 2}\n")
    assert "plan: model 1, post 2; about " in result.err
    made = recorded(place)
    assert made["scale_plan"]["workers_by_tag"] == {"model": 1, "post": 2}
    assert made["objective"] == "minimize cost"


def test_options_choose_the_plan_that_is_shown(place, invoke):
    options = ("--deadline", "5m", "--policy", "aggressive")
    shown = json.loads(invoke("plan", *options, "--format", "json").out)["plan"]
    dry = json.loads(invoke("run", *options, "--dry-run", "--format", "json").out)["plan"]
    assert shown == dry
    result = invoke("run", *options)
    assert result.code == 0, result.err
    assert recorded(place)["scale_plan"] == shown["scale_plan"]
    assert recorded(place)["manifest_lock"] == shown["manifest_lock"]


def test_a_budget_limits_the_plan_and_the_cluster(place, invoke):
    result = invoke("run", "--budget", "0.2", "--policy", "aggressive")
    assert result.code == 0, result.err
    made = recorded(place)
    assert (made["objective"], made["budget"]) == ("minimize time", 0.2)
    assert made["cost_estimate"]["total"] <= 0.2
    assert invoke("run", "--budget", "0.01").code == 3
    assert "the cheapest plan costs" in invoke("run", "--budget", "0.01").err


def test_the_plan_of_the_command_wins_over_the_scripts(place, invoke):
    script = WORKFLOW.replace("with session as", "with session.start(session.plan()) as")
    (place / "workflow.py").write_text(script)
    result = invoke("run", "--objective", "minimize cost")
    assert result.code == 0, result.err
    assert result.out.startswith("{'model': 1, 'post': 1}\n")
    assert "the plan of `scalable run` is started" in result.err


@pytest.mark.parametrize("verb", ["run", "up"])
def test_a_changed_manifest_refuses_the_plan(place, invoke, verb):
    assert invoke("plan", "--target", "apart", "--output", "plan.json").code == 0
    text = MANIFEST.replace("duration: 60s", "duration: 61s")
    (place / "scalable.yaml").write_text(text)
    result = invoke(verb, "--plan", "plan.json")
    assert (result.code, result.out) == (3, "")
    assert "error: plan.json was made from another manifest" in result.err
    assert not (place / ".scalable").exists()
    # Comments and the order of keys do not count.
    (place / "scalable.yaml").write_text(f"# a comment\n{MANIFEST}")
    assert invoke("run", "--plan", "plan.json", "--dry-run").code == 0


@pytest.mark.parametrize("verb", ["run", "up"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--plan", "plan.json", "--objective", "balance"], "leave out --objective"),
        (["--plan", "plan.json", "--deadline", "1h", "--budget", "2"], "out --deadline, --budget"),
        (["--plan", "plan.json", "--target", "local"], "a plan for target 'apart', not for"),
        (["--plan", "no.json"], "no.json"),
    ],
)
def test_contradictions_are_usage_errors(place, invoke, verb, options, words):
    assert invoke("plan", "--target", "apart", "--output", "plan.json").code == 0
    result = invoke(verb, *options)
    assert (result.code, result.out) == (2, "")
    assert words in result.err


def test_a_running_cluster_has_its_workers(place, invoke, monkeypatch):
    for options in (["--objective", "balance"], ["--deadline", "1h", "--budget", "2"]):
        result = invoke("run", "--cluster", "one", *options)
        assert result.code == 2
        assert "`scalable up --name one`" in result.err
    monkeypatch.setenv("SCALABLE_CLUSTER", "two")
    assert "cluster 'two' already has workers" in invoke("run", "--deadline", "1h").err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "it is not JSON"),
        ("[1]", "plan is not an object"),
        ('{"version": 7, "plan": {}}', "version 7 is not supported"),
        ('{"target_name": "local"}', "plan has no 'provider_name'"),
    ],
)
def test_other_files_are_no_plans(place, invoke, text, words):
    (place / "plan.json").write_text(text)
    result = invoke("run", "--plan", "plan.json")
    assert (result.code, result.out) == (3, "")
    assert f"plan.json contains no plan: {words}" in result.err


def test_up_starts_and_changes_a_cluster(place, invoke):
    assert invoke("plan", "--target", "apart", "--deadline", "1h", "-o", "plan.json").code == 0
    data = json.loads((place / "plan.json").read_text())
    data["scale_plan"]["workers_by_tag"] = {"model": 0, "post": 1}
    (place / "plan.json").write_text(json.dumps(data))
    try:
        assert invoke("up", "--plan", "plan.json", "--no-wait", "--name", "one").code == 0
        assert find("one").record().wanted == {"model": 0, "post": 1}
        assert find("one").record().target == "apart"
    finally:
        invoke("down", "one", "--yes")


def test_sessions_start_plans_from_files_and_refuse_others(place):
    session = ScalableSession.from_yaml(target="local")
    session.plan(deadline="1h").save("plan.json")
    with pytest.raises(PlanError, match="cannot be read: No such file"):
        session.start("no.json")
    session.start("plan.json")
    assert {row["tag"]: row["to"] for row in session.scaling_history} == counts_in(
        place / "plan.json"
    )
    (place / "scalable.yaml").write_text(MANIFEST.replace("max_workers: 4", "max_workers: 5"))
    other = ScalableSession.from_yaml(target="local").plan()
    with pytest.raises(PlanError, match="another manifest"):
        session.start(other)
    session.close()
    with pytest.raises(PlanError, match=r"plan plan\.json was made from another manifest"):
        ScalableSession.from_yaml(target="local").start("plan.json")
    with pytest.raises(PlanError, match="is for target 'local', not for 'apart'"):
        ScalableSession.from_yaml(target="apart").start("plan.json")


def test_the_budget_of_the_environment_does_not_make_another_manifest(place, monkeypatch):
    plan = ScalableSession.from_yaml(target="local").plan()
    monkeypatch.setenv("SCALABLE_BUDGET", "5")
    session = ScalableSession.from_yaml(target="local")
    session.start(plan)
    session.close()
