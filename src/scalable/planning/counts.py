"""Worker counts from the manifest alone. Does no I/O.

Pools with a range, or without ``workers``, share the rest of the target's total in proportion to
their expected work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from scalable.model import DeploymentSpec, Diagnostic, TaskSpec

#: Target option with the total of all pools, which is only the initial one of adaptive pools.
FIRST_TOTAL = "n_workers"
#: Target options with the total of all pools, in order of preference.
TOTAL_OPTIONS = ("max_workers", FIRST_TOTAL)
#: Target option with the maximum number of jobs that are queued or running.
AT_ONCE = "at_most"


def expected_work(tasks: Mapping[str, TaskSpec]) -> dict[str, float]:
    """Return the expected worker-seconds of each tag with work in the manifest."""
    work: dict[str, float] = {}
    for task in tasks.values():
        if task.expected_work_s is not None:
            work[task.component] = work.get(task.component, 0.0) + task.expected_work_s
    return work


def written_total(spec: DeploymentSpec) -> tuple[str, int] | None:
    """Return the name and value of the option that sets the total of all pools, if any."""
    for option in TOTAL_OPTIONS:
        value = spec.options.get(option)
        if option in spec.written_options and isinstance(value, int):
            return option, value
    return None


def total_limit(spec: DeploymentSpec) -> tuple[str, int] | None:
    """Return the name and value of the option that limits all pools together, if any.
    Workers beyond the target's job limit only wait in the queue. A plan contains them only if the
    manifest requests them.
    """
    limit = written_total(spec)
    maximum = None if spec.adaptive is None else spec.adaptive.maximum
    # Pools only start with ``n_workers`` if ``adaptive`` has a maximum.
    if maximum is not None and (limit is None or limit[0] == FIRST_TOTAL or limit[1] > maximum):
        limit = "adaptive.maximum", maximum
    at_once = spec.options.get(AT_ONCE)
    if isinstance(at_once, int):
        at_once = max(at_once, sum(low for low, _ in ranges_of(spec).values()))
        if limit is None or limit[1] > at_once:
            limit = AT_ONCE, at_once
    return limit


def worker_counts(spec: DeploymentSpec) -> dict[str, int]:
    """Return the number of workers of each tag, in the order of the manifest.
    ``spec`` must have no :func:`conflicts`. Equal input gives equal counts.
    """
    ranges = ranges_of(spec)
    counts = {tag: low for tag, (low, _) in ranges.items()}
    total = written_total(spec)
    if total is not None:
        target = total[1]
    elif spec.adaptive is not None:
        target = max(spec.adaptive.minimum, sum(counts.values()))
    else:
        # Without a total, each pool without ``workers`` gets one worker.
        unsaid = [tag for tag, c in spec.components.items() if c.workers is None]
        return counts | dict.fromkeys(unsaid, 1)
    if spec.adaptive is not None and spec.adaptive.maximum is not None:
        target = min(target, spec.adaptive.maximum)
    _share(counts, ranges, max(0, target - sum(counts.values())), _weights(spec))
    return counts


def ranges_of(spec: DeploymentSpec) -> dict[str, tuple[int, int | None]]:
    """Return each tag's (minimum, maximum), by default (1, None), or (0, None) without tasks."""
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
    """Add ``rest`` workers to ``counts``, each to the pool with the most work per worker."""
    order = {tag: position for position, tag in enumerate(counts)}
    given = _first_handed_out(counts, ranges, rest, weights)
    rest -= sum(given.values()) - sum(counts.values())
    counts.update(given)
    for _ in range(rest):
        able = [t for t in counts if (high := ranges[t][1]) is None or counts[t] < high]
        if not able:
            return
        # A pool without workers comes first, because its tasks would never run.
        best = max(able, key=lambda t: (counts[t] == 0, weights[t] / (counts[t] or 1), -order[t]))
        counts[best] += 1


def _first_handed_out(
    counts: Mapping[str, int],
    ranges: Mapping[str, tuple[int, int | None]],
    rest: int,
    weights: Mapping[str, float],
) -> dict[str, int]:
    """Return counts slightly below :func:`_share`'s result, so that it has few steps left."""
    # Adding workers one by one leaves all pools with about the same work per worker. This amount
    # is found by bisection.
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
    """Return contradictory limits in the manifest, each with the smallest valid value."""
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
                hint=f"the smallest value that works is {least_workable}",
            )
        )

    if total is not None and total[1] < least:
        option, value = total
        add(
            (option,), f"{option} {value} is less than the sum of the pools' minima: {shown}", least
        )
    if adaptive is None:
        return found
    if adaptive.maximum is not None and adaptive.maximum < least:
        message = f"maximum {adaptive.maximum} is less than the sum of the pools' minima: {shown}"
        add(("adaptive", "maximum"), message, least)
    if total is not None and adaptive.minimum > total[1]:
        option, value = total
        message = f"{option} {value} is less than the adaptive minimum {adaptive.minimum}"
        add((option,), message, max(adaptive.minimum, least))
    return found
