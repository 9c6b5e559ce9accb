"""Managers that are filled by cost, on the real engine: one is slow, and one never delivers."""

import time
from pathlib import Path

import pytest

import scalable
from detached import nothing_is_left
from verbs import program, status, up

PLACES = """\
version: 1
project: {name: tests}
targets:
  local: {provider: local, processes: true, price_per_core_hour: 0.09, spill_after: %s}
  slow: {provider: local, processes: true, price_per_core_hour: 0.03, overlay: slow}
  never: {provider: local, processes: true, price_per_core_hour: 0.01, overlay: never}
overlays:
  slow: {components: {a: {preload_script: slow.py}}}
  never: {components: {a: {preload_script: never.py}}}
components:
  a: {cpus: 1, workers: 3}
tasks:
  note: {component: a, duration: 10s}
managers:
  policy: cheapest
%s
"""
ALL = """\
  places:
    - {target: local}
    - {target: slow, limits: {a: 2}}
    - {target: never}"""
TWO = """\
  deadline: 30s
  places: [{target: local}, {target: never}]"""


def note(directory, number):
    with (Path(directory) / "starts").open("a") as starts:
        starts.write(f"{number}\n")
    time.sleep(0.05)
    return number


def scripts(directory):
    (directory / "slow.py").write_text("import threading\nthreading.Event().wait(1.5)\n")
    (directory / "never.py").write_text("import signal\nsignal.pause()\n")


def attached():
    return sum(m["state"] == "attached" for m in status("one")["managers"])


def shares():
    """Workers that each manager runs."""
    managers = status("one")["managers"]
    return {m["id"]: m["pools"]["a"]["running"] if "a" in m["pools"] else 0 for m in managers}


def reasons():
    return {m["id"]: m["reasons"].get("a", "") for m in status("one")["managers"]}


def names(client):
    return {w["name"] for w in client.scheduler_info(n_workers=-1)["workers"].values()}


def run_all(directory, client, count):
    """Run calls, each of which leaves a line; each has to run once."""
    numbers = list(range(count))
    futures = client.map(note, [str(directory)] * count, numbers, tag="a", task="note", pure=False)
    yield
    assert client.gather(futures) == numbers
    assert sorted(map(int, (directory / "starts").read_text().split())) == numbers


def test_the_cheap_places_are_filled_one_that_never_delivers_is_passed_over(
    place,
    tmp_path,
    eventually,
):
    scripts(tmp_path)
    place("", PLACES % ("3s", ALL))
    up("--name", "one", "--no-wait", "--yes")
    eventually(lambda: attached() == 3, timeout=60)
    with scalable.connect("one") as client:
        calls = run_all(tmp_path, client, 60)
        next(calls)
        eventually(lambda: shares() == {"local": 1, "slow": 2, "never": 0}, timeout=90)
        next(calls, None)
        why = reasons()
        assert "passed over, as it delivers nothing" in why["never"]
        assert "0.03 an hour" in why["slow"]
        assert "0.09 an hour" in why["local"]
        shown = program("status", "one").stdout
        assert f"  never: a: {why['never'].split(';')[0]}" in shown
        # The dearest is drained first, and those that stay are the same as before.
        before = names(client)
        program("scale", "one", "a=2")
        eventually(lambda: shares() == {"local": 0, "slow": 2, "never": 0}, timeout=60)
        eventually(lambda: len(names(client)) == 2)  # the third one has ended
        assert names(client) < before
    program("down", "one", "--yes")
    nothing_is_left(tmp_path)


@pytest.mark.slow
def test_a_deadline_moves_work_away_from_a_queue_that_still_waits(
    place,
    tmp_path,
    eventually,
):
    """The patience is ten minutes: it is the deadline that moves the workers."""
    scripts(tmp_path)
    place("", PLACES % ("10min", TWO))
    up("--name", "one", "--no-wait", "--yes")
    eventually(lambda: attached() == 2, timeout=60)
    with scalable.connect("one") as client:
        calls = run_all(tmp_path, client, 60)
        next(calls)
        eventually(lambda: shares()["local"] > 0, timeout=60)
        next(calls, None)
    program("down", "one", "--yes")
    nothing_is_left(tmp_path)
