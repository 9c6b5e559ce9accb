"""Sharing out what pools may have together."""

from hypothesis import given
from hypothesis import strategies as st

from scalable.scaling.policy import Claim, shared_out


def test_a_short_supply_is_shared_by_work():
    claims = {"a": Claim(0, 9, 30.0), "b": Claim(0, 9, 10.0)}
    assert shared_out(4, claims) == {"a": 3, "b": 1}


def test_nobody_starves_beside_a_large_pool():
    claims = {"a": Claim(0, 9, 1e6), "b": Claim(0, 9, 1.0)}
    assert shared_out(4, claims) == {"a": 3, "b": 1}


def test_busy_workers_stay_and_idle_ones_make_room():
    # Five are busy: nothing is taken from them, nor from the minimum of the other.
    assert shared_out(4, {"a": Claim(5, 5, 9.0), "b": Claim(1, 3, 9.0)}) == {"a": 5, "b": 1}
    # Two of four are busy; the two idle ones go where work waits.
    assert shared_out(4, {"a": Claim(2, 4, 1.0), "b": Claim(0, 4, 99.0)}) == {"a": 2, "b": 2}


claims = st.dictionaries(
    st.sampled_from("abcd"),
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.floats(0, 1e6)).map(
        lambda c: Claim(c[0], c[0] + c[1], c[2])
    ),
)


@given(st.integers(-5, 40), claims)
def test_nobody_gets_less_than_the_least_nor_more_than_wished(maximum, claims):
    counts = shared_out(maximum, claims)
    assert all(claim.least <= counts[tag] <= claim.wished for tag, claim in claims.items())
    least = sum(claim.least for claim in claims.values())
    wished = sum(claim.wished for claim in claims.values())
    assert sum(counts.values()) == min(wished, max(maximum, least))
