"""Counts of pools: the arguments of ``scale``, and statuses that travel as JSON."""

import pytest

from scalable.errors import ClusterError
from scalable.model import PoolStatus
from scalable.model.clusters import pools_from_dict, pools_to_dict
from scalable.protocol.pools import check_tag, only_tag, wanted_counts


def one():
    return "only"


@pytest.mark.parametrize(
    ("arguments", "counts"),
    [((3, None), {"only": 3}), (("a", 2), {"a": 2}), (({"a": 1, "b": 0}, None), {"a": 1, "b": 0})],
)
def test_arguments_of_scale_become_counts(arguments, counts):
    assert wanted_counts(*arguments, one) == counts


@pytest.mark.parametrize("arguments", [("a", None), ("a", -1), (True, None), ({"a": 1.5}, None)])
def test_a_count_that_is_missing_negative_or_no_integer_is_refused(arguments):
    with pytest.raises(ClusterError):
        wanted_counts(*arguments, one)


def test_a_count_without_a_tag_needs_a_single_pool():
    assert only_tag(["a"]) == "a"
    with pytest.raises(
        ClusterError, match=r"no pool was named, but this cluster has 'a', 'b': write scale"
    ):
        only_tag(["b", "a"])


def test_an_unknown_tag_is_refused_with_the_known_ones():
    check_tag("a", {}, {"a": 1})
    with pytest.raises(ClusterError, match="no pool 'c'; known pools: 'a', 'b'"):
        check_tag("c", {"b": 1, "a": 1})


def test_a_status_survives_json_and_ignores_keys_of_later_versions():
    pools = {"a": PoolStatus(wanted=2, reason="5 starts failed")}
    written = pools_to_dict(pools)
    assert pools_from_dict(written) == pools
    assert PoolStatus.from_dict({**written["a"], "to_come": 1}) == pools["a"]


def test_statuses_of_two_managers_are_summed():
    total = PoolStatus(wanted=1, slots=2, waiting="queued") + PoolStatus(wanted=2, reason="gone")
    assert total == PoolStatus(wanted=3, slots=2, waiting="queued", reason="gone")
