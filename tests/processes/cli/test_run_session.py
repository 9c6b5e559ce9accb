"""``scalable run`` with a session in the script: threads, so that it starts at once."""

import json
import re

import pytest

from scalable.runs.overview import list_runs
from scalable.runs.reading import read_run

WORKFLOW = """\
import sys
from scalable import ScalableSession

def double(x):
    return 2 * x

if __name__ == "__main__":
    with ScalableSession.from_yaml(target="other") as client:
        print(sum(client.gather(client.map(double, range(4), tag="model"))))
        {inside}
"""


@pytest.fixture
def workflow(project):
    def write(inside="pass"):
        (project / "workflow.py").write_text(WORKFLOW.format(inside=inside))

    return write


def only_run(project):
    (path,) = list_runs(project / ".scalable" / "runs")
    return read_run(path)


def test_the_target_of_the_command_line_wins_with_a_warning(workflow, invoke, project):
    workflow()
    result = invoke("run", "--target", "local")
    assert result.code == 0, result.err
    assert "--target local overrides target='other' of the workflow" in result.err
    assert result.out.startswith("12\nRun run-")
    assert "Target:   local (provider local)\nStarted:" in result.out
    assert "Tasks:    4 done\n" in result.out
    assert ["model", "2", "2", "2"] in map(str.split, result.out.splitlines())
    assert only_run(project).status == "completed"


def test_without_one_the_workflow_chooses(workflow, invoke, project):
    workflow()
    result = invoke("run", "--format", "json")
    (report,) = json.loads(result.out)["reports"]
    assert (report["target"], report["status"]) == ("other", "completed")
    assert result.err == "12\n"


@pytest.mark.parametrize(("inside", "code"), [("sys.exit(3)", 3), ("raise ValueError('odd')", 1)])
def test_a_workflow_that_fails_fails_its_run(inside, code, workflow, invoke, project):
    workflow(inside)
    result = invoke("run")
    assert result.code == code
    assert f"Status:   failed (exit code {code})\n" in result.out
    assert only_run(project).run["exit_code"] == code


def test_a_new_project_runs(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invoke("init").code == 0
    result = invoke("run", "--target", "local")
    assert result.code == 0, result.err
    assert "Tasks:    21 done\n" in result.out
    assert re.search(r"(?m)^\[ +\d+ s\] model: \d/2 workers.* \| analysis: ", result.err)


def test_a_cloud_without_a_region_says_so(workflow, invoke, project, monkeypatch):
    for name in ("GOOGLE_CLOUD_REGION", "CLOUDSDK_COMPUTE_REGION"):
        monkeypatch.delenv(name, raising=False)
    workflow()
    manifest = project / "scalable.yaml"
    manifest.write_text(
        manifest.read_text().replace("provider: slurm", "provider: gcp\n    image: site/model")
    )
    result = invoke("run", "--target", "cluster", "--yes")
    assert result.code == 1
    assert "no region of Google Cloud" in result.out, "the report shortens long lines"
    assert "GOOGLE_CLOUD_REGION" in result.out
