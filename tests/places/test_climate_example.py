"""The example: the model's known values, the reduction, the files, and the whole workflow."""

import csv
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "climate-ensemble"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"

# FaIR 1.6.4 with NumPy < 2.4; model.py says why, and filters the same when it is not under test.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning:fair.forward"
)


def load(name):
    spec = importlib.util.spec_from_file_location(f"climate_{name}", EXAMPLE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model():
    return load("model")


@pytest.fixture(scope="module")
def impacts():
    return load("impacts")


@pytest.fixture
def summaries():
    """Two scenarios in three years; five equal percentiles, a kelvin apart."""
    return {
        "cool": np.add.outer(np.arange(5.0), [0.0, 0.1, 0.2]),
        "warm": np.add.outer(np.arange(5.0), [1.0, 1.1, 1.23456]),
    }


@pytest.fixture
def years():
    return np.array([2004, 2005, 2006])


# The model --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pathway", "expected"), [("rcp26", 1.63), ("rcp45", 2.55), ("rcp85", 4.77)]
)
def test_warming_in_2100_is_the_known_one(model, pathway, expected):
    warming = model.warming(model.PATHWAYS[pathway], tcr=1.75, ecs=3.0)

    assert warming.shape == (336,)
    assert warming[2100 - 1765] == pytest.approx(expected, abs=0.01)


def test_leaving_out_the_years_after_2100_changes_nothing(model):
    from fair.forward import fair_scm

    _, _, whole = fair_scm(emissions=model.PATHWAYS["rcp60"], tcrecs=np.array([1.75, 3.0]))

    assert whole.shape == (736,)
    np.testing.assert_array_equal(model.warming(model.PATHWAYS["rcp60"], 1.75, 3.0), whole[:336])


def test_a_batch_is_one_row_per_pair(model):
    pairs = np.array([[1.75, 3.0], [1.2, 2.0]])

    batch = model.run_batch(EXAMPLE / "scenarios" / "rcp45.toml", pairs)

    assert batch.shape == (2, len(model.YEARS))
    np.testing.assert_array_equal(batch[1], model.warming(model.PATHWAYS["rcp45"], 1.2, 2.0))
    assert batch[0, -1] > batch[1, -1]


def test_scenario_changes_its_fossil_emissions_from_a_year_on(model, tmp_path):
    text = (EXAMPLE / "scenarios" / "rcp45.toml").read_text(encoding="utf-8")
    (tmp_path / "rcp45.toml").write_text(text.replace("factor = 1.0", "factor = 0.5"))
    name, changed = model.read_scenario(tmp_path / "rcp45.toml")
    ratio = changed[:, 1] / model.PATHWAYS["rcp45"][:, 1]

    assert name == "RCP 4.5"
    assert set(ratio[: 2020 - 1765]) == {1.0}
    assert set(ratio[2020 - 1765 :]) == {0.5}
    np.testing.assert_array_equal(changed[:, 2:], model.PATHWAYS["rcp45"][:, 2:])


def test_draws_follow_the_documented_distribution(model):
    draws = model.draw_parameters(2000, seed=1)

    assert draws.shape == (2000, 2)
    assert (draws[:, 1] >= draws[:, 0]).all()
    # Mean of the CMIP5 models: TCR 1.82 K, ECS 3.21 K.
    np.testing.assert_allclose(draws.mean(axis=0), [1.82, 3.21], atol=0.06)
    assert np.corrcoef(draws.T)[0, 1] > 0.7


def test_the_seed_decides_the_draws(model):
    first = model.draw_parameters(20, seed=7)

    np.testing.assert_array_equal(first, model.draw_parameters(20, seed=7))
    assert not np.array_equal(first, model.draw_parameters(20, seed=8))


# The reduction and the files --------------------------------------------------------------------


def test_percentiles_run_over_the_members_of_all_batches(impacts):
    # 101 members with the values 0..100 in the first year, and ten times that in the second: a
    # percentile is then its own value.
    values = np.arange(101.0)[::-1]
    members = np.stack([values, 10 * values], axis=1)

    rows = impacts.percentiles([members[:40], members[40:41], members[41:]])

    expected = np.array([5, 17, 50, 83, 95])
    np.testing.assert_allclose(rows, np.stack([expected, 10 * expected], axis=1))


def test_results_are_a_table_a_plot_and_a_headline(impacts, summaries, years, tmp_path):
    folder = tmp_path / "deep" / "down"

    results = impacts.write_results(summaries, years, str(folder))

    assert Path(results["csv"]).parent == Path(results["png"]).parent == folder
    with Path(results["csv"]).open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == ["scenario", "year", "p05", "p17", "p50", "p83", "p95"]
    assert len(rows) == 2 * 3
    assert rows[1] == ["cool", "2005", "0.1000", "1.1000", "2.1000", "3.1000", "4.1000"]
    assert rows[-1] == ["warm", "2006", "1.2346", "2.2346", "3.2346", "4.2346", "5.2346"]
    image = Path(results["png"]).read_bytes()
    assert image.startswith(PNG_SIGNATURE)
    assert len(image) > 10_000
    assert [row[0] for row in results["headline"]] == ["cool", "warm"]
    assert results["headline"][1][1:] == pytest.approx((1.23456, 3.23456, 5.23456))


def test_results_replace_those_of_an_earlier_run(impacts, summaries, years, tmp_path):
    impacts.write_results(summaries, years, str(tmp_path))

    results = impacts.write_results({"cool": summaries["cool"]}, years, str(tmp_path))

    assert len(Path(results["csv"]).read_text(encoding="utf-8").splitlines()) == 1 + 3


# The workflow -----------------------------------------------------------------------------------


def run_workflow(directory, *arguments, example=EXAMPLE):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SCALABLE_")
    }
    return subprocess.run(
        [sys.executable, example / "workflow.py", *arguments],
        cwd=directory,
        env=environment | {"XDG_CACHE_HOME": str(directory / "cache")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def read_rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_workflow_runs_through_a_session(tmp_path):
    done = run_workflow(tmp_path, "--draws", "12", "--output", "results")

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    table, plot = tmp_path / "results" / "warming.csv", tmp_path / "results" / "warming.png"
    assert len(table.read_text(encoding="utf-8").splitlines()) == 1 + 4 * 336
    assert plot.read_bytes().startswith(PNG_SIGNATURE)
    scenarios = [line[:7] for line in done.stdout.splitlines() if line.startswith("RCP ")]
    assert scenarios == ["RCP 2.6", "RCP 4.5", "RCP 6.0", "RCP 8.5"]
    assert str(table) in done.stdout
    assert str(plot) in done.stdout

    (run,) = (tmp_path / ".scalable" / "runs").iterdir()
    artifacts = {row["kind"]: row for row in read_rows(run / "artifacts.jsonl")}
    assert artifacts["table"]["path"] == str(table)
    assert artifacts["plot"]["path"] == str(plot)
    ended = [row for row in read_rows(run / "tasks.jsonl") if row["state"] == "succeeded"]
    calls = [(row["task_name"], row["tag"]) for row in ended]
    assert calls.count(("simulate", "climate")) == 4 * 2  # 12 draws are two calls
    assert calls.count(("summarize", "impacts")) == 4
    assert calls.count(("write", "impacts")) == 1
    assert len(calls) == 13


def ran(directory, example):
    """Run the workflow of a copy, and return the number of calls of each task that ran."""
    done = run_workflow(directory, "--draws", "20", "--output", "results", example=example)
    assert done.returncode == 0, done.stderr
    run = max((directory / ".scalable" / "runs").iterdir())
    rows = [row for row in read_rows(run / "tasks.jsonl") if row["state"] == "succeeded"]
    return Counter(row["task_name"] for row in rows), done.stdout


@pytest.mark.slow  # docs/resuming.md shows the same, and is run in tests/places
def test_a_second_run_runs_only_what_a_change_concerns(tmp_path):
    example = shutil.copytree(EXAMPLE, tmp_path / "example")
    first, shown = ran(tmp_path, example)
    assert first == {"simulate": 8, "summarize": 4, "write": 1}
    table = (tmp_path / "results" / "warming.csv").read_text(encoding="utf-8")

    assert ran(tmp_path, example) == ({"write": 1}, shown)
    assert (tmp_path / "results" / "warming.csv").read_text(encoding="utf-8") == table

    impacts = example / "impacts.py"
    impacts.write_text(impacts.read_text(encoding="utf-8").replace("(5, 17, 50", "(6, 17, 50"))
    assert ran(tmp_path, example)[0] == {"summarize": 4, "write": 1}
    assert (tmp_path / "results" / "warming.csv").read_text(encoding="utf-8") != table

    scenario = example / "scenarios" / "rcp45.toml"
    scenario.write_text(
        scenario.read_text(encoding="utf-8").replace("factor = 1.0", "factor = 0.9")
    )
    assert ran(tmp_path, example)[0] == {"simulate": 2, "summarize": 1, "write": 1}


def test_the_workflow_refuses_to_run_without_members(tmp_path):
    done = run_workflow(tmp_path, "--draws", "0")

    assert done.returncode == 2
    assert "must be at least 1" in done.stderr
    assert list(tmp_path.iterdir()) == []
