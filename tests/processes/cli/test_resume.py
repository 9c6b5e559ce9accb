"""``scalable run --resume``: a workflow runs again, and its calls are answered by an earlier run."""

import json
import os
import signal
import time

import pytest

from scalable.runs.directory import RunDirectory
from scalable.runs.overview import find_run
from scalable.runs.reading import read_run
from scalable.runs.summary import summarize

MANIFEST = """\
version: 1
project: {name: harvest, keep_results: true}
targets: {local: {provider: local, processes: false}}
components: {model: {workers: 2}}
tasks: {simulate: {component: model}}
"""
MODEL = """\
import time
from pathlib import Path

RATE = 3


def note(text):
    with open("ran.txt", "a") as file:
        file.write(f"{text}\\n")


def simulate(scenario):
    note(scenario)
    while scenario == "slow" and Path("slow").exists():
        time.sleep(0.02)
    if scenario == "wet" and Path("wet").exists():
        raise OSError("no data")
    return RATE * len(scenario)


def total(parts):
    note("total")
    return sum(parts)


def label(text):
    note(f"label {text}")
    return text.upper()
"""
WORKFLOW = """\
from scalable import ScalableSession
from model import label, simulate, total

if __name__ == "__main__":
    with ScalableSession.from_yaml(target="local") as client:
        futures = client.map(simulate, {scenarios}, task="simulate")
        whole = client.submit(total, futures, tag="model")
        labels = list(client.pool("model").map(label, ["a", "b", "a"]))
        node = client.get({{"node": (label, "x")}}, "node", tag="model")
        print(labels, node, whole.result())
"""


@pytest.fixture
def workflow(project):
    """Write the workflow, and return a function that tells what ran since the last time."""
    (project / "scalable.yaml").write_text(MANIFEST)
    (project / "model.py").write_text(MODEL)

    def write(*scenarios):
        (project / "workflow.py").write_text(WORKFLOW.format(scenarios=list(scenarios)))

    write("dry", "normal")
    return write


@pytest.fixture
def ran(project):
    def since():
        path = project / "ran.txt"
        lines = sorted(path.read_text().splitlines()) if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    return since


def latest(project):
    """Return the id of the latest run."""
    return max((project / ".scalable" / "runs").iterdir()).name


def last(result):
    return result.out.splitlines()[-1]


def test_only_changed_calls_and_what_depends_on_them_run(workflow, ran, invoke, project):
    first = invoke("run")
    assert first.code == 0, first.err
    assert ran() == ["dry", "label a", "label a", "label b", "label x", "normal", "total"]
    model = project / "model.py"
    # A comment changes nothing; the constant changes simulate, and total takes other arguments.
    model.write_text("# A comment.\n" + model.read_text().replace("RATE = 3", "RATE = 4"))
    changed = invoke("run", "--resume", "scalable.yaml", "--format", "json")
    assert ran() == ["dry", "normal", "total"]
    resumed = json.loads(changed.out)["resumed"]
    assert (resumed["answered"], resumed["ran"]) == (4, 3)
    assert resumed["causes"] == {"changed code": 2, "without a kept result": 1}
    # The report of the run tells the same.
    summary = summarize(read_run(find_run(project / ".scalable" / "runs", latest(project))))
    told = summary.remembered
    assert summary.tasks == {"succeeded": 3, "found": 4}
    assert (told.found, told.missed) == (4, 3)
    assert told.saved_s == pytest.approx(resumed["saved_s"], abs=1e-4)
    assert {(each.reason, each.count) for each in told.reasons} == {
        ("the constant model.RATE changed", 2), ("argument parts changed", 1)
    }  # fmt: skip
    # The resumed run can be removed: the last one has kept its answers.
    earlier, _ = sorted((project / ".scalable" / "runs").iterdir())
    earlier.rename(project / earlier.name)
    again = invoke("run", "--resume")
    assert (again.code, ran()) == (0, []), again.err
    assert again.out.splitlines()[0] == "['A', 'B', 'A'] X 36"
    assert last(again).startswith("7 tasks reused from run-")
    assert last(again).endswith(", 0 ran")


def test_a_run_that_was_killed_is_continued(workflow, ran, spawn, invoke, project):
    workflow("dry", "normal", "slow")
    (project / "slow").touch()
    script = spawn("run")
    deadline = time.monotonic() + 60
    runs = project / ".scalable" / "runs"
    while len(list(runs.glob("*/results/*/*/[!.]*"))) < 6:
        assert time.monotonic() < deadline, script.communicate()
        time.sleep(0.05)
    (run,) = (project / ".scalable" / "runs").iterdir()
    os.kill(json.loads((run / "run.json").read_text())["pid"], signal.SIGKILL)
    script.communicate()
    assert script.returncode == 128 + signal.SIGKILL
    assert "slow" in ran()
    (project / "slow").unlink()
    script = (project / "workflow.py").read_text()
    (project / "workflow.py").write_text(f"{script}\n        import os; os.kill(os.getpid(), 9)\n")
    assert last(invoke("run", "--resume")).endswith("its last tasks are not counted")
    ran()
    (project / "workflow.py").write_text(script)
    result = invoke("run", "--resume", run.name)
    assert result.code == 0, result.err
    assert ran() == ["slow", "total"]
    assert result.out.splitlines()[0] == "['A', 'B', 'A'] X 39"
    assert last(result).startswith("6 tasks reused from run-")


def test_kept_results_of_changed_code_are_answered_if_asked(workflow, ran, invoke, project):
    workflow("dry", "normal", "wet")
    (project / "wet").touch()
    assert invoke("run").code == 1
    ran()
    model = project / "model.py"
    fixed = model.read_text().replace('raise OSError("no data")', "return 1000")
    model.write_text(fixed.replace("text.upper()", "text.lower()"))
    result = invoke("run", "--resume", "--keep-despite-code", "--format", "json")
    # The calls that succeeded keep the results of the old code; other arguments still run.
    assert ran() == ["total", "wet"], result.err
    assert "['A', 'B', 'A'] X 1027" in result.err
    resumed = json.loads(result.out)["resumed"]
    assert (resumed["answered"], resumed["despite_code"], resumed["ran"]) == (6, 6, 2)
    assert resumed["causes"] == {"changed code": 1, "without a kept result": 1}
    # They are again those of an old code in the next run, which keeps them only if asked.
    plain = invoke("run", "--resume")
    assert plain.out.splitlines()[0] == "['a', 'b', 'a'] x 1027"
    assert last(plain).endswith(", 6 ran (6 changed code)")
    assert ran() == ["dry", "label a", "label a", "label b", "label x", "normal"]


def test_keeping_despite_code_needs_a_run_to_resume(workflow, invoke):
    result = invoke("run", "--keep-despite-code")
    assert result.code == 2
    assert "add --resume" in result.err


def test_a_run_without_kept_results_says_what_to_write(workflow, ran, invoke, project):
    (project / "scalable.yaml").write_text(MANIFEST.replace(", keep_results: true", ""))
    assert invoke("run", "--resume").code == 6
    assert invoke("run").code == 0
    assert not list((project / ".scalable" / "runs").glob("*/results"))
    ran()
    result = invoke("run", "--resume")
    assert "keep_results: true" in result.err
    assert len(ran()) == 7
    # A run that resumes another keeps its results, whatever the manifest says.
    assert invoke("run", "--resume").code == 0
    assert ran() == []


def test_a_run_of_another_project_is_refused(workflow, invoke, project):
    RunDirectory.create("sowing", "local", manifest_yaml="", manifest_lock="0" * 64, plan={}).close(
        "completed"
    )
    result = invoke("run", "--resume", "run-")
    assert result.code != 0
    assert "is a run of project 'sowing', not 'harvest'" in result.err
