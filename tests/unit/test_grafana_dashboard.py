"""The dashboard for Grafana asks for metrics that are exported, and has the shape of one."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from scalable.model.clusters import PoolStatus
from scalable.model.overview import Overview, PoolOverview, PredictedEnd, TaskCounts, TaskOverview

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from scalable.watch.metrics import exposition

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def dashboard():
    return json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text())


@pytest.fixture(scope="module")
def exported():
    """Name of each series of an overview that has everything -> names of its labels."""
    amounts = {"cost": 1.0, "idle": 0.5, "per_hour": 2.0}
    everything = Overview(
        at=1.0,
        cluster={"state": "running", "started_at": 1.0},
        pools={"small": PoolOverview(PoolStatus(), cost=amounts)},
        tasks=(TaskOverview("fit", "small", TaskCounts()),),
        end=PredictedEnd(2.0, 1.0, 3.0),
        cost={**amounts, "budget": 9.0},
        scaled={"small": {"scale-up": 1}},
        failures={"ValueError": 1},
    )
    families = text_string_to_metric_families(exposition(everything).decode())
    return {s.name: set(s.labels) for family in families for s in family.samples}


def targets(dashboard):
    return [t for panel in dashboard["panels"] for t in panel.get("targets", ())]


def test_the_file_is_the_one_that_the_script_writes(dashboard):
    spec = importlib.util.spec_from_file_location(
        "grafana_dashboard", ROOT / "scripts" / "grafana_dashboard.py"
    )
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.dashboard() == dashboard


def test_every_metric_and_label_that_is_asked_for_is_exported(dashboard, exported):
    asked = set()
    for target in targets(dashboard):
        for name, chosen in re.findall(r"(scalable_\w+)\{([^}]*)\}", target["expr"]):
            asked.add(name)
            assert name in exported, target["expr"]
            labels = set(re.findall(r"(\w+)=", chosen)) - {"job", "instance"}
            assert labels <= exported[name], target["expr"]
            for grouped in re.findall(r"by \(([^)]*)\)", target["expr"]):
                assert set(grouped.split(", ")) <= exported[name], target["expr"]
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert all(any(label in labels for labels in exported.values()) for label in shown)
    for variable in dashboard["templating"]["list"]:
        for name in re.findall(r"scalable_\w+", str(variable["query"])):
            assert name in exported
    assert len(asked) > 15


def test_the_file_has_the_shape_of_a_dashboard(dashboard):
    assert dashboard["schemaVersion"] >= 39
    assert dashboard["uid"]
    assert dashboard["title"] == "scalable"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    taken = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, "two panels lie on each other"
        taken |= cells
        assert panel["type"] in ("row", "stat", "timeseries")
        assert (panel["type"] == "row") == ("targets" not in panel)
    for target in targets(dashboard):
        assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert target["expr"].count("(") == target["expr"].count(")")
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(dashboard["panels"])))
    assert used == variables
