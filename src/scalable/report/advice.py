"""Advice from a run's record: memory to reserve, worker counts, longest chain. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from scalable.planning import judge_memory
from scalable.report.chain import Chain
from scalable.report.spans import Presence, Span
from scalable.report.usage import PoolUse
from scalable.spec import MemoryAdvice
from scalable.units import as_written, counted, format_duration, like

#: Share of the time in which workers have tasks, below and above which other counts are advised.
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


def said_memory(advice: MemoryAdvice) -> str:
    """Return advice on memory as a sentence."""
    used = like(advice.reserved, advice.used)
    return (
        f"components.{advice.tag}.memory reserves {as_written(advice.reserved)}; "
        f"95 % of {advice.samples} calls used at most {used}: reserve {advice.written}."
    )


def advise(
    uses: Sequence[PoolUse],
    spans: Sequence[Span],
    present: Sequence[Presence],
    chain: Chain | None,
) -> tuple[str, ...]:
    """Return all advice as sentences. ``chain`` is None if no task waited for another."""
    sentences = [said_memory(advice) for advice in memory_advice(uses)]
    tags = {presence.worker: presence.tag for presence in present}
    by_tag: dict[str, list[Span]] = {}
    for span in spans:
        by_tag.setdefault(tags.get(span.worker, span.tag), []).append(span)
    for use in uses:
        sentences += _counts(use, by_tag.get(use.tag, []), chain)
    if spans and chain is not None:
        length = max(span.end for span in spans) - min(span.begin for span in spans)
        if length > 0 and chain.seconds >= IDLE * length:
            share = round(100 * min(1.0, chain.seconds / length))
            sentences.append(
                f"The longest chain of {counted(chain.calls, 'call')} took "
                f"{format_duration(chain.seconds)}, {share} % of the {format_duration(length)} "
                "from the first call to the last: no number of workers makes it shorter; "
                "faster calls or smaller steps do."
            )
    return tuple(sentences)


def _counts(use: PoolUse, spans: Sequence[Span], chain: Chain | None) -> Iterator[str]:
    share = use.share
    if share is None or len(spans) < LEAST_CALLS:
        return
    work = sum(span.end - span.begin for span in spans)
    length = max(span.end for span in spans) - min(span.begin for span in spans)
    if share < IDLE and use.workers > 1 and length > 0:
        enough = max(1, math.ceil(use.busy_s / length / BUSY))
        if enough < use.workers:
            yield (
                f"Workers of {use.tag} had calls in {100 * share:.0f} % of their time: the same "
                f"work fits into {counted(enough, 'worker')} instead of {use.workers} if it is "
                "spread evenly."
            )
    elif share > BUSY and length > 0:
        longest = max(span.end - span.begin for span in spans)
        floor = max(longest, 0.0 if chain is None else chain.seconds)
        halved = max(floor, length / 2)
        if halved < 0.9 * length:
            yield (
                f"Workers of {use.tag} had calls in {100 * share:.0f} % of their time, with "
                f"{format_duration(work)} of calls on {counted(use.workers, 'worker')}: "
                f"{2 * use.workers} workers could shorten {format_duration(length)} to about "
                f"{format_duration(halved)}."
            )
