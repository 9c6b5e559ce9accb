"""Scripts that plan and scale, run as they are written in a tutorial, on real local workers."""

import re
import time

import pytest

from scalable import ScalableSession
from scalable.runs.reading import read_run
from scalable.runs.report.run_report import report_on

MANIFEST = """\
version: 1
project: {name: energy}
targets:
  hpc: {provider: local, max_workers: 6}
  aws: {provider: local, max_workers: 4}
components:
  demeter:
    cpus: 8
    memory: 32G
    tags: [compute-heavy]
  postprocess:
    cpus: 2
    memory: 4G
    tags: [io-bound]

tasks:
  simulate:
    component: demeter
  analyze:
    component: postprocess
"""

BY_OBJECTIVE = """
from scalable import ScalableSession

session = ScalableSession.from_yaml("./scalable.yaml", target="hpc")

# Minimize cost: fewest workers that finish within walltime
plan = session.plan(
    objective="minimize cost",
    policy="safe",
)
print(f"Workers: {plan.scale_plan}")

# Minimize time: maximum parallelism within resource limits
plan = session.plan(
    objective="minimize time",
    policy="aggressive",
)
print(f"Workers: {plan.scale_plan}")

# Balance: cost-time Pareto front midpoint
plan = session.plan(
    objective="balance",
    policy="safe",
)
"""

BY_A_LOOP = """
from scalable import AdaptiveScaler, ScalableSession

session = ScalableSession.from_yaml("./scalable.yaml", target="aws")
client = session.start()

scaler = AdaptiveScaler(
    min_workers={"demeter": 2, "postprocess": 1},
    max_workers={"demeter": 20, "postprocess": 10},
    scale_up_threshold=0.8,     # Scale up when 80% of workers are busy
    scale_down_threshold=0.2,   # Scale down when <20% utilization
    cooldown_seconds=120,       # Wait 2 min between decisions
)

# In your task submission loop:
for batch in scenario_batches:
    futures = [client.submit(run_demeter_scenario, s, tag="demeter") for s in batch]

    # Evaluate scaling after each batch
    decision = scaler.evaluate(
        pending_tasks=[{"tag": "gcam"} for _ in range(len(batch))],
        active_workers={"demeter": client.worker_count("gcam")},
    )

    if decision.has_changes:
        print(f"Scaling: +{decision.workers_to_add} -{decision.workers_to_remove}")
        print(f"Reason: {decision.reasoning}")
        # Apply the decision (provider-specific)
        # ...
"""

OVER_TWO_POOLS = """
# Compute-heavy tasks go to gcam workers
sim_futures = [
    client.submit(run_simulation, params, tag="demeter")
    for params in simulation_params
]

# Wait for simulations, then post-process on lighter workers
sim_results = client.gather(sim_futures)
analysis_futures = [
    client.submit(aggregate, result, tag="postprocess")
    for result in sim_results
]
final = client.gather(analysis_futures)
"""

LOOKED_BACK_AT = """
# After workflow completes
session.close()

# Review scaling history
for decision in scaler.decision_history:
    print(
        f"[{decision.timestamp}] "
        f"+{decision.workers_to_add} "
        f"-{decision.workers_to_remove} "
        f"({decision.reasoning})"
    )
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An empty directory with the manifest, and a state of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("SCALABLE_TARGET", "SCALABLE_RUN_TARGET", "SCALABLE_RUNS_DIR", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "scalable.yaml").write_text(MANIFEST)


def simulate(i):
    time.sleep(0.05)
    return i * i


def add_one(value):
    return value + 1


def test_plans_by_objective_can_be_started(capsys):
    script = {}
    exec(BY_OBJECTIVE, script)
    shown = capsys.readouterr().out.splitlines()
    cheap, fast = ([int(n) for n in re.findall(r"count=(\d+)", line)] for line in shown)
    assert shown[0].startswith("Workers: {'demeter': ResourceRequest(cpus=8, memory='32G'), count=")
    assert (cheap, sum(fast)) == ([1, 1], 6)
    session, plan = script["session"], script["plan"]
    balanced = plan.scale_plan.workers_by_tag
    assert 2 < sum(balanced.values()) < 6
    client = session.start(plan)
    assert client.gather(client.map(simulate, range(4), tag="demeter")) == [0, 1, 4, 9]
    session.close()
    assert {row["tag"]: row["to"] for row in session.scaling_history} == balanced
    # What was recorded is known to the next plan.
    again = ScalableSession.from_yaml("./scalable.yaml", target="hpc").plan(objective="balance")
    assert again.tasks["simulate"].calls == 4
    assert "guess" in " ".join(plan.reasons)


def test_a_loop_that_asks_a_scaler_and_looks_back_at_it(capsys):
    script = {
        "scenario_batches": [range(3), range(2)],
        "run_demeter_scenario": simulate,
        "run_simulation": simulate,
        "simulation_params": range(5),
        "aggregate": add_one,
    }
    exec(BY_A_LOOP + OVER_TWO_POOLS + LOOKED_BACK_AT, script)
    assert script["final"] == [1, 2, 5, 10, 17]
    first, second = script["scaler"].decision_history
    # What waits is called gcam: 3 calls on no worker; the other two are brought to their minimum.
    assert first.workers_to_add == {"demeter": 2, "gcam": 4, "postprocess": 1}
    assert "cooldown" in second.reasoning
    assert "gcam" not in second.workers_to_add
    shown = capsys.readouterr().out
    assert "Scaling: +{" in shown
    assert f"[{second.timestamp}] +{second.workers_to_add} -{{}} ({second.reasoning})" in shown
    # Nothing was applied: the session scaled by its plan alone.
    session = script["session"]
    assert {row["source"] for row in session.scaling_history} == {"plan"}
    report = str(report_on(read_run(session.run_path)))
    # The second of them may still be on its way when all is done.
    assert re.search(r"\n  demeter +[12] +([12]) +\1\n", report)
    assert "\nScaling events: 2 scale-up, 0 scale-down\n" in report
