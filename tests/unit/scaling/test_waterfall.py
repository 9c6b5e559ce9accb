"""How wanted counts are shared among managers."""

from dataclasses import replace
from itertools import pairwise

from scalable.scaling.waterfall import Tier, Waterfall, in_order, unplaced

ONLY = frozenset({"a"})
HPC = Tier("hpc", priority=0, tags=ONLY)
CLOUD = Tier("cloud", priority=1, tags=ONLY)


def running(tier, count):
    return replace(tier, running={"a": count})


def shares(policy, wanted, now, *tiers):
    allotted = policy.allot({"a": wanted}, tiers, now)
    return tuple(allotted[tier.manager].get("a") for tier in tiers)


def test_the_first_tier_is_filled_within_its_limit_and_drained_last():
    policy = Waterfall(10)
    hpc = replace(HPC, limits={"a": 3})
    assert shares(policy, 5, 0, hpc, CLOUD) == (3, 2)
    assert shares(policy, 4, 1, running(hpc, 3), running(CLOUD, 2)) == (3, 1)
    assert shares(policy, 2, 2, running(hpc, 3), running(CLOUD, 1)) == (2, 0)
    assert unplaced({"a": 9}, {"hpc": {"a": 3}, "cloud": {"a": 2}}) == {"a": 4}


def test_workers_not_delivered_in_time_spill_to_the_next_tier():
    policy = Waterfall(10)
    assert shares(policy, 4, 0, HPC, CLOUD) == (4, 0)
    assert shares(policy, 4, 9, running(HPC, 0), CLOUD) == (4, 0)
    assert shares(policy, 4, 11, running(HPC, 0), CLOUD) == (0, 4)
    # What it has delivered it keeps.
    other = Waterfall(10)
    shares(other, 4, 0, HPC, CLOUD)
    shares(other, 4, 5, running(HPC, 1), CLOUD)
    assert shares(other, 4, 16, running(HPC, 1), CLOUD) == (1, 3)


def test_progress_counts_as_delivery():
    policy = Waterfall(10)
    shares(policy, 4, 0, HPC, CLOUD)
    for now, count in ((8, 1), (16, 2), (24, 3)):
        assert shares(policy, 4, now, running(HPC, count), CLOUD) == (4, 0)


def test_a_tier_that_was_passed_over_is_tried_again_when_more_is_wanted():
    policy = Waterfall(10)
    shares(policy, 4, 0, HPC, CLOUD)
    shares(policy, 4, 11, HPC, CLOUD)
    assert shares(policy, 4, 30, HPC, running(CLOUD, 4)) == (0, 4)
    # One worker as a probe, beside what the next tier is asked for.
    assert shares(policy, 6, 31, HPC, running(CLOUD, 4)) == (1, 6)
    assert shares(policy, 6, 32, running(HPC, 1), running(CLOUD, 4)) == (1, 5)
    assert shares(policy, 9, 33, running(HPC, 1), running(CLOUD, 5)) == (4, 5)


def test_a_probe_that_is_not_delivered_lengthens_the_back_off():
    policy = Waterfall(10)
    cloud = replace(running(CLOUD, 4), limits={"a": 4})
    shares(policy, 4, 0, HPC, cloud)
    shares(policy, 6, 1, HPC, cloud)
    assert shares(policy, 6, 12, HPC, cloud) == (0, 4)
    assert shares(policy, 6, 23, HPC, cloud) == (1, 4)
    assert shares(policy, 6, 33, HPC, cloud) == (0, 4)
    assert shares(policy, 6, 52, HPC, cloud) == (0, 4)
    assert shares(policy, 6, 54, HPC, cloud) == (1, 4)


def test_a_probe_goes_on_until_its_time_is_over_whatever_the_next_tier_does():
    policy = Waterfall(10)
    shares(policy, 4, 0, HPC, CLOUD)
    shares(policy, 4, 11, HPC, CLOUD)
    # Long after the back-off, when more is wanted.
    for now in (500, 500, 501, 509):
        assert shares(policy, 6, now, HPC, running(CLOUD, 4)) == (1, 6)
    assert shares(policy, 6, 509, HPC, running(CLOUD, 6)) == (1, 6)
    assert shares(policy, 6, 510, HPC, running(CLOUD, 6)) == (0, 6)


def test_a_delivered_probe_replaces_one_worker_of_the_next_tier():
    policy = Waterfall(10)
    shares(policy, 4, 0, HPC, CLOUD)
    shares(policy, 4, 11, HPC, CLOUD)
    assert shares(policy, 6, 30, HPC, running(CLOUD, 4)) == (1, 6)
    assert shares(policy, 6, 35, HPC, running(CLOUD, 6)) == (1, 6)
    assert shares(policy, 6, 36, running(HPC, 1), running(CLOUD, 6)) == (1, 5)


def test_a_probe_ends_when_less_is_wanted():
    policy = Waterfall(10)
    shares(policy, 4, 0, HPC, CLOUD)
    shares(policy, 4, 11, HPC, CLOUD)
    assert shares(policy, 6, 30, HPC, running(CLOUD, 4)) == (1, 6)
    assert shares(policy, 4, 31, HPC, running(CLOUD, 4)) == (0, 4)
    assert shares(policy, 0, 32, HPC, running(CLOUD, 4)) == (0, 0)


def test_the_last_tier_that_is_relied_on_is_asked_however_slow_it_is():
    policy = Waterfall(10)
    shares(policy, 4, 0, HPC, CLOUD)
    assert shares(policy, 4, 11, HPC, CLOUD) == (0, 4)
    assert shares(policy, 4, 20, HPC, CLOUD) == (0, 4)
    # The next tier does not deliver either: the first is tried beside it.
    assert shares(policy, 4, 25, HPC, CLOUD) == (1, 4)
    # The next tier fails, or is lost: somebody has to be asked.
    broken = replace(CLOUD, failed={"a": "no quota"})
    assert shares(policy, 4, 26, HPC, broken)[0] == 4
    other = Waterfall(10)
    lost = replace(CLOUD, present=False)
    assert [shares(other, 4, now, HPC, lost) for now in (0, 11, 50)] == [(4, 0)] * 3


def test_pools_that_failed_everywhere_are_tried_again_one_worker_at_a_time():
    policy = Waterfall(10)
    broken = [replace(tier, failed={"a": "no"}) for tier in (HPC, CLOUD)]
    assert shares(policy, 4, 0, *broken) == (0, 0)
    assert shares(policy, 4, 9, *broken) == (0, 0)
    assert shares(policy, 4, 10, *broken) == (1, 1)
    assert shares(policy, 4, 20, *broken) == (0, 0)
    assert shares(policy, 4, 39, *broken) == (0, 0)
    assert shares(policy, 4, 40, *broken) == (1, 1)


def test_the_back_off_ends_at_an_hour():
    policy, now = Waterfall(300), 0.0
    cloud = replace(running(CLOUD, 4), limits={"a": 4})
    probes, probing = [], False
    while now < 6 * 3600:
        asked = shares(policy, 6, now, HPC, cloud)[0] == 1
        if asked and not probing:
            probes.append(now)
        probing, now = asked, now + 10
    # A probe takes spill_after; then the back-off: 600, 1200, 2400, 3600, 3600, ...
    gaps = [later - earlier for earlier, later in pairwise(probes)]
    assert gaps[:5] == [900, 1500, 2700, 3900, 3900]


def test_one_that_leaves_and_comes_back_has_nothing_on_its_way():
    policy = Waterfall(10)
    shares(policy, 4, 0, HPC, CLOUD)
    shares(policy, 4, 1, running(HPC, 4), CLOUD)
    assert shares(policy, 4, 2, CLOUD) == (4,)
    assert shares(policy, 4, 3, HPC, running(CLOUD, 4)) == (0, 4)


def test_one_that_attaches_takes_nothing_from_others_whatever_its_priority():
    policy = Waterfall(10)
    first = replace(CLOUD, priority=5)
    assert shares(policy, 3, 0, first) == (3,)
    assert shares(policy, 3, 1, running(first, 2), HPC) == (3, 0)  # one is still on its way
    assert shares(policy, 3, 2, running(first, 3), HPC) == (3, 0)
    assert shares(policy, 5, 3, running(first, 3), HPC) == (3, 2)
    assert shares(policy, 2, 4, running(first, 3), running(HPC, 2)) == (0, 2)


def test_a_pool_that_was_given_up_is_passed_over_at_once():
    policy = Waterfall(1000)
    broken = replace(HPC, failed={"a": "no such partition"})
    assert shares(policy, 4, 0, broken, CLOUD) == (0, 4)


def test_a_lost_manager_keeps_what_runs_and_gets_nothing_new():
    policy = Waterfall(10)
    lost = replace(running(HPC, 2), present=False)
    assert shares(policy, 5, 0, lost, CLOUD) == (2, 3)
    assert shares(policy, 1, 1, lost, running(CLOUD, 3)) == (1, 0)


def test_by_price_the_cheaper_manager_comes_first_and_then_the_priority():
    dear = replace(HPC, prices={"a": 2.0})
    cheap = replace(CLOUD, prices={"a": 1.0})
    same = Tier("other", priority=2, tags=ONLY, prices={"a": 1.0})
    other = Tier("no pool of it", tags=frozenset({"b"}))
    given = [dear, same, cheap, other]
    assert in_order("a", given, by_price=True) == [cheap, same, dear]
    assert in_order("a", given, by_price=False) == [dear, cheap, same]
    free = Tier("free", priority=9, tags=ONLY)
    assert in_order("a", [cheap, free], by_price=True) == [free, cheap]
    policy = Waterfall(10, by_price=True)
    assert shares(policy, 4, 0, dear, cheap) == (0, 4)
    assert shares(policy, 4, 11, dear, cheap) == (4, 0)  # it has not delivered
    assert shares(policy, 1, 12, running(dear, 2), running(cheap, 1)) == (0, 1)
