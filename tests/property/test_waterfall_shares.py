"""What holds for every sharing of wanted counts."""

from hypothesis import given, settings
from hypothesis import strategies as st

from scalable.scaling.waterfall import Tier, Waterfall

TAGS = ("a", "b")
COUNTS = st.integers(0, 20)


@st.composite
def tiers(draw):
    return [
        Tier(
            manager=f"m{i}",
            priority=draw(st.integers(0, 2)),
            limits=draw(st.dictionaries(st.sampled_from(TAGS), COUNTS)),
            tags=draw(st.frozensets(st.sampled_from(TAGS))),
            running=draw(st.dictionaries(st.sampled_from(TAGS), COUNTS)),
            failed=draw(st.dictionaries(st.sampled_from(TAGS), st.just("broken"))),
            present=draw(st.booleans()),
        )
        for i in range(draw(st.integers(1, 4)))
    ]


@settings(deadline=None)
@given(
    wanted=st.dictionaries(st.sampled_from(TAGS), COUNTS),
    looks=st.lists(st.tuples(st.floats(0, 100), tiers()), min_size=1, max_size=6),
)
def test_shares_keep_to_tags_limits_and_what_is_there(wanted, looks):
    policy, now = Waterfall(10), 0.0
    for passed, seen in looks:
        now += passed
        first = policy.allot(wanted, seen, now)
        for tier in seen:
            for tag, count in first[tier.manager].items():
                assert tag in tier.tags
                assert 0 <= count <= min(wanted[tag], tier.limits.get(tag, wanted[tag]))
                assert tier.present or count <= tier.running.get(tag, 0)


@given(wanted=st.dictionaries(st.sampled_from(TAGS), COUNTS, min_size=1))
def test_a_single_manager_without_limits_gets_all(wanted):
    tier = Tier("m", tags=frozenset(TAGS))
    assert Waterfall().allot(wanted, [tier], 0.0) == {"m": wanted}
