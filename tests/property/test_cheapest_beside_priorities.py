"""Division of workers by cost, beside the division by priorities, and with a deadline."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scalable.scaling.capacity import Portion
from scalable.scaling.cheapest import HYSTERESIS, RESERVE, divide
from scalable.scaling.places import Forecast, Place, Request
from scalable.scaling.tiers import UnitPrice, WaitingWork

COUNTS = st.integers(0, 20)
SECONDS = st.floats(0, 1e4)
PRICES = st.builds(
    UnitPrice, st.floats(0, 10), st.floats(0, 3600), st.sampled_from([0.0, 1.0, 3600.0])
)
WORK = st.builds(
    WaitingWork,
    st.lists(st.builds(Portion, SECONDS, SECONDS, SECONDS), min_size=1, max_size=3)
    .map(sorted)
    .map(tuple),
    SECONDS,
)


@st.composite
def places(draw):
    made = []
    for i in range(draw(st.integers(1, 4))):
        startup_s = draw(SECONDS)
        waits = sorted(draw(st.lists(SECONDS, max_size=5)), reverse=True)
        made.append(
            Place(
                f"m{i}",
                draw(PRICES),
                priority=draw(st.integers(0, 2)),
                limit=draw(st.none() | COUNTS),
                running=draw(COUNTS),
                pending=tuple(waits),
                startup_s=startup_s,
                late_s=startup_s * draw(st.floats(1, 2)),
                billed_startup_s=startup_s * draw(st.floats(0, 1)),
            )
        )
    return tuple(made)


WITHOUT_DEADLINE = st.builds(Request, COUNTS, places(), WORK)
LEFT = st.floats(0.1, 1e5)
WITH_DEADLINE = st.builds(Request, COUNTS, places(), WORK, LEFT, st.integers(0, 3))


def by_priority(request):
    """Return the shares of a waterfall that keeps what it has requested."""
    order = sorted(request.places, key=lambda place: (place.priority, place.manager))
    shares, left = {place.manager: 0 for place in order}, request.wanted
    for whole in (False, True):
        for place in order:
            most = request.wanted if whole else place.running + len(place.pending)
            most = most if place.limit is None else min(most, place.limit)
            more = max(0, min(left, most - shares[place.manager]))
            shares[place.manager] += more
            left -= more
    return shares


@given(request=WITHOUT_DEADLINE)
def test_without_a_deadline_no_division_is_expected_to_cost_more_than_by_priority(request):
    plain = Forecast(request).cost(by_priority(request))
    division = divide(request)
    if plain is not None and division.cost is not None:
        assert division.cost <= plain * (1 + 1e-6) + 1e-9


@given(request=WITH_DEADLINE)
def test_a_division_by_priority_that_is_in_time_is_not_cheaper_and_its_deadline_is_kept(request):
    plain, forecast = by_priority(request), Forecast(request)
    early_s = (1 - 2 * RESERVE) * request.left_s
    if forecast.cost(plain) is None or forecast.finish_s(plain) > early_s:
        return
    division = divide(request)
    assert division.finish_s <= (1 - RESERVE) * request.left_s * (1 + 1e-9)
    assert division.cost <= forecast.cost(plain) * (1 + HYSTERESIS) * (1 + 1e-6) + 1e-9


@given(request=WITH_DEADLINE)
def test_workers_are_spared_only_within_bounds(request):
    division = divide(request)
    total = sum(division.shares.values())
    running = sum(place.running for place in request.places)
    assert 0 <= division.spared <= request.wanted
    assert total <= request.wanted - division.spared
    if division.spared:
        assert request.wanted - division.spared >= max(1, request.least, min(running, 1))
        # Running workers are not released for the sake of the number.
        assert request.wanted - division.spared >= min(running, request.wanted)
    for place in request.places:
        assert place.limit is None or division.shares[place.manager] <= place.limit


@given(request=WITH_DEADLINE)
def test_without_a_least_number_every_wanted_worker_is_requested(request):
    able = sum(
        request.wanted if p.limit is None else min(p.limit, request.wanted) for p in request.places
    )
    division = divide(replace(request, least=None))
    assert not division.spared
    assert sum(division.shares.values()) == min(request.wanted, able)


@given(
    wanted=st.integers(1, 40),
    startups=st.lists(st.floats(1, 1000), min_size=2, max_size=2),
    work_s=st.floats(1, 1e4),
    left_s=st.floats(10, 1e4),
)
def test_requests_are_not_taken_back_while_their_workers_start(wanted, startups, work_s, left_s):
    """The places deliver as expected, and the wanted number does not change."""
    prices = [UnitPrice(1.0, 60.0), UnitPrice(3.0, 60.0)]
    bare = [
        Place(f"m{i}", p, i, 32, startup_s=s, late_s=1.3 * s, billed_startup_s=min(s, 60.0))
        for i, (p, s) in enumerate(zip(prices, startups, strict=True))
    ]
    work = WaitingWork((Portion(0.0, work_s, work_s / 20),))
    first = divide(Request(wanted, tuple(bare), work, left_s, 0))
    if first.finish_s > (1 - 2 * RESERVE) * left_s:
        return  # it is late: fewer workers are wanted the later it is
    passes_s = min(10.0, left_s / 20, *startups)
    later = tuple(replace(p, pending=(passes_s,) * first.shares[p.manager]) for p in bare)
    again = divide(Request(wanted, later, work, left_s - passes_s, 0))
    assert sum(again.shares.values()) >= sum(first.shares.values())


def test_few_workers_of_the_quick_place_are_requested_instead_of_all_that_the_slow_one_needs():
    """The slow place is too slow with any number of workers."""
    slow = Place("slow", UnitPrice(1.0), limit=32, startup_s=600.0, late_s=780.0)
    quick = Place("quick", UnitPrice(3.0), 1, 32, startup_s=60.0, late_s=78.0)
    work = WaitingWork((Portion(0.0, 320.0, 10.0),))
    whole = divide(Request(40, (slow, quick), work, 200.0))
    few = divide(Request(40, (slow, quick), work, 200.0, 0))
    assert few.shares["slow"] == 0
    assert 3 <= few.shares["quick"] <= 8
    assert few.spared == 40 - few.shares["quick"]
    assert few.finish_s <= 160.0
    assert sum(whole.shares.values()) == 40


def test_a_later_request_is_not_expected_before_an_older_one_that_is_overdue():
    place = Place("m", pending=(300.0, 10.0), startup_s=60.0, late_s=78.0)
    assert place.remaining_s(10.0) > place.remaining_s(300.0) == 150.0
