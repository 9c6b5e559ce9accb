"""Division of workers by cost, and what the policy learns of each manager."""

import logging
from dataclasses import replace

from scalable.scaling.capacity import Portion
from scalable.scaling.cheapest import divide
from scalable.scaling.cheapest_policy import Cheapest
from scalable.scaling.places import Place, Request, billed_s
from scalable.scaling.tiers import Tier, UnitPrice, WaitingWork
from scalable.spec import Starting


def place(name, price, startup_s=10.0, **more):
    return Place(name, UnitPrice(price), startup_s=startup_s, late_s=1.3 * startup_s, **more)


def split(wanted, *places, **more):
    return tuple(divide(Request(wanted, places, **more)).shares.values())


def work(total_s, longest_s=0.0):
    return WaitingWork((Portion(0.0, total_s, longest_s),))


CHEAP, DEAR = place("cheap", 1.0, 600.0), place("dear", 3.0, 10.0)


def test_the_cheapest_place_is_filled_within_its_limit_and_the_dearest_drained_first():
    cheap = replace(CHEAP, limit=3)
    assert split(5, DEAR, cheap) == (2, 3)
    assert split(4, replace(DEAR, running=2), replace(cheap, running=3)) == (1, 3)
    assert split(2, replace(DEAR, running=2), replace(cheap, running=3)) == (0, 2)


def test_a_billing_minimum_makes_a_place_dear_for_little_work():
    least = Place("least", UnitPrice(1.0, minimum_s=3600.0))
    exact = Place("exact", UnitPrice(2.0))
    assert split(2, least, exact, work=work(20.0)) == (0, 2)
    assert split(2, least, exact, work=work(20_000.0)) == (2, 0)
    assert billed_s(UnitPrice(1.0, 60.0, 3600.0), 3601.0) == 7200.0
    assert billed_s(UnitPrice(1.0, 60.0), 5.0) == 60.0


def test_of_equal_prices_the_one_that_delivers_sooner_is_filled():
    assert split(4, place("late", 1.0, 100.0), place("soon", 1.0, 5.0)) == (0, 4)


def test_without_a_deadline_the_cheap_place_is_waited_for():
    assert split(8, CHEAP, DEAR, work=work(800.0)) == (8, 0)


def test_work_that_the_cheap_place_would_not_end_in_time_moves_to_the_dear_one():
    late = divide(Request(8, (CHEAP, DEAR), work(800.0), left_s=300.0))
    assert late.shares["dear"] > 0
    assert late.finish_s <= 300.0
    assert "miss the deadline" in late.reasons["dear"]
    # No more of them than it takes: the others are requested where they cost less.
    fewer = divide(Request(8, (CHEAP, DEAR), work(800.0), left_s=600.0))
    assert 0 < fewer.shares["dear"] < late.shares["dear"]
    assert split(8, CHEAP, DEAR, work=work(800.0), left_s=2000.0) == (8, 0)


def test_if_no_place_can_meet_the_deadline_cost_decides():
    cheap, dear = replace(CHEAP, running=8), DEAR
    assert split(8, cheap, dear, work=work(8000.0), left_s=5.0) == (8, 0)


def test_of_three_places_the_cheapest_that_is_soon_enough_is_taken():
    middle = place("middle", 2.0, 100.0)
    request = Request(4, (CHEAP, middle, DEAR), work(400.0), left_s=400.0)
    assert divide(request).shares["dear"] == 0
    assert divide(replace(request, left_s=120.0)).shares["dear"] > 0


def test_a_request_that_still_waits_shows_that_the_place_takes_longer():
    waiting = replace(CHEAP, pending=(3000.0,) * 8)
    soon = {"work": work(800.0), "left_s": 1200.0}
    assert split(8, CHEAP, DEAR, **soon) == (8, 0)
    assert split(8, waiting, DEAR, **soon)[1] > 0


def test_few_running_workers_are_replaced_at_a_time():
    dear = replace(DEAR, running=16)
    assert split(16, replace(CHEAP), dear) == (4, 12)
    # Those that have been requested are waited for.
    dear, cheap = replace(dear, running=12), replace(CHEAP, pending=(5.0,) * 4)
    assert split(16, cheap, dear) == (4, 12)
    assert split(16, replace(CHEAP, running=4), dear) == (8, 8)


def test_workers_of_a_pool_that_keeps_its_size_are_replaced_after_their_work_too():
    cheap, dear = Place("cheap", UnitPrice(1.0), billed_startup_s=60.0), replace(DEAR, running=8)
    assert split(8, cheap, dear, work=work(8.0)) == (0, 8)
    assert split(8, cheap, dear, work=replace(work(8.0), outlived=True)) == (2, 6)


def test_a_small_saving_replaces_nothing():
    assert split(4, place("a", 1.0), place("b", 1.05, running=4)) == (0, 4)


def test_replacing_does_not_endanger_the_deadline():
    dear = replace(DEAR, running=8)
    request = Request(8, (CHEAP, dear), work(8000.0), left_s=1150.0)
    assert divide(request).shares == {"cheap": 0, "dear": 8}
    assert divide(replace(request, left_s=5000.0)).shares["cheap"] == 2


def test_an_unusable_place_keeps_its_workers_and_gets_one_as_a_trial():
    broken = replace(CHEAP, running=2, usable=False, trial=True, why="it delivers nothing")
    assert split(6, broken, DEAR) == (3, 4)
    assert split(6, replace(broken, limit=2), DEAR) == (2, 4)


# The policy -----------------------------------------------------------------------------------------

ONLY = frozenset({"a"})


def tier(name, price, startup_s=10.0, running=0, **more):
    starting = Starting(startup_s=startup_s, billed_s=0.0)
    prices = {"a": UnitPrice(price)}
    return Tier(name, tags=ONLY, prices=prices, starting=starting, running={"a": running}, **more)


def shares(policy, wanted, now, *tiers, **more):
    allotted = policy.allot({"a": wanted}, tiers, now, **more)
    return tuple(allotted[tier.manager].get("a") for tier in tiers)


def test_a_place_that_does_not_deliver_is_passed_over_and_its_oldest_request_kept():
    policy = Cheapest(10)
    cheap, dear = tier("cheap", 1.0, 1.0), tier("dear", 3.0, 1.0)
    assert shares(policy, 4, 0, cheap, dear) == (4, 0)
    assert shares(policy, 4, 9, cheap, dear) == (4, 0)
    assert shares(policy, 4, 11, cheap, dear) == (1, 4)
    assert "passed over" in policy.reasons["cheap"]["a"]
    # The request is given up when it has not been delivered either; later there is another one.
    dear = tier("dear", 3.0, 1.0, running=4)
    assert shares(policy, 4, 30, cheap, dear) == (1, 4)
    assert shares(policy, 4, 32, cheap, dear) == (0, 4)
    assert shares(policy, 4, 60, cheap, dear) == (1, 4)


def test_a_place_that_is_slow_as_it_always_was_is_waited_for():
    policy = Cheapest(10)
    cheap, dear = tier("cheap", 1.0, 600.0), tier("dear", 3.0)
    assert [shares(policy, 4, now, cheap, dear) for now in (0, 100, 700, 1190)] == [(4, 0)] * 4
    assert shares(policy, 4, 1201, cheap, dear) == (1, 4)


def test_start_ups_are_learned_from_what_was_delivered():
    policy = Cheapest(10)
    work_left = {"work": {"a": work(4000.0)}}
    cheap, dear = tier("cheap", 1.0, 5.0), tier("dear", 3.0, 5.0)
    shares(policy, 4, 0, cheap, dear)
    for now in range(1, 30):
        shares(policy, 4, now, tier("cheap", 1.0, 5.0, running=min(4, now // 7)), dear)
    policy.deadline_at = 90.0 + 1100
    # The next start there takes as long as the last ones, not as long as was assumed.
    running = tier("cheap", 1.0, 5.0, running=4)
    assert shares(policy, 5, 90.0, running, dear, **work_left) == (5, 0)
    assert "18 s to start" in policy.reasons["cheap"]["a"]


def test_when_the_trial_is_delivered_dear_workers_are_replaced():
    policy = Cheapest(10)
    cheap, dear = tier("cheap", 1.0, 1.0), tier("dear", 3.0, 1.0)
    shares(policy, 8, 0, cheap, dear)
    shares(policy, 8, 11, cheap, dear)
    dear = tier("dear", 3.0, 1.0, running=8)
    assert shares(policy, 8, 12, cheap, dear) == (1, 8)
    cheap = tier("cheap", 1.0, 1.0, running=1)
    assert shares(policy, 8, 13, cheap, dear) == (3, 5)
    cheap = tier("cheap", 1.0, 1.0, running=8)
    assert shares(policy, 8, 14, cheap, dear) == (8, 0)


def test_a_deadline_that_has_passed_counts_no_more():
    policy = Cheapest(100, deadline_at=60.0)
    cheap, dear = tier("cheap", 1.0, 100.0), tier("dear", 3.0, 1.0)
    waits = {"work": {"a": work(100.0)}}
    assert shares(policy, 4, 1, cheap, dear, **waits)[1] > 0
    assert shares(policy, 4, 61, cheap, dear, **waits) == (4, 0)


def test_every_decision_is_logged(caplog):
    policy = Cheapest(10)
    with caplog.at_level(logging.DEBUG, "scalable.scaling"):
        shares(policy, 4, 0, tier("cheap", 1.0), tier("dear", 3.0))
    assert "pool 'a': 4 workers of 'cheap': 1 an hour, 10 s to start: the cheapest" in caplog.text


def test_a_manager_that_left_and_returns_starts_anew():
    policy = Cheapest(10)
    cheap, dear = tier("cheap", 1.0, 1.0), tier("dear", 3.0, 1.0)
    shares(policy, 4, 0, cheap, dear)
    assert shares(policy, 4, 11, cheap, dear) == (1, 4)
    shares(policy, 4, 12, dear)
    assert shares(policy, 4, 13, cheap, dear) == (4, 0)
