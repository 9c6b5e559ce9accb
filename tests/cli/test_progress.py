"""How far a run is, and how that is shown."""

import json

import pytest

from scalable.cli.output import LineDisplay, open_output
from scalable.cli.progress import Followed, PoolCounts, RunProgress, render_pools


def call(task_id, state, tag="climate"):
    return {"task_id": task_id, "task_name": "f", "tag": tag, "state": state}


def worker(event, name, tag="climate", reason=None):
    return {"event": event, "worker": name, "tag": tag, "reason": reason}


def scaled(tag, count):
    return {"tag": tag, "from": 0, "to": count, "action": "scale-up"}


def test_rows_add_up():
    progress = RunProgress()
    progress.add(
        {
            "scaling": [scaled("climate", 2), scaled("impacts", 1)],
            "workers": [worker("requested", "c-0"), worker("started", "c-0")],
            "tasks": [call(n, "submitted") for n in "abcd"] + [call("z", "submitted", None)],
        }
    )
    progress.add(
        {
            "workers": [worker("started", "c-1"), worker("removed", "c-1", reason="lost")],
            "tasks": [
                *(call(n, "running") for n in "abc"),
                call("a", "succeeded"),
                call("b", "failed"),
            ],
        }
    )
    assert progress.pools() == {
        "climate": PoolCounts(workers=1, wanted=2, done=1, running=1, waiting=1, failed=1),
        "impacts": PoolCounts(workers=0, wanted=1),
        "(no tag)": PoolCounts(waiting=1),
    }
    assert not progress.ended


def test_a_call_that_runs_again_is_counted_once():
    progress = RunProgress()
    states = ["submitted", "running", "succeeded", "submitted", "running"]
    progress.add({"tasks": [call("a", state) for state in states]})
    assert progress.pools() == {"climate": PoolCounts(running=1)}
    progress.add({"tasks": [call("a", "succeeded")]})
    assert progress.pools() == {"climate": PoolCounts(done=1)}


def test_a_session_that_closes_ends_its_run():
    progress = RunProgress()
    progress.add({"workers": [worker("started", "a"), worker("removed", "a", reason="scale-down")]})
    assert not progress.ended
    progress.add({"workers": [worker("started", "b"), worker("removed", "b", reason="closed")]})
    assert progress.ended


def test_rows_that_lack_something_do_no_harm():
    progress = RunProgress()
    progress.add({"scaling": [{}, {"to": None}], "workers": [{}], "tasks": [{}]})
    assert progress.pools() == {"(no tag)": PoolCounts()}


def test_one_line():
    pools = {
        "climate": PoolCounts(workers=2, wanted=2, done=14, running=2, waiting=8),
        "im\x1b[31mpacts": PoolCounts(workers=1, failed=3),
    }
    assert render_pools(pools) == (
        "climate: 2/2 workers, 14 done, 2 running, 8 waiting | im?[31mpacts: 1 workers, 3 failed"
    )


# Following runs ------------------------------------------------------------------------------------


def write(run, stream, *rows):
    run.mkdir(exist_ok=True)
    with (run / f"{stream}.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def test_runs_are_followed_from_when_they_are_listed(tmp_path):
    listing, first, second = tmp_path / "listing", tmp_path / "run-1", tmp_path / "run-2"
    followed = Followed(listing)
    assert (followed.runs(), followed.poll()) == ([], {})
    write(first, "workers", worker("started", "a"))
    listing.write_text(f"{first}\n{second}"[:-1])
    assert followed.runs() == [first]
    assert followed.poll() == {"climate": PoolCounts(workers=1)}
    listing.write_text(f"{first}\n{second}\n{first}\n")
    write(second, "workers", worker("started", "a"), worker("started", "b"))
    assert followed.runs() == [first, second]
    assert followed.poll() == {
        "run-1/climate": PoolCounts(workers=1),
        "run-2/climate": PoolCounts(workers=2),
    }
    write(first, "workers", worker("removed", "a", reason="closed"))
    assert followed.poll() == {"climate": PoolCounts(workers=2)}


# Showing -------------------------------------------------------------------------------------------


def test_a_log_gets_few_lines_and_none_twice(capsys):
    display = LineDisplay()
    moments = [(0.4, 0), (3, 1), (9, 2), (12, 3), (15, 3), (100, 3), (101, 4), (105, 5)]
    with display:
        for elapsed, done in moments:
            display.update(elapsed, {"climate": PoolCounts(workers=2, wanted=2, done=done)})
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "[   0 s] climate: 2/2 workers",
        "[  12 s] climate: 2/2 workers, 3 done",
        "[ 101 s] climate: 2/2 workers, 4 done",
    ]


@pytest.mark.parametrize("form", ["json", "quiet"])
def test_programs_see_no_progress(form, capsys, tmp_path):
    for out in (open_output(form), open_output(form, tmp_path / "file")):
        with out.display() as display:
            display.update(1, {"climate": PoolCounts(done=1)})
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_whole_lines_too(monkeypatch):
    """The workflow prints to the same terminal, and may do so at any time."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert type(open_output().display()) is LineDisplay
