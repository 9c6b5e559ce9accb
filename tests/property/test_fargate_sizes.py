"""Rounding of workers to the sizes of Fargate, for all workers."""

from hypothesis import given
from hypothesis import strategies as st

from scalable.providers.aws.shapes import MIB, SIZES, fargate_size, rounding

CPUS = st.one_of(st.sampled_from([0.25, 0.5, 1, 2, 4, 8, 16]), st.floats(0.01, 16))
MEMORY = st.one_of(st.none(), st.integers(1, 120 * 1024 * MIB))


@given(cpus=CPUS, memory=MEMORY)
def test_the_size_holds_the_worker_and_no_smaller_size_does(cpus, memory):
    size = fargate_size(cpus, memory)
    assert size.vcpus >= cpus - 1e-9
    assert size.memory_bytes >= (memory or 0)
    for other in SIZES:
        smaller = (
            (other.vcpus, other.memory_bytes) != (size.vcpus, size.memory_bytes)
            and other.vcpus <= size.vcpus
            and other.memory_bytes <= size.memory_bytes
        )
        assert not (smaller and other.vcpus >= cpus and other.memory_bytes >= (memory or 0))


@given(cpus=CPUS, memory=MEMORY)
def test_no_size_that_holds_the_worker_is_cheaper(cpus, memory):
    def cost(size):
        return size.vcpus * 0.04048 + size.memory_bytes / 2**30 * 0.004445

    size = fargate_size(cpus, memory)
    for other in SIZES:
        if other.vcpus >= cpus and other.memory_bytes >= (memory or 0):
            assert cost(size) <= cost(other) + 1e-12


@given(size=st.sampled_from(SIZES))
def test_a_size_of_fargate_stays_as_it_is(size):
    assert fargate_size(size.vcpus, size.memory_bytes) == size
    assert rounding("a", size.vcpus, size.memory_bytes) is None


@given(cpus=CPUS, memory=MEMORY)
def test_a_rounded_worker_is_said_with_both_sizes(cpus, memory):
    size = fargate_size(cpus, memory)
    text = rounding("model", cpus, memory)
    exact = size.vcpus == cpus and memory in (None, size.memory_bytes)
    assert (text is None) == exact
    if text is not None:
        assert "'model'" in text
        assert str(size) in text
