"""``scalable plan --resume``: only the calls that a resumed run would run are counted."""

import json

import pytest

MANIFEST = """\
version: 1
project: {name: harvest, keep_results: true}
targets: {local: {provider: local, processes: false}}
components: {model: {workers: 2}}
tasks:
  simulate: {component: model, count: 5, duration: 10s}
  check: {component: model, count: 2, duration: 10s}
  total: {component: model, count: 1, duration: 10s, after: [simulate]}
"""
MODEL = """\
def simulate(scenario):
    return len(scenario)
"""
WORKFLOW = """\
from scalable import ScalableSession
from model import simulate

LIMIT = 3


def check(size):
    return size < LIMIT


def total(parts):
    return sum(parts)


if __name__ == "__main__":
    with ScalableSession.from_yaml(target="local") as client:
        futures = client.map(simulate, ["dry", "normal", "wet"], task="simulate")
        checks = client.map(check, [1, 7], task="check")
        print(client.submit(total, futures, task="total").result(), client.gather(checks))
"""


def write(project, manifest):
    (project / "scalable.yaml").write_text(manifest)
    (project / "model.py").write_text(MODEL)
    (project / "workflow.py").write_text(WORKFLOW)


@pytest.fixture
def planned(finish):
    """Return a function that plans to resume the last run: task -> runs, answered; and reasons."""

    def plan_of(*arguments):
        result = finish("plan", "--resume", *arguments, "--format", "json")
        assert result.code == 0, result.err
        plan = json.loads(result.out)["plan"]
        found = {name: (task["calls"], task["answered"]) for name, task in plan["tasks"].items()}
        return found, "\n".join(plan["reasons"])

    return plan_of


@pytest.fixture
def counts(project, finish, planned):
    """Run the workflow, and return the function that plans to resume it."""
    write(project, MANIFEST)
    assert finish("run").code == 0
    return planned


def mend(path, before, after):
    path.write_text(path.read_text().replace(before, after))


def test_calls_of_unchanged_functions_are_subtracted(counts, project, finish):
    answered = {"simulate": (2, 3), "check": (0, 2), "total": (0, 1)}
    assert counts()[0] == answered
    text = finish("plan", "--resume").out
    assert "  simulate -> model: 3 of 5 calls answered, 2 run\n" in text
    assert "  total -> model: 1 of 1 calls answered, 0 run\n" in text
    assert finish("run", "--resume", "--dry-run").out == text
    assert "answered" not in finish("plan").out
    # Comments change nothing. A constant of the script changes the function that uses it.
    mend(project / "model.py", "    return", "    # A comment.\n    return")
    mend(project / "workflow.py", "LIMIT = 3", "LIMIT = 4")
    found, reasons = counts("scalable.yaml")
    assert found == answered | {"check": (2, 0)}
    assert "because of __main__.check: code or environment changed" in reasons
    # A changed function runs, and the tasks that come after its task.
    mend(project / "model.py", "len(scenario)", "2 * len(scenario)")
    found, reasons = counts()
    assert found == {"simulate": (5, 0), "check": (2, 0), "total": (1, 0)}
    assert "total: its calls are expected to run, because earlier tasks run" in reasons


def test_what_cannot_be_compared_is_expected_to_run(counts, project):
    mend(project / "workflow.py", "LIMIT = 3", "LIMIT = 3\nprint('loaded')")
    found, reasons = counts()
    assert found == {"simulate": (2, 3), "check": (2, 0), "total": (1, 0)}
    assert "cannot be compared without running" in reasons
    (project / "model.py").unlink()
    assert counts()[0]["simulate"] == (5, 0)


def test_results_that_have_gone_are_not_counted(counts, project):
    (run,) = (project / ".scalable" / "runs").iterdir()
    for entry in (run / "results" / "entries").glob("*/*"):
        entry.unlink()
    assert counts()[0] == {"simulate": (5, 0), "check": (2, 0), "total": (1, 0)}


def test_calls_whose_results_are_remembered_are_subtracted(project, finish, planned):
    cached = MANIFEST.replace("count: 5, duration: 10s", "count: 5, duration: 10s, cache: true")
    write(project, cached.replace("keep_results: true", "local_cache: cache"))
    others = {"check": (2, 0), "total": (1, 0)}
    assert finish("run").code == 0
    found, reasons = planned()
    assert found == {"simulate": (2, 3), **others}
    assert "simulate: 3 calls found among the remembered results" in reasons
    # The client finds all of them: the record of this run tells their keys too.
    assert finish("run").code == 0
    assert planned()[0] == {"simulate": (2, 3), **others}
    (gone, *_) = (project / "cache" / "entries").glob("*/*")
    gone.unlink()
    assert planned()[0] == {"simulate": (3, 2), **others}
    mend(project / "model.py", "len(scenario)", "2 * len(scenario)")
    found, reasons = planned()
    assert found == {"simulate": (5, 0), **others}
    assert "because of model.simulate: code or environment changed" in reasons
    assert "total: its calls are expected to run, because earlier tasks run" in reasons
