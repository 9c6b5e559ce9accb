"""Sizes of bundles, bundles that are taken back, and calls of lost bundles."""

import math
import threading
from types import SimpleNamespace

import pytest

from scalable.client.backlog import Bundle, MappedCalls
from scalable.client.bundle_sizes import (
    BUNDLE_S,
    LARGEST_BUNDLE,
    LARGEST_BYTES,
    SENDING_S,
    SHARES,
    BundleSizing,
)
from scalable.client.dispatcher import (
    FREE_S,
    STUCK_CALLS,
    STUCK_S,
    Withdrawals,
)
from scalable.client.executor import REMEMBERED, Uploads


def sizing_of(mean_s):
    sizing = BundleSizing()
    sizing.observe(1, mean_s)
    return sizing


def test_the_first_call_goes_alone():
    assert BundleSizing().size(10_000, 2) == 1


@pytest.mark.parametrize(
    ("mean_s", "backlog", "expected"),
    [(1.0, 1000, 1), (0.01, 1000, 10), (0.01, 12, 3), (1e-6, 10**6, LARGEST_BUNDLE), (1e-6, 1, 1)],
)
def test_bundles_are_short_and_leave_work_for_the_other_slots(mean_s, backlog, expected):
    assert sizing_of(mean_s).size(backlog, 2) == expected


def test_bundles_of_heavy_calls_are_small():
    sizing = sizing_of(1e-6)
    sizing.sent(1, 2_000_000)
    assert sizing.size(10_000, 2) == LARGEST_BYTES // 2_000_000


def bundles_of(calls, slots, mean_s):
    sizing, sizes = sizing_of(mean_s), []
    while calls:
        sizes.append(min(calls, sizing.size(calls, slots)))
        calls -= sizes[-1]
    return sizes


@pytest.mark.parametrize("mean_s", [1e-6, 1e-5, 1e-4])
def test_short_calls_need_no_more_bundles_the_more_slots_there_are(mean_s):
    few, many = (len(bundles_of(10_000, slots, mean_s)) for slots in (10, 5000))
    assert many <= 2 * few
    # Each bundle is a share of what is left, or long enough to be worth sending.
    worthwhile = 2 * math.sqrt(10_000 * mean_s / SENDING_S)
    assert many <= worthwhile + SHARES * (2 + math.log(10_000 / SHARES))


@pytest.mark.parametrize("slots", [2, 100, 5000])
def test_few_calls_are_in_one_bundle_only_if_they_take_less_time_than_sending(slots):
    quick, long = 0.5 * SENDING_S / 20, 2 * SENDING_S
    assert bundles_of(20, slots, quick) == [20]
    assert bundles_of(20, slots, long)[0] <= 20 // SHARES


def test_what_is_left_is_not_cut_into_ever_smaller_bundles():
    sizes = bundles_of(10_000, 2, 1e-5)
    assert min(sizes[:-1]) >= 0.9 * SENDING_S / 1e-5


def test_long_calls_reach_every_slot():
    assert bundles_of(10_000, 5000, 1.0) == [1] * 10_000
    assert max(bundles_of(1000, 1000, 0.01)) <= 10


def test_a_pace_follows_what_calls_take():
    sizing = sizing_of(1.0)
    for _ in range(10):
        sizing.observe(1, 0.001)
    assert sizing.size(10_000, 2) > 10
    sizing.at_least(BUNDLE_S)
    assert sizing.size(10_000, 2) == 1


def waiting(count):
    return MappedCalls(threading.Condition(), abs, [(n,) for n in range(count)])


def bundle(pending=None, calls=1, *, suspected=False):
    """Send waiting tasks in a bundle."""
    pending = waiting(calls) if pending is None else pending
    return Bundle(pending, pending.take(calls), suspected=suspected, heard_at=0.0)


def test_a_free_slot_takes_back_the_bundle_that_was_sent_last():
    second, third = sent = [bundle(), bundle()]
    withdrawals = Withdrawals()
    assert withdrawals.wanted(sent, 1, 2, 10.0) == []  # it may be free for a moment only
    assert withdrawals.looks_again
    assert withdrawals.wanted(sent, 1, 2, 10.0 + 2 * FREE_S) == [third]
    third.withdrawn = True
    assert withdrawals.wanted(sent, 1, 2, 10.0 + 5 * FREE_S) == [second]


def test_slots_that_others_have_are_not_asked_for_again_and_again():
    withdrawals = Withdrawals()
    asked, sent = 0, [bundle()]
    for step in range(40_000):
        asked += len(withdrawals.wanted(sent, 0, 2, step * 0.0025))  # a hundred seconds
    assert asked < 40


def test_no_bundle_is_taken_back_while_all_slots_work():
    withdrawals = Withdrawals()
    for moment in range(5):
        assert withdrawals.wanted([bundle()], 2, 2, float(moment)) == []
    assert not withdrawals.looks_again


def test_a_bundle_that_others_overtake_is_taken_back_although_no_slot_is_free():
    stuck, later = bundle(), bundle()
    stuck.heard_at, later.heard_at = 10.0, 10.5
    withdrawals = Withdrawals()
    assert withdrawals.wanted([stuck], 2, 2, 11.0, 0.001) == []  # nobody has overtaken it
    withdrawals.began(later)
    assert withdrawals.wanted([stuck], 2, 2, 10.0 + 0.9 * STUCK_S, 0.001) == []
    assert withdrawals.wanted([stuck], 2, 2, 11.0, 0.001) == [stuck]
    stuck.withdrawn = True
    assert withdrawals.wanted([stuck], 2, 2, 12.0, 0.001) == []


def test_a_bundle_is_not_taken_back_where_all_calls_are_long():
    waits, later = bundle(), bundle()
    waits.heard_at, later.heard_at = 10.0, 10.5
    withdrawals = Withdrawals()
    withdrawals.began(later)
    assert withdrawals.wanted([waits], 2, 2, 10.0 + 0.9 * STUCK_CALLS * 8.0, 8.0) == []


def test_a_lost_bundle_makes_suspects_of_what_may_have_run():
    pending = waiting(8)
    assert bundle(pending, 4).count_loss(1.0, begun=False) == 1
    assert pending.suspects(range(8)) == [0]
    assert bundle(pending, 4).count_loss(0.001, begun=False) == 1
    assert pending.suspects(range(8)) == [0, 4, 5, 6, 7]


def test_a_suspect_is_blamed_only_if_it_had_begun():
    pending = waiting(2)
    assert bundle(pending, suspected=True).count_loss(1.0, begun=False) == 0
    suspect = bundle(pending, suspected=True)
    assert [suspect.count_loss(1e-9, begun=True) for _ in range(2)] == [1, 2]
    assert pending.suspects(range(2)) == [1]
    assert suspect.about()["losses"] == 2


def finished():
    return SimpleNamespace(status="finished")


def test_large_arguments_are_sent_once():
    sent = []
    uploads = Uploads(lambda value: sent.append(value) or finished(), None)
    large, small = b"x" * 2_000_000, b"y"
    ((first, *others),) = uploads.replaced([(large, small, 1)])
    assert first.value is large
    assert others == [small, 1]
    assert uploads.replaced([(large,)]) == [(first,)]
    assert len(sent) == 1
    mutable = bytearray(large)
    ((first,),) = uploads.replaced([(mutable,)])
    mutable[0] = 0
    assert uploads.replaced([(mutable,)]) != [(first,)]  # what it holds may be other than it was
    rows = uploads.replaced([(mutable, 1), (mutable, 2)])
    assert rows[0][0] is rows[1][0]
    assert uploads.replaced([(1, 2), (3, 4)]) == [(1, 2), (3, 4)]


def test_an_argument_that_cannot_be_uploaded_now_travels_with_its_call():
    large = b"x" * 2_000_000
    assert Uploads(lambda _: None, None).replaced([(large,)]) == [(large,)]


def test_a_lost_argument_is_uploaded_again_for_later_calls():
    sent = []
    uploads, large = Uploads(lambda _: sent.append(finished()) or sent[-1], None), b"x" * 2_000_000
    uploads.replaced([(large,)])
    sent[0].status = "cancelled"
    ((second,),) = uploads.replaced([(large,)])
    assert second.future is sent[1]


def test_uploads_do_not_hold_everything_that_was_sent():
    uploads = Uploads(lambda value: finished(), None)
    for i in range(3 * REMEMBERED):
        uploads.replaced([(bytes([i]) * 2_000_000,)])
    assert len(uploads._sent) == REMEMBERED
