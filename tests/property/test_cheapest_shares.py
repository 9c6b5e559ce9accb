"""What holds for every division of workers by cost."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scalable.scaling.capacity import Portion
from scalable.scaling.cheapest import divide
from scalable.scaling.cheapest_policy import Cheapest
from scalable.scaling.places import Place, Request
from scalable.scaling.tiers import Tier, UnitPrice, WaitingWork
from scalable.scaling.waterfall import Waterfall
from scalable.spec import Starting

COUNTS = st.integers(0, 20)
SECONDS = st.floats(0, 1e4)
PRICES = st.builds(
    UnitPrice, st.floats(0, 10), st.floats(0, 3600), st.sampled_from([0.0, 1.0, 3600.0])
)
WORK = st.none() | st.builds(
    WaitingWork,
    st.lists(st.builds(Portion, SECONDS, SECONDS, SECONDS), max_size=3).map(sorted).map(tuple),
    SECONDS,
)


@st.composite
def places(draw):
    made = []
    for i in range(draw(st.integers(1, 4))):
        startup_s = draw(SECONDS)
        made.append(
            Place(
                f"m{i}",
                draw(PRICES),
                priority=draw(st.integers(0, 2)),
                limit=draw(st.none() | COUNTS),
                running=draw(COUNTS),
                pending=tuple(sorted(draw(st.lists(SECONDS, max_size=5)), reverse=True)),
                startup_s=startup_s,
                late_s=startup_s * draw(st.floats(1, 2)),
                billed_startup_s=startup_s * draw(st.floats(0, 1)),
                usable=draw(st.booleans()),
                trial=draw(st.booleans()),
                why="it delivers nothing",
            )
        )
    return tuple(made)


REQUESTS = st.builds(Request, COUNTS, places(), WORK, st.none() | st.floats(0.1, 1e5))


def given_at_most(place, wanted):
    most = wanted if place.usable else min(place.running, wanted)
    return most if place.limit is None else min(most, place.limit)


@given(request=REQUESTS)
def test_shares_keep_to_the_limits_and_sum_up_to_what_is_wanted(request):
    division = divide(request)
    assert division.reasons.keys() == division.shares.keys() == {p.manager for p in request.places}
    trials = 0
    for place in request.places:
        share = division.shares[place.manager]
        assert share >= 0
        assert place.limit is None or share <= place.limit
        if not place.usable:
            assert share <= place.running + place.trial
            trials += place.trial and (place.limit is None or place.limit > 0)
    able = sum(given_at_most(place, request.wanted) for place in request.places)
    total = sum(division.shares.values())
    assert min(request.wanted, able) <= total <= min(request.wanted, able) + trials


@given(request=REQUESTS)
def test_fewer_wanted_workers_drain_the_dearest_first(request):
    calm = tuple(replace(p, usable=True, pending=(), limit=p.running) for p in request.places)
    running = sum(p.running for p in calm)
    fewer = Request(max(0, running - 1), calm, request.work)
    shares = divide(fewer).shares
    dearest = max((p for p in calm if p.running), default=None, key=lambda p: p.price.per_hour)
    for place in calm:
        if place.running and place.price.per_hour < dearest.price.per_hour:
            assert shares[place.manager] >= place.running


@given(count=COUNTS, starts=st.lists(SECONDS, min_size=2, max_size=4, unique=True))
def test_of_equal_prices_the_one_that_delivers_sooner_gets_all(count, starts):
    equal = [Place(f"m{i}", startup_s=s, late_s=s) for i, s in enumerate(starts)]
    shares = divide(Request(count, tuple(equal))).shares
    assert shares[min(equal, key=lambda p: p.startup_s).manager] == count


@given(request=REQUESTS)
def test_a_repeated_decision_changes_nothing(request):
    """Workers that were requested are on their way, and nothing else has changed."""
    shares = divide(replace(request, left_s=None)).shares
    asked = tuple(
        replace(
            place,
            running=min(place.running, shares[place.manager]),
            pending=(place.pending + (0.0,) * 20)[: max(0, shares[place.manager] - place.running)],
            trial=False,
        )
        for place in request.places
    )
    wanted = sum(shares.values())
    again = divide(Request(wanted, asked, request.work)).shares
    if request.work is None and wanted == request.wanted:
        assert again == shares


@st.composite
def one_tier(draw):
    return Tier(
        "m",
        priority=draw(st.integers(0, 2)),
        limits=draw(st.dictionaries(st.just("a"), COUNTS)),
        tags=frozenset(["a"]),
        running={"a": draw(COUNTS)},
        failed=draw(st.dictionaries(st.just("a"), st.just("broken"))),
        present=draw(st.booleans()),
        prices={"a": draw(PRICES)},
        starting=Starting(draw(SECONDS)),
    )


@given(looks=st.lists(st.tuples(st.floats(0, 1000), COUNTS, one_tier(), WORK), max_size=6))
def test_with_one_manager_it_does_as_waterfall(looks):
    cheapest, waterfall, now = Cheapest(10, deadline_at=500.0), Waterfall(10), 0.0
    for passed, wanted, tier, work in looks:
        now += passed
        known = {} if work is None else {"a": work}
        if not tier.present:  # waterfall may count requested workers of a manager that is gone
            continue
        expected = waterfall.allot({"a": wanted}, [tier], now)
        assert cheapest.allot({"a": wanted}, [tier], now, known) == expected


@st.composite
def terms(draw):
    """Price, seconds that a worker takes (None: for ever), and limit, of two or three places."""
    delay = st.none() | st.integers(0, 25)
    each = st.tuples(st.sampled_from([1.0, 1.5, 3.0]), delay, st.integers(2, 8))
    return draw(st.lists(each, min_size=2, max_size=3))


@settings(max_examples=settings().max_examples // 4)
@given(terms=terms(), wanted=st.integers(1, 6))
def test_a_constant_load_is_served_without_flapping_and_without_waiting_for_failing_places(
    terms, wanted
):
    policy = Cheapest(10)
    queues = [[] for _ in terms]
    changes = 0
    for now in range(900):
        seen = []
        for i, (price, delay, limit) in enumerate(terms):
            there = sum(delay is not None and now - since >= delay for since in queues[i])
            seen.append(
                Tier(
                    f"m{i}",
                    tags=frozenset(["a"]),
                    limits={"a": limit},
                    running={"a": there},
                    prices={"a": UnitPrice(price)},
                    starting=Starting(1.0, 0.0, 0.0),
                )
            )
        shares = policy.allot({"a": wanted}, seen, float(now))
        for queue, tier, (_, delay, _) in zip(queues, seen, terms, strict=True):
            share = shares[tier.manager]["a"]
            if now >= 100 and delay is None and sum(t.running["a"] for t in seen) >= wanted:
                assert share <= 1  # a trial
            changes += now >= 600 and delay is not None and share != len(queue)
            queue[share:] = []
            queue.extend([now] * (share - len(queue)))
    able = sum(limit for _, delay, limit in terms if delay is not None)
    assert sum(tier.running["a"] for tier in seen) >= min(wanted, able)
    assert changes == 0
    dearest = [t for t, (p, d, _) in zip(seen, terms, strict=True) if d is not None and p == 3.0]
    cheaper = sum(limit for p, d, limit in terms if d is not None and p < 3.0)
    if cheaper >= wanted:
        assert sum(tier.running["a"] for tier in dearest) == 0
