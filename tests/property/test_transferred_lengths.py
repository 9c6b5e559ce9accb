"""More calls on a place make it depend less on other places."""

import math

from hypothesis import given
from hypothesis import strategies as st

from scalable.planning.transfer import transfers

TASK = ("model", "a")
SECONDS = st.floats(0.01, 1e5)


@given(SECONDS, SECONDS, st.integers(1, 50), st.integers(1, 50), st.integers(1, 50))
def test_more_calls_on_a_place_are_nearer_to_it_and_narrower(here, there, count, more, others):
    few = transfers({TASK: [here] * count}, {TASK: [there] * others})[TASK]
    many = transfers({TASK: [here] * (count + more)}, {TASK: [there] * others})[TASK]
    none = transfers({}, {TASK: [there] * others})[TASK]
    own = math.log(here / there)
    assert many.error < few.error < none.error
    off_many, off_few = (abs(math.log(found.factor) - own) for found in (many, few))
    assert off_many <= off_few + 1e-9 <= abs(own) + 1e-8
