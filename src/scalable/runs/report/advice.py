"""Advice from a run's record: memory to reserve, worker counts, longest chain. Does no I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from scalable.model import MemoryAdvice
from scalable.planning.notices import judge_memory, memory_in_words
from scalable.runs.calls import Chain, Presence, Span
from scalable.runs.report.usage import PoolUse
from scalable.units import counted, format_duration

#: If workers have tasks for less or more than these shares of the time, advise other counts.
IDLE, BUSY = 0.5, 0.85
#: Minimum number of tasks before other counts are advised.
LEAST_CALLS = 10


def memory_advice(uses: Iterable[PoolUse]) -> tuple[MemoryAdvice, ...]:
    """Return advice for pools that reserve much more or less memory than their tasks used."""
    found = (
        judge_memory(use.tag, use.reserved_memory, int(use.used_memory), use.measured)
        for use in uses
        if use.reserved_memory is not None and use.used_memory is not None
    )
    return tuple(advice for advice in found if advice is not None)


def advise(
    uses: Sequence[PoolUse],
    spans: Sequence[Span],
    present: Sequence[Presence],
    chain: Chain | None,
    most: int | None = None,
) -> tuple[str, ...]:
    """Return all advice as sentences. ``chain`` is None without dependent tasks.
    ``most`` is the largest number of workers that the manifest allows in all pools together.
    """
    sentences = [memory_in_words(advice) for advice in memory_advice(uses)]
    tags = {presence.worker: presence.tag for presence in present}
    by_tag: dict[str, list[Span]] = {}
    for span in spans:
        by_tag.setdefault(tags.get(span.worker, span.tag), []).append(span)
    spare = math.inf if most is None else most - sum(use.workers for use in uses)
    for use in uses:
        sentences += _counts(use, by_tag.get(use.tag, []), chain, spare)
    if spans and chain is not None:
        length = max(span.end for span in spans) - min(span.begin for span in spans)
        if length > 0 and chain.seconds >= IDLE * length:
            share = round(100 * min(1.0, chain.seconds / length))
            sentences.append(
                f"The longest chain of {counted(chain.calls, 'task')} took "
                f"{format_duration(chain.seconds)}, {share} % of the {format_duration(length)} "
                "from the first task to the last: more workers do not make it shorter, "
                "but faster tasks or smaller steps do."
            )
    return tuple(sentences)


def _counts(
    use: PoolUse, spans: Sequence[Span], chain: Chain | None, spare: float
) -> Iterator[str]:
    share = use.share
    if share is None or len(spans) < LEAST_CALLS:
        return
    busy = f"Workers of {use.tag} had tasks in {100 * share:.0f} % of their time"
    length = max(span.end for span in spans) - min(span.begin for span in spans)
    if share < IDLE and use.workers > 1 and length > 0:
        enough = max(1, math.ceil(use.busy_s / length / BUSY))
        if enough < use.workers:
            yield (
                f"{busy}: the same work fits into {counted(enough, 'worker')} instead of "
                f"{use.workers} if it is spread evenly."
            )
    elif share > BUSY and length > 0:
        times = [span.end - span.begin for span in spans]
        floor = max(*times, 0.0 if chain is None else chain.seconds)
        more = use.workers + int(max(0, min(use.workers, spare)))
        shorter = max(floor, length * use.workers / more)
        if shorter < 0.9 * length:
            yield (
                f"{busy}, with {format_duration(sum(times))} of tasks on "
                f"{counted(use.workers, 'worker')}: {more} workers could shorten "
                f"{format_duration(length)} to about {format_duration(shorter)}."
            )
