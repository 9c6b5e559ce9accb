"""``scalable cache``: the list of remembered results, what it says of a call, and what it removes."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from scalable.cache.checkpoints import Checkpoints, checkpoint_directory
from scalable.cache.entries import packed, pieces_of
from scalable.cache.key import CallKey
from scalable.cache.store import ResultStore, path_of

DAY = 86_400.0
PARTS = {"code:climate.run": "1", "argument:year": "1", "package:numpy": "numpy 2.3.1"}


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Return the user's own store, in a directory without a manifest."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return ResultStore(tmp_path / "cache" / "scalable" / "results")


@pytest.fixture
def invoke(invoke):
    """Run a verb in this process, and expect an exit code."""

    def run(*words, code=0):
        done = invoke(*words)
        assert done.code == code, done.err
        return done

    return run


def key(number):
    return f"{number:02x}" * 32


def put(store, number, *, age_s=0.0, size=10, **given):
    """Store a result that is so many seconds old, and return its path."""
    facts = {"cost_s": 60.0, "task": "simulate", "tag": "model"} | given
    parts, function = facts.pop("parts", PARTS), facts.pop("function", "climate.run")
    own = CallKey(key(number), parts, function)
    entry = store.put(own, b"x" * size, **facts)
    path = Path(store.url.removeprefix("file://"), path_of(own))
    old = replace(entry, created=time.time() - age_s)
    path.write_bytes(b"".join(pieces_of(old, packed(b"x" * size))))
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def listed(invoke, *words):
    value = json.loads(invoke("cache", "list", *words, "--format", "json").out)
    return [int(row["key"][:2], 16) for row in value["results"]]


def test_results_are_listed_with_their_sum_in_each_order(store, invoke):
    put(store, 1, age_s=3 * DAY, cost_s=5.0)
    put(store, 2, function="climate.plot", age_s=DAY, size=5000, task="plot")
    put(store, 3, age_s=2 * DAY, cost_s=600.0)
    assert listed(invoke) == [2, 3, 1]
    assert listed(invoke, "--sort", "size")[0] == 2
    assert listed(invoke, "--sort", "cost") == [3, 2, 1]
    assert listed(invoke, "--sort", "function") == [2, 3, 1]
    assert listed(invoke, "--function", "run") == [3, 1]
    assert listed(invoke, "--task", "plot") == [2]
    assert listed(invoke, "--limit", "1") == [2]
    text = invoke("cache", "list", "--limit", "2").out
    assert "climate.plot" in text
    assert key(2)[:12] in text
    assert "10 m 00 s" in text
    assert "and 1 more result" in text
    assert "3 results" in text
    assert "computed in 11 m 05 s" in text
    assert invoke("cache", "list", "--format", "quiet").out == ""


def test_an_empty_store_and_a_filter_without_results_are_said(store, invoke, tmp_path):
    assert "is empty" in invoke("cache", "list").out
    assert not (tmp_path / "cache").exists()
    put(store, 1)
    assert "contains no such result" in invoke("cache", "list", "--task", "other").out
    assert json.loads(invoke("cache", "list", "--task", "other", "--format", "json").out)[
        "sum"
    ] == {
        "results": 0,
        "size": 0,
        "cost_s": 0,
        "unreadable": 0,
    }


def test_names_in_the_list_move_no_cursor(store, invoke):
    put(store, 1, function="climate.\x1b[2J\nrun", task="a\rb")
    text = invoke("cache", "list").out + invoke("cache", "why", key(1)).out
    assert "\x1b" not in text
    assert "\r" not in text


def test_a_call_is_compared_with_the_nearest_earlier_one(store, invoke):
    put(store, 1, age_s=3 * DAY, parts=PARTS)
    put(store, 2, age_s=2 * DAY, parts=PARTS | {"argument:year": "9", "code:climate.run": "9"})
    put(store, 3, age_s=DAY, parts=PARTS | {"package:numpy": "numpy 2.3.5"})
    put(store, 4, parts=PARTS | {"package:numpy": "numpy 2.3.5", "environment:TOKEN": "secret"})
    text = invoke("cache", "why", key(3)[:8]).out
    assert f"It differs from {key(1)[:12]}, stored 3 d 00 h ago" in text
    assert "  numpy is 2.3.5, was 2.3.1\n" in text
    assert "climate.run, key 0303" in text
    latest = invoke("cache", "why", "run")
    assert "the environment variable TOKEN is set now, was not before" in latest.out
    assert "secret" not in latest.out
    value = json.loads(invoke("cache", "why", "climate.run", "--format", "json").out)
    assert (value["key"], value["nearest"]["key"]) == (key(4), key(3))
    assert value["why"] == "the environment variable TOKEN is set now, was not before"
    assert value["parts"]["environment:TOKEN"] == ""
    first = invoke("cache", "why", key(1))
    assert "There is no earlier result of this function." in first.out


def test_a_call_that_is_not_there_or_is_several_is_an_error(store, invoke):
    put(store, 1, function="climate.run")
    put(store, 2, function="other.run")
    assert "2 functions match run" in invoke("cache", "why", "run", code=5).err
    assert "no results of function 'walk' are stored" in invoke("cache", "why", "walk", code=5).err
    assert "no result has the key beef" in invoke("cache", "why", "beef", code=5).err
    assert invoke("cache", "why", "climate.run").code == 0


def test_results_are_removed_by_key_by_function_or_all(store, invoke):
    for number in range(1, 6):
        put(store, number, function="climate.plot" if number > 3 else "climate.run")
    refused = invoke("cache", "rm", key(1)[:8], code=2)
    assert "confirm with --yes. Nothing was removed." in refused.err
    assert "Remove 1 result of" in refused.err
    assert "climate.run" in refused.err
    dry = invoke("cache", "rm", "--function", "plot", "--dry-run").out
    assert "climate.plot" in dry
    assert dry.endswith("\n2 results would be removed\n")
    assert len(listed(invoke)) == 5
    assert invoke("cache", "rm", key(1)[:8], "--yes").out == "removed 1 result\n"
    assert invoke("cache", "rm", "--function", "plot", "--yes").out == "removed 2 results\n"
    assert sorted(listed(invoke)) == [2, 3]
    put(store, 2).write_bytes(b"torn")
    assert invoke("cache", "rm", "--all", "--yes").out == "removed 2 results\n"
    assert invoke("cache", "rm", "--all").out == "nothing to remove\n"
    assert "give keys" in invoke("cache", "rm", "--yes", code=2).err
    assert "give keys" in invoke("cache", "rm", "--all", key(1), code=2).err


def test_unreadable_entries_are_counted_and_removed_by_their_key(store, invoke):
    put(store, 1)
    put(store, 2).write_bytes(b"torn")
    assert f"1 entry cannot be read: `scalable cache rm {key(2)[:12]}`" in (
        invoke("cache", "list").out
    )
    assert invoke("cache", "rm", key(2)[:12], "--yes").out == "removed 1 result\n"
    assert "cannot be read" not in invoke("cache", "list").out


def test_collection_says_what_goes_and_what_stays(store, invoke):
    for number in range(1, 5):
        put(store, number, age_s=number * DAY, size=100_000)
    words = ("cache", "prune", "--limit", "250k", "--max-age", "60h")
    wanted = json.loads(invoke(*words, "--dry-run", "--format", "json").out)
    assert "would remove 2 results" in invoke(*words, "--dry-run").out
    refused = invoke(*words, code=2).err
    assert "would remove 2 results" in refused
    assert "Remove 2 results of 19" in refused
    assert "confirm with --yes. Nothing was removed." in refused
    assert len(listed(invoke)) == 4
    text = invoke(*words, "--yes").out
    assert "removed 2 results" in text
    assert "2 results of 196" in text
    assert wanted["keys"] == [key(3), key(4)]
    assert wanted["other_releases"] == {"entries": 0, "size": 0}
    assert listed(invoke) == [1, 2]
    dry = json.loads(invoke("cache", "prune", "--limit", "1", "--dry-run", "--format", "json").out)
    assert (dry["removed"], dry["left"]["entries"], len(listed(invoke))) == (2, 0, 2)


def test_collection_removes_old_checkpoints_that_nobody_uses(store, invoke, tmp_path):
    checkpoints = Checkpoints(checkpoint_directory(store.url))
    checkpoints.prepare("remembered")
    for number, age_s in enumerate((3 * DAY, 60)):
        checkpoint = checkpoints.begin("remembered", str(number))
        checkpoint.path.joinpath("state").write_bytes(bytes(2048))
        checkpoint.end(succeeded=False)
        for each in (*checkpoint.path.parents[:1], checkpoint.path, checkpoint.path / "state"):
            os.utime(each, (time.time() - age_s,) * 2)
    words = ("cache", "prune", "--max-age", "2d")
    assert "would remove 1 checkpoint of 2.00 kiB" in invoke(*words, "--dry-run").out
    assert "checkpoint" not in invoke("cache", "prune", "--limit", "1G").out
    assert "Remove 1 checkpoint of 2.00 kiB from" in invoke(*words, code=2).err
    found = json.loads(invoke(*words, "--yes", "--format", "json").out)
    assert found["checkpoints"] == {"number": 1, "size": 2048}
    assert "checkpoint" not in invoke(*words).out


def test_collection_where_nothing_was_remembered_removes_nothing(store, invoke, tmp_path):
    assert "nothing to remove" in invoke("cache", "prune", "--limit", "1G").out
    assert not (tmp_path / "cache").exists()
    assert "is not an amount of memory" in invoke("cache", "prune", "--limit", "much", code=2).err


def test_files_of_killed_processes_are_counted_and_removed(store, invoke):
    left = put(store, 1).with_name(".tmp-killed")
    left.write_bytes(b"half")
    os.utime(left, (time.time() - DAY,) * 2)
    assert "would remove 1 file of killed processes" in invoke("cache", "prune", "--dry-run").out
    assert "Remove 1 file of killed processes from" in invoke("cache", "prune", code=2).err
    assert left.exists()
    assert "removed 1 file of killed processes" in invoke("cache", "prune", "--yes").out
    assert not left.exists()
    assert listed(invoke) == [1]


def test_results_of_other_releases_are_shown_and_removed(store, invoke, tmp_path):
    put(store, 1)
    digest = "ab" * 32
    left = tmp_path / "cache" / "scalable" / "results" / "entries" / "ab" / digest
    left.parent.mkdir(parents=True)
    left.write_bytes(bytes(2048))
    assert listed(invoke) == [1]
    line = "1 file of other releases (2.00 kiB)"
    assert f"would remove {line}" in invoke("cache", "prune", "--dry-run").out
    assert f"Remove {line} from" in invoke("cache", "prune", code=2).err
    assert left.exists()
    assert f"removed {line}" in invoke("cache", "prune", "--yes").out
    assert not left.parent.parent.exists()
    assert listed(invoke) == [1]


def test_the_store_is_that_of_the_manifest_or_the_one_that_is_named(
    store, invoke, tmp_path, project
):
    put(store, 1)
    own = ResultStore(tmp_path / "other")
    put(own, 2)
    text = (project / "scalable.yaml").read_text()
    assert listed(invoke) == [1]
    named = text.replace("  name: climate\n", f"  name: climate\n  local_cache: {tmp_path}/other\n")
    (project / "scalable.yaml").write_text(named)
    assert listed(invoke) == [2]
    assert listed(invoke, "--target", "local") == [2]
    assert listed(invoke, "--store", store.url) == [1]
    overlays = named.replace("    max_workers: 3\n", "    max_workers: 3\n    overlay: here\n")
    overlays += f"overlays:\n  here:\n    project:\n      local_cache: {tmp_path}/third\n"
    (project / "scalable.yaml").write_text(overlays)
    assert "choose one with --target" in invoke("cache", "list", code=5).err
    assert listed(invoke, "--target", "other") == [2]
    assert listed(invoke, "--target", "local") == []
    assert "scheme" in invoke("cache", "list", "--store", "ftp://x/y", code=2).err
