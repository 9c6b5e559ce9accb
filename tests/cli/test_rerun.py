"""``scalable rerun RUN --failed``: failed calls run again alone, with the code as it is now."""

import json

import pytest

MANIFEST = """\
version: 1
project: {name: harvest, keep_results: true}
targets: {local: {provider: local, processes: false}}
components: {model: {workers: 2}}
tasks: {simulate: {component: model}}
"""
MODEL = """\
def note(text):
    with open("ran.txt", "a") as file:
        file.write(f"{text}\\n")


def simulate(scenario):
    note(scenario)
    if scenario != "dry":
        raise OSError("no data")
    return len(scenario)
"""
WORKFLOW = """\
from scalable import ScalableSession
from model import note, simulate

LIMIT = 3


class Box:
    def __init__(self, size):
        self.size = size


def check(box, *, name):
    note(name)
    if box.size > LIMIT:
        raise ValueError(f"too large: {{box.size}}")
    return box.size


{before}
if __name__ == "__main__":
    with ScalableSession.from_yaml(target="local") as client:
        futures = client.map(simulate, ["dry", "wet"], task="simulate")
        futures += [client.submit(check, Box(n), name=f"box {{n}}", tag="model") for n in (2, 7)]
        if {more}:
            futures.append(client.submit(lambda: 1 / 0, tag="model"))
        print([future.exception() is None for future in futures])
"""


@pytest.fixture
def workflow(project):
    def write(before="", more=False):
        (project / "scalable.yaml").write_text(MANIFEST)
        (project / "model.py").write_text(MODEL)
        (project / "workflow.py").write_text(WORKFLOW.format(before=before, more=more))

    return write


@pytest.fixture
def ran(project):
    def since():
        path = project / "ran.txt"
        lines = sorted(path.read_text().splitlines()) if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    return since


def mend(project, name, before, after):
    path = project / name
    path.write_text(path.read_text().replace(before, after))


def test_failed_calls_run_with_the_code_as_it_is_now(workflow, ran, finish, project):
    workflow()
    assert finish("run").out.startswith("[True, False, True, False]\n")
    (run,) = (project / ".scalable" / "runs").iterdir()
    assert ran() == ["box 2", "box 7", "dry", "wet"]
    mend(project, "workflow.py", "LIMIT = 3", "LIMIT = 10")
    half = finish("rerun", run.name, "--failed", "--format", "json")
    assert (half.code, ran()) == (1, ["box 7", "wet"])
    calls = {call["function"]: call for call in json.loads(half.out)["calls"]}
    assert calls["__main__.check"]["now"] == "succeeded"
    assert calls["__main__.check"]["was"] == "ValueError: too large: 7"
    assert calls["__main__.check"]["call"] == "check(Box(size=7), name='box 7')"
    assert calls["model.simulate"]["now"] == "failed: OSError: no data"
    # Only what is still failed runs.
    mend(project, "model.py", 'scenario != "dry"', "not scenario")
    whole = finish("rerun", run.name, "--failed")
    assert (whole.code, ran()) == (0, ["wet"])
    assert whole.out.endswith(f"1 of 1 failed call of {run.name} succeeded now\n")
    none = finish("rerun", run.name, "--failed")
    assert (none.code, none.out) == (0, f"{run.name} has no failed calls to run again\n")
    # The script finds what ran; calls of changed functions that had succeeded run with their code.
    resumed = finish("run", "--resume", run.name)
    assert ran() == ["box 2", "dry"]
    assert resumed.out.startswith("[True, True, True, True]\n")


def test_a_call_without_a_name_is_listed_and_not_run(workflow, ran, finish, project):
    workflow(more=True)
    finish("run")
    mend(project, "workflow.py", "LIMIT = 3", "LIMIT = 10")
    mend(project, "model.py", 'scenario != "dry"', "not scenario")
    ran()
    result = finish("rerun", "latest", "--failed")
    assert (result.code, ran()) == (1, ["box 7", "wet"])
    assert "not run: its arguments were not kept" in result.out
    assert "2 of 3 failed calls" in result.out


def test_a_script_that_does_more_than_define_is_not_loaded(workflow, ran, finish, project):
    workflow(before="note('loaded')\n")
    finish("run")
    ran()
    result = finish("rerun", "latest", "--failed")
    assert (result.code, ran()) == (6, [])
    assert "does more than define functions and constants" in result.err
    assert "__main__" in result.err


def test_a_run_without_kept_results_says_what_to_write(workflow, finish, project):
    workflow()
    mend(project, "scalable.yaml", ", keep_results: true", "")
    finish("run")
    result = finish("rerun", "latest", "--failed")
    assert result.code == 6
    assert "keep_results: true" in result.err
