"""How many workers each pool gets when nothing but the manifest is known. Pure.

``workers:`` of a component is its count. The pools without it share what the target's total leaves,
by the work that their tasks are expected to bring.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from scalable.spec import DeploymentSpec, Diagnostic, TaskSpec

#: The option of a target that bounds the total over its pools, by preference.
TOTAL_OPTIONS = ("max_workers", "n_workers")


def expected_work(tasks: Mapping[str, TaskSpec]) -> dict[str, float]:
    """Tag -> expected worker-seconds; tags whose tasks all lack expectations are left out."""
    work: dict[str, float] = {}
    for task in tasks.values():
        if task.expected_work_s is not None:
            work[task.component] = work.get(task.component, 0.0) + task.expected_work_s
    return work


def written_total(spec: DeploymentSpec) -> tuple[str, int] | None:
    """The option that gives the total over all pools, with its value, where it is written."""
    for option in TOTAL_OPTIONS:
        value = spec.options.get(option)
        if option in spec.written_options and isinstance(value, int):
            return option, value
    return None


def worker_counts(spec: DeploymentSpec) -> dict[str, int]:
    """Tag -> workers, in the order of the manifest. Deterministic.

    The request must be free of :func:`conflicts`.
    """
    ranges = ranges_of(spec)
    counts = {tag: low for tag, (low, _) in ranges.items()}
    total = written_total(spec)
    if total is not None:
        target = total[1]
    elif spec.adaptive is not None:
        target = max(spec.adaptive.minimum, sum(counts.values()))
    else:
        # Nothing is to be shared out: one for each pool that does not say otherwise.
        unsaid = [tag for tag, c in spec.components.items() if c.workers is None]
        return counts | dict.fromkeys(unsaid, 1)
    if spec.adaptive is not None and spec.adaptive.maximum is not None:
        target = min(target, spec.adaptive.maximum)
    _share(counts, ranges, target - sum(counts.values()), _weights(spec))
    return counts


def ranges_of(spec: DeploymentSpec) -> dict[str, tuple[int, int | None]]:
    """Tag -> least and most workers: its own range, at least one where a task names it."""
    named = {task.component for task in spec.tasks.values()}
    return {
        tag: (int(tag in named), None)
        if component.workers is None
        else (component.workers.minimum, component.workers.maximum)
        for tag, component in spec.components.items()
    }


def _weights(spec: DeploymentSpec) -> dict[str, float]:
    work = expected_work(spec.tasks)
    mean = sum(work.values()) / len(work) if any(work.values()) else 1.0
    return {tag: work.get(tag) or mean for tag in spec.components}


def _share(
    counts: dict[str, int],
    ranges: Mapping[str, tuple[int, int | None]],
    rest: int,
    weights: Mapping[str, float],
) -> None:
    """Hand out the rest, one worker at a time, to the pool with the most work for each worker."""
    order = {tag: position for position, tag in enumerate(counts)}
    given = _first_handed_out(counts, ranges, rest, weights)
    rest -= sum(given.values()) - sum(counts.values())
    counts.update(given)
    for _ in range(rest):
        able = [t for t in counts if (high := ranges[t][1]) is None or counts[t] < high]
        if not able:
            return
        # An empty pool comes first, whatever the others have to do.
        best = max(able, key=lambda t: (counts[t] == 0, weights[t] / (counts[t] or 1), -order[t]))
        counts[best] += 1


def _first_handed_out(
    counts: Mapping[str, int],
    ranges: Mapping[str, tuple[int, int | None]],
    rest: int,
    weights: Mapping[str, float],
) -> dict[str, int]:
    """Most of a large rest at once: counts that handing it out one by one comes by.

    That leaves no pool with more work for each worker than any amount before it goes below it; this
    finds the least such amount. Rounding may be off by a worker or two.
    """
    target = sum(counts.values()) + rest

    def counts_by(amount: float, beyond: int) -> dict[str, int]:
        found = {}
        for tag, least in counts.items():
            count = max(1, int(min(weights[tag] / amount, target)) + beyond)
            most = ranges[tag][1]
            found[tag] = max(least, count if most is None else min(count, most))
        return found

    if sum(counts_by(math.inf, 1).values()) > target:
        return dict(counts)
    low, high = min(weights.values()) / (target + 1), max(weights.values())
    while low < (middle := math.sqrt(low) * math.sqrt(high)) < high:
        if sum(counts_by(middle, 2).values()) > target:
            low = middle
        else:
            high = middle
    return counts_by(high, -2) if sum(counts_by(high, 2).values()) <= target else dict(counts)


def conflicts(spec: DeploymentSpec) -> list[Diagnostic]:
    """Bounds that cannot all hold, each with the least value that would work."""
    lows = {tag: low for tag, (low, _) in ranges_of(spec).items() if low}
    least = sum(lows.values())
    shown = ", ".join(f"{tag} {low}" for tag, low in lows.items())
    total = written_total(spec)
    adaptive = spec.adaptive
    found: list[Diagnostic] = []

    def add(path: tuple[str, ...], message: str, least_workable: int) -> None:
        found.append(
            Diagnostic(
                "E_BAD_OPTION",
                ("targets", spec.target_name, *path),
                message,
                hint=f"the least workable value is {least_workable}",
            )
        )

    if total is not None and total[1] < least:
        option, value = total
        add((option,), f"{option} {value} is less than the pools need together: {shown}", least)
    if adaptive is None:
        return found
    if adaptive.maximum is not None and adaptive.maximum < least:
        message = f"maximum {adaptive.maximum} is less than the pools need together: {shown}"
        add(("adaptive", "maximum"), message, least)
    if total is not None and adaptive.minimum > total[1]:
        option, value = total
        message = f"{option} {value} is less than the adaptive minimum {adaptive.minimum}"
        add((option,), message, max(adaptive.minimum, least))
    return found
