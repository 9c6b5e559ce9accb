"""How much memory to give a call at first, from what earlier ones used. Pure.

A call that needs more fails and is run again with more: a small first allocation wastes less where
calls need little, and costs a run where they do not (Tovar et al. 2018, "A job sizing strategy for
high-throughput scientific workflows").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from scalable.quantiles import quantile

Policy = Literal["safe", "aggressive"]
#: Headroom over what is expected.
HEADROOM = 1.2
#: What "safe" covers before headroom.
SAFE_QUANTILE = 0.95
#: A call that runs out of memory has run for this share of its time, on average.
FAILED_SHARE = 0.6
#: Larger samples are thinned to so many candidates: the cost is flat between neighbours.
CANDIDATES = 200


class Use(NamedTuple):
    """What a call used: peak memory in bytes, and how long it ran, in seconds."""

    memory: float
    duration_s: float = 1.0


def first_allocation(samples: Sequence[Use], policy: Policy) -> int:
    """Bytes to give a call at first.

    "safe" is the 95 % quantile of the peaks with a headroom of a fifth. "aggressive" is what would
    have cost least, in bytes times seconds that were given and not used, had every sample been
    given it first, and :func:`next_allocation` after a failure.

    Parameters
    ----------
    samples
        Calls that succeeded; at least one.
    policy
        "safe" or "aggressive".

    Raises
    ------
    ValueError
        Without samples, or for another policy.
    """
    if not samples:
        raise ValueError("no call says how much memory is needed")
    peaks = sorted(use.memory for use in samples)
    if policy == "safe":
        return round(HEADROOM * quantile(peaks, SAFE_QUANTILE))
    if policy != "aggressive":
        raise ValueError(f"no policy {policy!r}; there are safe, aggressive")
    distinct = sorted(set(peaks))
    candidates = distinct[:: max(1, len(distinct) // CANDIDATES)]
    if candidates[-1] != distinct[-1]:
        candidates.append(distinct[-1])
    best: float = min(candidates, key=lambda size: expected_waste(samples, size))
    return round(best)


def next_allocation(failed: float, largest: float) -> int:
    """Bytes to give a call that ran out of memory.

    Parameters
    ----------
    failed
        Bytes that were not enough.
    largest
        The largest peak that was seen, in bytes.
    """
    return round(max(2 * failed, HEADROOM * largest))


def expected_waste(samples: Sequence[Use], size: float) -> float:
    """Bytes times seconds that are given in vain, had each sample been given this much first.

    Parameters
    ----------
    samples
        Calls.
    size
        Bytes.
    """
    largest = max(use.memory for use in samples)
    waste = 0.0
    for use in samples:
        if use.memory <= size:
            waste += (size - use.memory) * use.duration_s
        else:
            second = next_allocation(size, largest)
            waste += (FAILED_SHARE * size + second - use.memory) * use.duration_s
    return waste
