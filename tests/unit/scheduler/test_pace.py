"""Long computations in the event loop give way to others."""

import asyncio
import math

import pytest

from scalable.scheduler import explaining


@pytest.mark.parametrize(("turn_s", "others"), [(0.0, 10), (math.inf, 0)])
async def test_others_have_their_turn_when_a_turn_has_lasted_long_enough(
    turn_s, others, monkeypatch
):
    monkeypatch.setattr(explaining, "TURN_S", turn_s)
    turns = []

    async def other():
        while True:
            turns.append("other")
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    explainer = object.__new__(explaining.Explainer)
    explainer._turn_began = 0.0
    assert [item async for item in explainer._in_turns(range(10))] == [*range(10)]
    beside.cancel()
    assert len(turns) == others
