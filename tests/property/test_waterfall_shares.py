"""What holds for every sharing of wanted counts."""

from hypothesis import given
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


WANTED = st.dictionaries(st.sampled_from(TAGS), COUNTS)


@given(looks=st.lists(st.tuples(st.floats(0, 100), WANTED, tiers()), min_size=1, max_size=6))
def test_shares_keep_to_tags_limits_and_what_is_there(looks):
    policy, now = Waterfall(10), 0.0
    for passed, wanted, seen in looks:
        now += passed
        first = policy.allot(wanted, seen, now)
        for _ in range(2):
            assert policy.allot(wanted, seen, now) == first
        for tier in seen:
            for tag, count in first[tier.manager].items():
                assert tag in tier.tags
                assert 0 <= count <= min(wanted[tag], tier.limits.get(tag, wanted[tag]))
                assert tier.present or count <= tier.running.get(tag, 0)


@st.composite
def places(draw):
    """Priority and seconds that a worker is on its way, of managers without limits."""
    return draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 25)), min_size=1, max_size=3))


@given(places=places(), wanted=st.integers(1, 6))
def test_wanted_workers_arrive_from_slow_places(places, wanted):
    """Each place delivers what it was asked for without a break; withdrawn orders start anew."""
    policy = Waterfall(10)
    queues = [[] for _ in places]  # when each worker of a place was asked for
    for now in range(400):
        seen = [
            Tier(
                f"m{i}",
                priority=priority,
                tags=frozenset(["a"]),
                running={"a": sum(now - since >= delay for since in queues[i])},
            )
            for i, (priority, delay) in enumerate(places)
        ]
        shares = policy.allot({"a": wanted}, seen, float(now))
        for queue, tier in zip(queues, seen, strict=True):
            share = shares[tier.manager]["a"]
            queue[share:] = []
            queue.extend([now] * (share - len(queue)))
    assert sum(tier.running["a"] for tier in seen) >= wanted
    assert sum(share["a"] for share in shares.values()) <= wanted + len(places)


@given(wanted=st.dictionaries(st.sampled_from(TAGS), COUNTS, min_size=1))
def test_a_single_manager_without_limits_gets_all(wanted):
    tier = Tier("m", tags=frozenset(TAGS))
    assert Waterfall().allot(wanted, [tier], 0.0) == {"m": wanted}
