"""Which failures are tried again, how often, and after which pause."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable.model import RetryPolicy
from scalable.model.failures import LONGEST_BACKOFF_S
from scalable.protocol.failures import kinds_of

counts, pauses = st.integers(0, 50), st.floats(0, 1e6)


@given(counts, pauses, st.integers(1, 2000))
def test_a_call_has_count_further_tries(count, backoff, failures):
    assert (RetryPolicy(count, backoff).wait_s(failures) is None) == (failures > count)


@given(pauses, st.integers(1, 1999))
def test_pauses_double_up_to_a_bound(backoff, failures):
    policy = RetryPolicy(2000, backoff)
    now, later = policy.wait_s(failures), policy.wait_s(failures + 1)
    assert backoff <= now <= later <= max(backoff, LONGEST_BACKOFF_S)
    assert later == pytest.approx(min(2 * now, max(backoff, LONGEST_BACKOFF_S)))


def test_the_first_pause_is_the_one_that_is_written():
    assert [RetryPolicy(3, 10.0).wait_s(n) for n in (1, 2, 3, 4)] == [10.0, 20.0, 40.0, None]


class OwnError(OSError):
    pass


@pytest.mark.parametrize(("on", "error", "expected"), [
    ((), ValueError(), True),
    (("OSError",), ConnectionResetError(), True),
    (("OSError",), OwnError(), True),
    (("OSError",), ValueError(), False),
    (("OwnError",), OwnError(), False),
    ((f"{__name__}.OwnError",), OwnError(), True),
    (("ConnectionError",), OSError(), False),
    (("OutOfMemory",), MemoryError(), True),
    (("OutOfMemory",), OSError(), False),
    (("Exception",), OwnError(), True),
])  # fmt: skip
def test_an_error_is_meant_by_its_class_or_a_base_class(on, error, expected):
    assert RetryPolicy(1, 0.0, on).covers(kinds_of(error)) is expected


def test_a_dotted_name_is_compared_by_package_and_last_part():
    policy = RetryPolicy(1, 0.0, ("requests.ConnectionError",))
    assert policy.covers(["requests.exceptions.ConnectionError"])
    assert not policy.covers(["urllib3.exceptions.ConnectionError", "ConnectionError"])


def test_more_memory_means_that_lack_of_memory_is_tried_again():
    policy = RetryPolicy(1, 0.0, ("OSError",), 1.5)
    assert policy.covers(["OutOfMemory"])
    assert policy.covers(kinds_of(MemoryError()))
    assert not policy.covers(kinds_of(ValueError()))


@given(
    st.builds(
        RetryPolicy, counts, pauses, st.lists(st.text(max_size=5)).map(tuple),
        st.none() | st.floats(1.1, 9),
    )
)  # fmt: skip
def test_a_policy_travels_as_plain_values(policy):
    assert RetryPolicy.from_message(policy.to_message()) == policy
