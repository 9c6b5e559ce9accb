"""Rows of JupyterLab's sidebar, and the counts that its one number stands for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable.errors import ClusterError
from scalable.model import ClusterStatus, PoolStatus
from scalable.watch.lab.sidebar import bounds, names, row, shares

ID = "0f0e0d0c-1111-4222-8333-444455556666"
SIZES = {"fit": (2.0, 2**30), "big": (8.0, 2**34)}


def status(cluster_id=ID, **more):
    values = {"name": "climate", "provider": "p", "target": "t", "state": "running"}
    values |= {"address": "tls://127.0.0.1:1", "pools": {"fit": PoolStatus(wanted=3, running=2)}}
    return ClusterStatus(id=cluster_id, **(values | more))


def wanting(**counts):
    return {tag: PoolStatus(wanted=count) for tag, count in counts.items()}


def test_a_cluster_without_a_page_has_no_link():
    assert row(status(), SIZES, "/")["dashboard_link"] == ""


def test_workers_of_a_pool_of_unknown_size_are_counted_without_cores():
    made = row(status(), {}, "/")
    assert (made["workers"], made["cores"], made["memory"]) == (2, 0, "0 B")


def test_a_pool_that_follows_its_load_shows_its_bounds():
    assert row(status(adaptive={"fit": [1, 4]}), SIZES, "/")["adapt"] == {
        "minimum": 1,
        "maximum": 4,
    }
    two = {"fit": PoolStatus(), "big": PoolStatus()}
    assert "adapt" not in row(status(pools=two, adaptive={"fit": [1, 4]}), SIZES, "/")


@pytest.mark.parametrize("damaged", [5, None, {"a": 1}, "x"])
def test_damaged_bounds_do_not_cost_the_row(damaged):
    assert "adapt" not in row(status(adaptive={"fit": damaged}), SIZES, "/")


def test_a_cluster_that_does_not_answer_says_so_in_its_name():
    assert row(status(state="unreachable"), SIZES, "/")["name"] == "climate (unreachable)"


def test_clusters_of_one_name_are_told_apart():
    other = "ffffffff-1111-4222-8333-444455556666"
    third = "eeeeeeee-1111-4222-8333-444455556666"
    listed = [status(), status(other), status(third, name="x")]
    assert names(listed) == {ID: "climate (0f0e0d0c)", other: "climate (ffffffff)", third: "x"}


def test_the_only_pool_gets_the_number():
    assert shares("c", 7, wanting(fit=1)) == {"fit": 7}
    assert shares("c", 0, wanting(fit=1)) == {"fit": 0}


def test_several_pools_keep_their_proportions():
    assert shares("c", 10, wanting(fit=4, big=1, none=0)) == {"fit": 8, "big": 2}
    assert shares("c", 0, wanting(fit=4, big=1)) == {"fit": 0, "big": 0}


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 50), min_size=2), st.integers(1, 400)
)
def test_shares_add_up_and_empty_no_pool_without_need(wanted, total):
    working = {tag for tag, count in wanted.items() if count}
    if not working:
        with pytest.raises(ClusterError, match="no workers"):
            shares("c", total, wanting(**wanted))
        return
    counts = shares("c", total, wanting(**wanted))
    assert sum(counts.values()) == total
    assert counts.keys() == working
    assert min(counts.values()) >= (1 if total >= len(working) else 0)
    whole = sum(wanted.values())
    for tag in working:
        assert abs(counts[tag] - total * wanted[tag] / whole) < len(working) + 1


@pytest.mark.parametrize("total", [-1, 1.5, "3", None, True])
def test_what_is_no_number_of_workers_is_refused(total):
    with pytest.raises(ClusterError, match="cannot have"):
        shares("c", total, wanting(fit=1))


def test_pools_without_workers_have_no_proportions():
    with pytest.raises(ClusterError) as refused:
        shares("climate", 4, wanting(a=0, b=0))
    assert "`scalable scale climate a=N b=N`" in str(refused.value)


def test_bounds_are_for_the_only_pool():
    assert bounds("c", {"minimum": 0, "maximum": 4}, wanting(fit=1)) == ("fit", 0, 4)
    with pytest.raises(ClusterError, match="has 2 pools"):
        bounds("c", {"minimum": 0, "maximum": 4}, wanting(a=1, b=1))


@pytest.mark.parametrize("adapt", [{"minimum": 3, "maximum": 1}, {"minimum": "1"}, {}])
def test_bounds_that_are_no_range_are_refused(adapt):
    with pytest.raises(ClusterError, match="cannot adapt"):
        bounds("c", adapt, wanting(fit=1))
