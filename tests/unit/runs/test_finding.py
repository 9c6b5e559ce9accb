"""Which run is meant."""

import json

import pytest

from scalable.errors import RunError
from scalable.runs.overview import find_run, list_runs


def make(runs_dir, name, started_at):
    path = runs_dir / name
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"run_id": name, "started_at": started_at}))
    return path


@pytest.fixture
def runs(tmp_path):
    # The names are in the opposite order of the starts.
    return [
        make(tmp_path, "run-3-early-aa", "2026-01-01T00:00:00+00:00"),
        make(tmp_path, "run-2-middle-bb", "2026-01-01T02:30:00+01:00"),
        make(tmp_path, "run-1-late-cc", "2026-01-01T02:00:00+00:00"),
    ]


def test_an_id_that_begins_another_one_is_itself(tmp_path):
    short = make(tmp_path, "run-a", "2026-01-01T00:00:00+00:00")
    make(tmp_path, "run-ab", "2026-01-01T00:00:00+00:00")
    assert find_run(tmp_path, "run-a") == short


def test_beginning_of_several(tmp_path, runs):
    with pytest.raises(RunError, match=r"several runs.*run-1-late-cc, run-2-middle-bb"):
        find_run(tmp_path, "run-")


@pytest.mark.parametrize("run_id", ["run-9", "../run-1-late-cc", "*"])
def test_unknown_id_lists_the_known(tmp_path, runs, run_id):
    with pytest.raises(RunError, match=r"contains no run") as caught:
        find_run(tmp_path, run_id)
    assert caught.value.hint == "recorded runs: run-1-late-cc, run-2-middle-bb, run-3-early-aa"


def test_a_long_list_is_cut(tmp_path):
    for number in range(8):
        make(tmp_path, f"run-{number}", f"2026-01-01T00:00:0{number}+00:00")
    with pytest.raises(RunError) as caught:
        find_run(tmp_path, "nothing")
    assert caught.value.hint == "recorded runs: run-7, run-6, run-5, run-4, run-3 and 3 more"


def test_directories_without_a_run_are_passed_over(tmp_path, runs):
    (tmp_path / "run-being-made").mkdir()
    (tmp_path / "run-file").write_text("")
    (tmp_path / "run-torn").mkdir()
    (tmp_path / "run-torn" / "run.json").write_text("{")
    assert list_runs(tmp_path) == runs[::-1]


@pytest.mark.parametrize("started_at", [None, 17, "yesterday"])
def test_a_run_without_a_start_comes_last(tmp_path, runs, started_at):
    odd = make(tmp_path, "run-9-odd", started_at)
    assert list_runs(tmp_path)[-1] == odd


def test_a_start_without_zone_is_utc(tmp_path, runs):
    newest = make(tmp_path, "run-0", "2026-01-01T03:00:00")
    assert find_run(tmp_path) == newest


def test_an_id_may_be_cut_as_in_a_table(tmp_path, runs):
    assert find_run(tmp_path, "run-2…bb") == runs[1]
    with pytest.raises(RunError, match="contains no run"):
        find_run(tmp_path, "run-2…cc")
