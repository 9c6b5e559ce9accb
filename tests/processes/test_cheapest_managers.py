"""Managers that are filled in the order of their prices, on the real engine."""

import pytest

import scalable
from detached import nothing_is_left
from verbs import program, status, up

PLACES = """\
version: 1
project: {name: tests}
targets:
  local: {provider: local, processes: true, price_per_core_hour: 0.09, spill_after: %s}
  cheap: {provider: local, processes: true, price_per_core_hour: 0.03}
  never: {provider: local, processes: true, price_per_core_hour: 0.01, overlay: never}
overlays:
  never: {components: {a: {preload_script: never.py}}}
components:
  a: {cpus: 1, workers: 3}
managers:
  policy: cheapest
  places:
    - {target: local, priority: 0}
    - {target: %s, priority: 1, limits: {a: 2}}
"""


@pytest.fixture
def started(place, tmp_path, eventually):
    """Return a function that starts a cluster on ``local`` and another target."""
    (tmp_path / "never.py").write_text("import signal\nsignal.pause()\n")

    def start(other, spill_after):
        place("", PLACES % (spill_after, other))
        up("--name", "one", "--no-wait", "--yes")
        attached = [{"state": "attached"}] * 2
        eventually(
            lambda: [{"state": m["state"]} for m in status("one")["managers"]] == attached,
            timeout=60,
        )

    yield start
    program("down", "one", "--yes")
    nothing_is_left(tmp_path)


def shares():
    """Workers that each manager runs."""
    managers = status("one")["managers"]
    return {m["id"]: m["pools"]["a"]["running"] if "a" in m["pools"] else 0 for m in managers}


def names(client):
    return {w["name"] for w in client.scheduler_info(n_workers=-1)["workers"].values()}


def test_the_cheaper_manager_is_filled_first_and_drained_last(started, eventually):
    started("cheap", "5min")
    with scalable.connect("one") as client:
        eventually(lambda: shares() == {"local": 1, "cheap": 2}, timeout=90)
        before = names(client)
        program("scale", "one", "a=2")
        eventually(lambda: shares() == {"local": 0, "cheap": 2}, timeout=60)
        eventually(lambda: len(names(client)) == 2)  # the third one has ended
        assert names(client) < before


@pytest.mark.slow
def test_the_next_manager_is_used_when_the_cheapest_does_not_deliver(started, eventually):
    started("never", "3s")
    eventually(lambda: shares() == {"local": 3, "never": 0}, timeout=90)
    with scalable.connect("one") as client:
        assert client.submit(abs, -1, tag="a").result(timeout=60) == 1
