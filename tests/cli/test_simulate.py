"""``scalable simulate``."""

import json

import pytest

from scalable.simulation.rules import RULES
from scalable.telemetry import RunDirectory


@pytest.fixture
def expected(project):
    manifest = project / "scalable.yaml"
    text = manifest.read_text()
    text = text.replace("component: model", "component: model\n    count: 12\n    duration: 10s")
    more = "component: analysis\n    count: 1\n    duration: 5s\n    after: [simulate]"
    manifest.write_text(text.replace("component: analysis", more))
    return project


@pytest.fixture
def trace(tmp_path):
    tasks = [{"name": f"t_{i}", "id": f"t_{i}", "parents": []} for i in range(4)]
    ran = [{"id": f"t_{i}", "runtimeInSeconds": 10.0} for i in range(4)]
    document = {
        "name": "four",
        "workflow": {"specification": {"tasks": tasks}, "execution": {"tasks": ran}},
    }
    path = tmp_path / "four.json"
    path.write_text(json.dumps(document))
    return path


def simulated(invoke, *arguments):
    return json.loads(invoke("simulate", *arguments, "--format", "json").out)


def test_a_table_for_people(expected, invoke):
    result = invoke("simulate", "--policy", "maximum", "--policy", "Minimum", "--startup", "2s")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    counted, measured = lines[0].split("; ")
    assert counted == "climate: 13 calls in 2 pools, workers start in 2.0 s"
    assert measured == "time until the last call has ended"
    assert [line.split()[0] for line in lines[2:]] == [
        "policy", "maximum", "minimum", "clairvoyant",
    ]  # fmt: skip
    most = [line.split()[-2] for line in lines[3:5]]
    assert most == ["3", "2"]  # the target's max_workers is 3


def test_a_manifest_for_programs(expected, invoke):
    value = simulated(invoke, "--policy", "scalable", "--startup", "2s", "--maximum", "8")
    assert (value["workload"], value["calls"], value["stream"]) == ("climate", 13, False)
    assert (value["startup_s"], value["billed_startup_s"]) == (2.0, 2.0)
    policy = value["policies"]["scalable"]
    assert policy["time_s"] >= value["clairvoyant"]["time_s"] > 12 + 5
    assert {change["pool"] for change in policy["decisions"]} == {"model", "analysis"}
    assert max(count for _, count in policy["workers"]["model"]) <= 8
    assert policy["score"] == pytest.approx(
        (
            policy["time_s"] * policy["cost"]
            / value["clairvoyant"]["time_s"] / value["clairvoyant"]["cost"]
        ) ** 0.5
    )  # fmt: skip


def test_the_same_seed_gives_the_same(expected, invoke):
    first, again, other = (
        simulated(invoke, "--startup", "60s", "--seed", seed)["policies"] for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_workflow(trace, invoke):
    value = simulated(invoke, "--workflow", trace, "--policy", "minimum", "--startup", "0")
    assert value["policies"]["minimum"]["makespan_s"] == 40.0


def test_a_recorded_run(tmp_path, invoke, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = RunDirectory.create(
        "p", "local", manifest_yaml="", manifest_lock="0" * 64, plan={}, provider="local"
    )
    for i in range(3):
        row = {"task_id": str(i), "task_name": "f", "tag": "a"}
        run.append("tasks", {**row, "state": "submitted", "timestamp": 100.0 + 50 * i})
        ended = {"state": "succeeded", "timestamp": 120.0 + 50 * i, "duration_s": 20.0}
        run.append("tasks", {**row, **ended})
    run.close("completed")
    value = simulated(invoke, "--run", run.run_id, "--policy", "maximum", "--startup", "0")
    assert (value["workload"], value["stream"], value["calls"]) == (run.path.name, True, 3)
    assert value["policies"]["maximum"]["time_s"] == 20.0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--policy", "magic"), 2, f"unknown policy 'magic'; known policies: {', '.join(RULES)}"),
        (("--run", "x", "--workflow", "y"), 2, "exclude each other"),
        (("--workflow", "missing.json"), 1, "missing.json cannot be read"),
        (("--workflow", "scalable.yaml"), 1, "a trace in WfFormat 1.5 is needed"),
        (("--run", "nothing"), 6, "contains no recorded run"),
        ((), 3, "tasks.simulate has no count and no duration"),
        (("--startup", "soon"), 2, "soon"),
    ],
)
def test_invalid_simulations_are_refused(project, invoke, arguments, code, says):
    result = invoke("simulate", *arguments)
    assert result.code == code
    assert says in result.err


def test_work_without_end_is_refused_soon(expected, invoke):
    manifest = expected / "scalable.yaml"
    manifest.write_text(manifest.read_text().replace("duration: 10s", "duration: 4000d"))
    result = invoke("simulate")
    assert result.code == 3
    assert "calls have not ended after 1e+08 s" in result.err


def test_a_start_without_end_and_a_trace_without_bottom_are_refused(trace, invoke):
    result = invoke("simulate", "--workflow", str(trace), "--startup", "9" * 30)
    assert (result.code, "no policy can be simulated" in result.err) == (3, True)
    trace.write_text("[" * 200_000)
    result = invoke("simulate", "--workflow", str(trace))
    assert (result.code, "a trace in WfFormat 1.5 is needed" in result.err) == (1, True)


def test_the_order_of_calls_is_chosen_for_our_policies_alone(tmp_path, invoke):
    """Two workers; four calls of 10 s are submitted before a chain of two of 20 s."""
    lengths = {**{f"a_{i}": 10.0 for i in range(4)}, "b_1": 20.0, "c_1": 20.0}
    tasks = [{"name": name, "id": name, "parents": []} for name in lengths]
    tasks[-1]["parents"] = ["b_1"]
    ran = [{"id": name, "runtimeInSeconds": length} for name, length in lengths.items()]
    path = tmp_path / "trace.json"
    workflow = {"specification": {"tasks": tasks}, "execution": {"tasks": ran}}
    path.write_text(json.dumps({"name": "chain", "workflow": workflow}))
    arguments = ("--workflow", path, "--startup", "0", "--maximum", "2", "--policy", "dask")
    arguments = (*arguments, "--policy", "scalable-time")
    first, other = (
        simulated(invoke, *arguments, "--order", order) for order in ("critical-path", "submitted")
    )
    assert (first["order"], other["order"]) == ("critical-path", "submitted")
    assert first["policies"]["dask"] == other["policies"]["dask"]
    times = [value["policies"]["scalable-time"]["time_s"] for value in (first, other)]
    assert times == [40.0, 60.0]


def test_long_simulations_show_their_progress(expected, invoke, monkeypatch):
    monkeypatch.setattr("scalable.cli.commands.simulate._QUIET_S", 0.0)
    result = invoke("simulate", "--policy", "minimum", "--policy", "dask")
    assert result.code == 0
    assert "policy minimum (1 of 2): 0 % of 13 calls have ended" in result.err
    value = invoke("simulate", "--policy", "minimum", "--format", "json")
    assert (json.loads(value.out)["calls"], value.err) == (13, "")
