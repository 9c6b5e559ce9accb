"""``scalable runs``: the list, and what it removes."""

import json
import os
import time

import pytest

from scalable.runs.directory import RunDirectory
from scalable.runs.overview import chosen_runs, remove_runs, run_overviews

DAY = 86_400.0


def make_run(directory, project, *, status="completed", age_s=DAY, calls=1):
    run = RunDirectory.create(
        project, "local", manifest_yaml="", manifest_lock="0" * 64, plan={}, runs_dir=directory
    )
    for number in range(calls):
        row = {"task_id": f"t-{number}", "task_name": "t", "timestamp": 1.0}
        run.append("tasks", {**row, "state": "succeeded" if number else "failed"})
    if status == "running":
        run.release()
    else:
        run.close(status)
    age(run.path, age_s)
    return run.path


def age(path, age_s):
    """Let a run have started, and have been written last, so many seconds ago."""
    moment = time.time() - age_s
    value = json.loads((path / "run.json").read_text())
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(moment))
    (path / "run.json").write_text(json.dumps({**value, "started_at": stamp}))
    for file in (*path.iterdir(), path):
        os.utime(file, (moment, moment))


def crash(path):
    """Let the process of a run be gone."""
    value = json.loads((path / "run.json").read_text())
    value |= {"pid": 2**22 + 1, "start_ticks": 1, "status": "running", "ended_at": None}
    (path / "run.json").write_text(json.dumps(value))
    (path / "summary.json").unlink(missing_ok=True)
    age(path, DAY)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("SCALABLE_RUNS_DIR", str(tmp_path / "runs"))
    return tmp_path / "runs"


def test_runs_are_listed_with_their_state_the_last_one_first(runs, invoke):
    old = make_run(runs, "old", age_s=3 * DAY, calls=5)
    crashed = make_run(runs, "crashed", age_s=2 * DAY, calls=2)
    crash(crashed)
    alive = make_run(runs, "alive", status="running", age_s=60)
    value = json.loads(invoke("runs", "--format", "json").out)["runs"]
    assert [(run["run_id"], run["state"]) for run in value] == [
        (alive.name, "running"),
        (crashed.name, "interrupted"),
        (old.name, "completed"),
    ]
    assert [(run["tasks"], run["failed"]) for run in value] == [(1, 1), (2, 1), (5, 1)]
    head, *lines = invoke("runs").out.splitlines()
    assert head.split()[:5] == ["run", "project", "target", "state", "started"]
    assert old.name in lines[2]
    assert "completed" in lines[2]


def test_no_runs_is_no_error(runs, invoke):
    result = invoke("runs")
    assert (result.code, result.out) == (0, f"{runs} contains no recorded run\n")


def test_an_unreadable_run_is_named_and_the_others_are_listed(runs, invoke):
    good = make_run(runs, "good")
    (runs / "run-broken").mkdir()
    (runs / "run-broken" / "run.json").write_text('{"status": "comp')
    (runs / "run-empty").mkdir()
    result = invoke("runs")
    assert result.code == 0
    assert good.name in result.out
    assert "run-broken is not a recorded run" in result.err
    assert "run-empty is not a recorded run" in result.err


def test_keep_removes_all_but_the_last_runs(runs, invoke):
    paths = [make_run(runs, f"p{n}", age_s=n * DAY) for n in (4, 3, 2, 1)]
    refused = invoke("runs", "prune", "--keep", "2")
    assert refused.code == 2
    assert paths[1].name in refused.err
    assert paths[2].name not in refused.err
    assert "Remove 2 runs of 4?" in refused.err
    assert "not a terminal: confirm with --yes. Nothing was removed." in refused.err
    dry = invoke("runs", "prune", "--keep", "2", "--dry-run", "--yes")
    assert (dry.code, dry.out.splitlines()[-1]) == (0, "2 runs of 4 would be removed")
    assert paths[0].name in dry.out
    value = json.loads(invoke("runs", "prune", "--keep", "2", "--dry-run", "--format=json").out)
    assert value["removed"] == [paths[1].name, paths[0].name]
    assert all(path.exists() for path in paths)
    result = invoke("runs", "prune", "--keep", "2", "--yes")
    assert (result.code, result.out) == (0, "removed 2 runs\n")
    assert [path.exists() for path in paths] == [False, False, True, True]
    assert len(list(runs.iterdir())) == 2


def test_older_than_and_keep_remove_only_what_both_allow(runs, invoke):
    old, middle, new = (make_run(runs, f"p{n}", age_s=n * DAY) for n in (40, 35, 1))
    result = invoke(
        "runs", "prune", "--older-than", "30d", "--keep", "2", "--yes", "--format", "json"
    )
    assert json.loads(result.out)["removed"] == [old.name]
    assert middle.exists()
    assert new.exists()
    assert invoke("runs", "prune", "--older-than", "soon").code == 2


def test_runs_that_are_alive_or_being_written_stay(runs, invoke):
    alive = make_run(runs, "alive", status="running", age_s=50 * DAY)
    written = make_run(runs, "written", age_s=50 * DAY)
    os.utime(written / "tasks.jsonl")
    result = invoke("runs", "prune", "--keep", "0", "--yes")
    assert result.out == "nothing to remove\n"
    assert f"{alive.name} is not removed: it is still running" in result.err
    assert f"{written.name} is not removed: it was written" in result.err
    assert alive.exists()
    assert written.exists()


def test_limits_and_prune_belong_together(runs, invoke):
    path = make_run(runs, "p")
    for words, message in (
        (["--keep", "0", "--yes"], "these options are for `scalable runs prune`"),
        (["prune", "--yes"], "give --keep N, --older-than DURATION, or both"),
    ):
        result = invoke("runs", *words)
        assert result.code == 2
        assert message in result.err
    assert path.exists()


def test_links_are_neither_followed_nor_removed(runs, tmp_path, invoke):
    elsewhere = make_run(tmp_path / "elsewhere", "there")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "data").write_text("x")
    run = make_run(runs, "here")
    (run / "logs").symlink_to(tmp_path / "precious")
    (runs / elsewhere.name).symlink_to(elsewhere)
    (runs / "notes.txt").write_text("mine")
    (runs / "other").mkdir()
    age(run, DAY)
    os.utime(tmp_path / "precious", (1, 1))
    result = invoke("runs", "prune", "--keep", "0", "--yes")
    assert result.out == "removed 1 run\n"
    assert f"{elsewhere.name} is not removed: it is a symbolic link" in result.err
    assert (elsewhere / "run.json").exists()
    assert (tmp_path / "precious" / "data").read_text() == "x"
    assert {path.name for path in runs.iterdir()} == {elsewhere.name, "notes.txt", "other"}


def test_a_run_that_comes_alive_after_it_was_chosen_stays(runs):
    path = make_run(runs, "p")
    chosen, kept = chosen_runs(run_overviews(runs)[0], keep=0)
    assert ([run.run_id for run in chosen], kept) == ([path.name], {})
    os.utime(path / "tasks.jsonl")
    removed, kept = remove_runs(chosen)
    assert removed == []
    assert kept[path.name].startswith("it was written")
    assert path.exists()
