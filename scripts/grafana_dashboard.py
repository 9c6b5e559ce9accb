"""Write ``docs/grafana-dashboard.json``, a dashboard for Grafana."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PLACE = Path(__file__).parent.parent / "docs" / "grafana-dashboard.json"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
#: Only the scrapes of the chosen cluster.
CHOSEN = 'job=~"$job", instance=~"$instance"'
#: Width of the whole dashboard in Grafana's units.
FULL = 24

# (title, kind, unit, width, [(expression, legend)]); a row begins with a title alone.
PANELS: list[Any] = [
    "Now",
    ("Running tasks", "stat", "short", 4, [('sum(scalable_tasks{S, state="running"})', "")]),
    ("Queued tasks", "stat", "short", 4, [('sum(scalable_tasks{S, state="queued"})', "")]),
    ("Failed tasks", "stat", "short", 4,
     [('sum(scalable_tasks_finished_total{S, result="failed"})', "")]),
    ("Connected workers", "stat", "short", 4, [("sum(scalable_workers{S})", "")]),
    ("Predicted end in", "stat", "s", 4,
     [('scalable_predicted_end_timestamp_seconds{S, bound="expected"} - time()', "")]),
    ("Cost so far (USD)", "stat", "currencyUSD", 4, [("sum(scalable_cost_usd_total{S})", "")]),
    "Pools",
    ("Workers", "timeseries", "short", 12,
     [("scalable_pool_desired_workers{S}", "{{pool}} desired"),
      ("scalable_pool_running_workers{S}", "{{pool}} running"),
      ("scalable_pool_launching_workers{S}", "{{pool}} launching")]),
    ("Idle workers", "timeseries", "short", 12, [("scalable_pool_idle_workers{S}", "{{pool}}")]),
    ("Use of slots", "timeseries", "percentunit", 12,
     [("scalable_pool_used_slots{S} / (scalable_pool_slots{S} > 0)", "{{pool}}")]),
    ("Queued and blocked tasks", "timeseries", "short", 12,
     [("scalable_pool_queued_tasks{S}", "{{pool}} queued"),
      ("scalable_pool_blocked_tasks{S}", "{{pool}} blocked")]),
    "Tasks",
    ("Finished tasks each second", "timeseries", "cps", 12,
     [("sum by (task) (rate(scalable_tasks_finished_total{S}[$__rate_interval]))", "{{task}}")]),
    ("Failed tasks each second", "timeseries", "cps", 12,
     [(('sum by (task) (rate(scalable_tasks_finished_total{S, result="failed"}'
        "[$__rate_interval])) > 0"), "{{task}}")]),
    ("Mean running time", "timeseries", "s", 12,
     [(("sum by (task) (rate(scalable_task_duration_seconds_sum{S}[$__rate_interval])) / "
       "sum by (task) (rate(scalable_task_duration_seconds_count{S}[$__rate_interval]))"),
       "{{task}}")]),
    ("Mean queue time", "timeseries", "s", 12,
     [(("sum by (pool) (rate(scalable_task_queue_seconds_sum{S}[$__rate_interval])) / "
       "sum by (pool) (rate(scalable_task_queue_seconds_count{S}[$__rate_interval]))"),
       "{{pool}}")]),
    ("Failures by class", "timeseries", "short", 12,
     [("sum by (failure_class) (increase(scalable_failures_total{S}[$__rate_interval]))",
       "{{failure_class}}")]),
    ("Predicted end", "timeseries", "dateTimeAsIso", 12,
     [("1000 * scalable_predicted_end_timestamp_seconds{S}", "{{bound}}")]),
    "Scaling and costs",
    ("Decisions", "timeseries", "short", 12,
     [("sum by (pool, action) (increase(scalable_scaling_decisions_total{S}[$__rate_interval]))",
       "{{pool}} {{action}}")]),
    ("Lost workers", "timeseries", "short", 12,
     [("increase(scalable_pool_lost_workers_total{S}[$__rate_interval])", "{{pool}}")]),
    ("Cost (USD)", "timeseries", "currencyUSD", 12,
     [("scalable_cost_usd_total{S}", "so far"), ("scalable_idle_cost_usd_total{S}", "idle"),
      ("scalable_budget_usd{S}", "budget")]),
    ("Managers", "timeseries", "short", 12, [("scalable_managers{S}", "{{state}}")]),
]  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "__inputs": [],
        "__requires": [{"type": "datasource", "id": "prometheus", "name": "Prometheus"}],
        "annotations": {"list": []},
        "description": "A cluster of scalable: pools, tasks, scaling and costs.",
        "editable": True,
        "panels": panels(),
        "refresh": "30s",
        "schemaVersion": 39,
        "tags": ["scalable", "dask"],
        "templating": {"list": [_source(), _label("job"), _label("instance")]},
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "title": "scalable",
        "uid": "scalable-cluster",
        "version": 1,
    }


def panels() -> list[dict[str, Any]]:
    """Return the panels from left to right and from top to bottom."""
    made: list[dict[str, Any]] = []
    x, y, height = 0, 0, 0
    for number, given in enumerate(PANELS, start=1):
        title, kind, unit, width, queries = (
            (given, "row", "", FULL, []) if isinstance(given, str) else given
        )
        if x + width > FULL:
            x, y = 0, y + height
        height = {"row": 1, "stat": 4}.get(kind, 8)
        place = {"x": x, "y": y, "w": width, "h": height}
        x += width
        panel: dict[str, Any] = {"id": number, "type": kind, "title": title, "gridPos": place}
        if kind == "row":
            made.append({**panel, "collapsed": False, "panels": []})
            continue
        panel["datasource"] = SOURCE
        panel["fieldConfig"] = {"defaults": {"unit": unit, "min": 0}, "overrides": []}
        if unit == "dateTimeAsIso":
            del panel["fieldConfig"]["defaults"]["min"]
        panel["targets"] = [
            {
                "refId": chr(ord("A") + place_of),
                "datasource": SOURCE,
                "expr": expression.replace("{S", "{" + CHOSEN),
                "legendFormat": legend or "__auto",
            }
            for place_of, (expression, legend) in enumerate(queries)
        ]
        made.append(panel)
    return made


def _source() -> dict[str, Any]:
    return {
        "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
        "refresh": 1, "hide": 0,
    }  # fmt: skip


def _label(name: str) -> dict[str, Any]:
    query = f"label_values(scalable_cluster_info, {name})"
    return {
        "name": name, "label": name.capitalize(), "type": "query", "datasource": SOURCE,
        "query": {"query": query, "refId": "A"}, "definition": query, "refresh": 2, "sort": 1,
        "includeAll": True, "multi": True, "hide": 0, "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


if __name__ == "__main__":
    PLACE.write_text(json.dumps(dashboard(), indent=1) + "\n", encoding="utf-8")
    print(PLACE)
