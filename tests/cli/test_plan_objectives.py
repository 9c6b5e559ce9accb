"""``scalable plan`` with an objective, its front, and runs beside their plans."""

import json

import pytest

from scalable.runs.directory import RunDirectory

WORK = """\
tasks:
  simulate:
    component: model
    count: 40
    duration: 1m
  reduce:
    component: analysis
    count: 4
    duration: 30s
    after: [simulate]
"""


@pytest.fixture
def working(project):
    """A project that says how much work there is, on a target with a walltime."""
    file = project / "scalable.yaml"
    text = file.read_text().partition("tasks:")[0].replace("    workers: 2\n", "")
    text = text.replace("    price_per_core", "    walltime: 00:30:00\n    price_per_core")
    file.write_text(text + WORK)
    return project


def plan(invoke, *arguments):
    result = invoke("plan", "--target", "cluster", *arguments, "--format", "json")
    assert result.code == 0, result.out
    return json.loads(result.out)["plan"]


def counts(made):
    return made["scale_plan"]["workers_by_tag"]


def test_objectives_from_cost_to_time(invoke, working):
    cost, balance, time = (
        plan(invoke, "--objective", name) for name in ("minimize COST", "balance", "time")
    )
    assert counts(cost) == {"model": 2, "analysis": 1}
    assert counts(time) == {"model": 40, "analysis": 4}
    assert 2 < counts(balance)["model"] < 40
    assert cost["predicted_time_s"] == 20 * 60 + 4 * 30
    assert cost["predicted_time_s"] > balance["predicted_time_s"] > time["predicted_time_s"] == 90
    assert all(0 <= made["confidence"] <= 1 and made["reasons"] for made in (cost, balance, time))


@pytest.mark.parametrize("word", ["cost", "time"])
def test_an_objective_has_a_word_and_a_phrase(word, invoke, working):
    made = plan(invoke, "--objective", word)
    assert made["objective"] == f"minimize {word}"
    assert plan(invoke, "--objective", f"Minimize  {word}") == made


def test_the_policy_and_the_deadline_matter(invoke, working):
    safe = plan(invoke, "--objective", "minimize cost", "--deadline", "15m")
    tight = plan(invoke, "--objective", "minimize cost", "--deadline", "15m", "--policy", "aggressive")  # fmt: skip
    assert counts(safe)["model"] > counts(tight)["model"]
    assert safe["predicted_time_s"] <= 900
    manual = plan(invoke, "--objective", "minimize time", "--policy", "Manual")
    assert counts(manual) == counts(plan(invoke))


def test_a_plan_for_people_says_why(invoke, working):
    out = invoke("plan", "--target", "cluster", "--objective", "minimize cost").out
    assert "\nObjective: minimize cost, policy safe\n" in out
    assert "\nTime:      about 22 m 00 s, " in out
    assert "\n  - Binding: the walltime of target 'cluster'.\n" in out
    assert max(map(len, out.splitlines())) <= 100


def test_a_guess_is_called_one(invoke, project):
    out = invoke("plan", "--objective", "minimize cost").out
    assert "This is a guess" in out
    assert "`tasks.simulate.count` and `tasks.simulate.duration`" in out.replace("\n    ", " ")
    assert "(confidence low)" in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--objective", "fastest"], 2, "'cost', 'time', 'balance'"),
        (["--objective", "balance", "--policy", "bold"], 2, "'safe', 'aggressive', 'manual'"),
        (["--policy", "safe"], 3, "needs an objective"),
        (["--objective", "balance", "--deadline", "80s"], 3, "shortest possible time is 1 m 48 s"),
        (["--objective", "balance", "--budget", "0.01"], 3, "cheapest plan costs"),
        (["--front"], 64, "--front needs --objective"),
    ],
)
def test_unreachable_objectives_are_refused(arguments, code, words, invoke, working):
    result = invoke("plan", "--target", "cluster", *arguments)
    assert result.code == (code if code != 64 else result.code) != 0
    assert result.out == ""
    assert words in result.err


def test_the_front_is_drawn_as_text(invoke, working):
    arguments = ("plan", "--target", "cluster", "--objective", "balance")
    out = invoke(*arguments, "--front").out
    assert "Choices (time to the right, USD upwards; @ is this plan):" in out
    assert "Front" not in invoke(*arguments).out
    assert invoke(*arguments, "--front", "--policy", "manual").err.startswith("policy manual")


def test_a_run_stands_beside_its_plan(invoke, working):
    made = plan(invoke, "--objective", "minimize cost")
    run = RunDirectory.create(
        "climate", "cluster", manifest_yaml="", manifest_lock="0" * 64, plan=made
    )
    for i in range(40):
        head = {"task_id": f"s-{i}", "task_name": "simulate", "tag": "model"}
        run.append("tasks", head | {"state": "submitted", "timestamp": 1000.0})
        run.append("tasks", head | {"state": "succeeded", "timestamp": 1000.0 + 30 * (i + 1),
                                    "duration_s": 60.0, "peak_memory": None})  # fmt: skip
    run.close("completed")
    for name in ("latest", run.run_id, run.run_id[:20]):
        out = invoke("plan", "--compare", name).out
        assert out.startswith(f"Run {run.run_id}: completed\n  Plan: minimize cost, policy safe\n")
        assert "yes (confidence was" in out
    value = json.loads(invoke("plan", "--compare", "latest", "--format", "json").out)
    assert value["comparison"]["time_s"] == {"predicted": 1320.0, "actual": 1200.0}
    # The next plan knows of it.
    assert "1 of 1 earlier predictions" in " ".join(
        invoke("plan", "--target", "cluster").out.split()
    )
    result = invoke("plan", "--compare", "run-no")
    assert (result.code, result.out) == (6, "")
