"""Views of pools for tests of policies, and pools after decisions."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from scalable.scaling.pool_policy import PoolView
from scalable.scaling.task_model import Expectation, Kind, TaskModel

KINDS = [Kind("run", "a"), Kind("run", "b")]
SECONDS = st.floats(0.0, 2000.0)


@st.composite
def views(draw: st.DrawFn) -> PoolView:
    slots = draw(st.integers(1, 3))
    busy, idle = draw(st.integers(0, 20)), draw(st.integers(0, 10))
    arriving = draw(st.lists(SECONDS, max_size=10))
    minimum = draw(st.integers(0, 10))
    running = {KINDS[0]: draw(st.lists(SECONDS, min_size=busy, max_size=busy * slots))}
    # A worker idles only while nothing waits.
    queued = {} if idle else {draw(st.sampled_from(KINDS)): draw(st.integers(0, 300))}
    waiting = st.tuples(SECONDS, st.sampled_from(KINDS), st.integers(1, 50))
    return PoolView(
        now=draw(st.floats(0, 1e6)),
        minimum=minimum,
        maximum=draw(st.none() | st.integers(minimum, 40)),
        slots=slots,
        wanted=busy + idle + len(arriving),
        busy=busy,
        idle=idle,
        arriving=arriving,
        queued=queued,
        running=running,
        coming=sorted(draw(st.lists(waiting, max_size=5))),
        submitted=draw(st.integers(0, 1000)),
        graph=draw(st.booleans()),
        startup_s=draw(st.floats(0.1, 1000)),
        billed_startup_s=draw(st.floats(0, 100)),
    )


def applied(view: PoolView, workers: int) -> PoolView:
    """The pool once that count is asked for: first those on their way go, then idle ones."""
    more = workers - view.wanted
    if more >= 0:
        return replace(view, wanted=workers, arriving=[*view.arriving, *[0.0] * more])
    cancelled = min(-more, len(view.arriving))
    arriving = sorted(view.arriving, reverse=True)[: len(view.arriving) - cancelled]
    left = -more - cancelled
    idle = max(0, view.idle - left)
    return replace(view, wanted=workers, arriving=arriving, idle=idle)


def informed(mean_s: float) -> TaskModel:
    """A model that knows both kinds of calls."""
    return TaskModel({("run", "a"): Expectation(mean_s), ("run", "b"): Expectation(3 * mean_s)})
