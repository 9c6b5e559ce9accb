"""Limits of the sizes of Fargate."""

import pytest

from scalable.providers.aws.shapes import SIZES, fargate_size, rounding

GB = 2**30


def test_fargate_has_the_pairs_of_its_documentation():
    pairs = {(size.vcpus, size.memory_mib / 1024) for size in SIZES}
    assert {m for c, m in pairs if c == 0.25} == {0.5, 1, 2}
    assert {m for c, m in pairs if c == 4} == set(range(8, 31))
    assert {m for c, m in pairs if c == 8} == set(range(16, 61, 4))
    assert {m for c, m in pairs if c == 16} == set(range(32, 121, 8))
    assert len(pairs) == len(SIZES)


@pytest.mark.parametrize(("cpus", "memory"), [(17, GB), (1, 121 * GB)])
def test_a_worker_beyond_the_largest_size_is_refused_with_the_limit(cpus, memory):
    with pytest.raises(ValueError, match="16 vCPU, 120 GB"):
        fargate_size(cpus, memory)


def test_the_sentence_names_what_was_asked_and_what_is_given():
    assert rounding("model", 3, 20 * GB) == (
        "Workers of 'model' ask for 3 cpus and 20 GiB; Fargate rounds them up to 4 vCPU, 20 GB."
    )
