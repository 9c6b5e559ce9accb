"""Costs and budgets of running clusters, at prices by which money goes within seconds."""

import json
import math
import time
from pathlib import Path

import pytest

import scalable
from detached import MANIFEST, kill, nothing_is_left, processes_of
from scalable import ScalableSession
from scalable.errors import ClusterError
from scalable.records import find
from verbs import program, read, status, up

PRICED = MANIFEST.replace("max_workers: 4, %s", "price_per_core_hour: 3600, %s")


def wait_for(path):
    while not Path(path).exists():
        time.sleep(0.05)


def look(session):
    return session.status()["cost"]


def counts(session):
    return {tag: pool["running"] for tag, pool in session.status()["pools"].items()}


def test_a_spent_budget_stops_growth_and_warns_until_it_is_raised(
    place, tmp_path, eventually, caplog
):
    place("", PRICED)
    session = ScalableSession.from_yaml("scalable.yaml", target="local")
    with session as client:
        eventually(lambda: counts(session) == {"a": 2, "b": 1})
        eventually(lambda: look(session)["cost"] > 3)
        cost = look(session)
        assert cost["per_hour"] == pytest.approx(3 * 3600)
        assert cost["pools"]["b"]["per_hour"] == pytest.approx(3600)
        parts = sum(pool["cost"] for pool in cost["pools"].values())
        assert cost["cost"] == pytest.approx(parts, abs=1e-4)
        assert cost["idle"] == pytest.approx(cost["cost"])  # nothing was called

        session.set_budget(1.0)
        assert look(session)["stage"] == "spent"
        assert "are spent" in caplog.text
        with pytest.raises(
            ClusterError, match=r"pool 'a' cannot have 3 workers: .* of the budget"
        ) as no:
            session.scale("a", 3)
        assert "set_budget" in no.value.hint
        session.scale("b", 0)  # fewer are allowed
        with pytest.raises(ClusterError, match="at most 0"):
            session.scale("b", 1)
        eventually(lambda: counts(session) == {"a": 2, "b": 0})
        call = client.submit(wait_for, tmp_path / "end", tag="a")  # the workers stay
        eventually(lambda: (now := look(session))["idle"] < now["cost"])
        (tmp_path / "end").touch()
        assert call.result(timeout=60) is None

        session.set_budget(1e9)
        assert look(session)["stage"] == "open"
        session.scale("b", 1)
        assert client.submit(abs, -3, tag="b").result(timeout=60) == 3
        last = look(session)
    summary = json.loads((session.run_path / "summary.json").read_text())
    assert summary["cost"]["actual"] >= last["cost"]
    assert 0 < summary["cost"]["idle"] < summary["cost"]["actual"]
    assert set(summary["cost"]["by_tag"]) == {"a", "b"}
    assert summary["failures"]["classes"]["BudgetSpent"]["count"] >= 1


def test_costs_go_on_with_a_resumed_manager(place, tmp_path, eventually):
    place("budget: 1000000", PRICED)
    up("--yes", "--name", "one")
    eventually(lambda: (status("one")["cost"] or {"cost": 0})["cost"] > 3)
    kill("managers/local/manager.json", "one")
    before = status("one")["cost"]
    assert program("manager", "restart", "one").returncode == 0
    after = eventually(lambda: (c := status("one")["cost"])["cost"] > before["cost"] + 3 and c)
    # The workers were taken over: they are charged once, from their own start on, by begun seconds.
    age_s = time.time() - find("one").scheduler()["started_at"]
    assert after["cost"] <= 3 * math.ceil(age_s)
    assert after["per_hour"] == pytest.approx(3 * 3600)
    assert after["budget"] == 1000000
    text = program("status", "one").stdout
    assert "Cost:" in text
    assert "1000000.00 USD" in text
    assert "per hour" in text
    assert read("list")["clusters"][0]["cost"]["cost"] > 3
    assert "cost" in program("list").stdout.splitlines()[0]

    with scalable.connect("one") as client:
        assert client.submit(abs, -1, tag="a").result(timeout=60) == 1
        run = Path(find("one").scheduler()["run"])
        assert "1.00 USD" in program("scale", "one", "--budget", "1").stdout
    program("down", "one", "--yes")
    eventually(lambda: not processes_of(tmp_path))
    nothing_is_left(tmp_path)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["cost"]["actual"] >= after["cost"]
    assert summary["cost"]["budget"] == 1
    assert summary["cost"]["by_manager"].keys() == {"local"}
