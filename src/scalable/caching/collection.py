"""Removal of results that are too old or too many, and of files left by killed processes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from scalable.caching.entries import Entry
from scalable.caching.eviction import Candidate, Levels, chosen
from scalable.caching.outcomes import Collected, Usage
from scalable.caching.places import Place, Stored

logger = logging.getLogger("scalable.caching")

#: Seconds after its last write for which a temporary file may still be in use.
LEFT_S = 3600.0
_LEVELS = "levels.json"


def collect(
    place: Place,
    entry_of: Callable[[str], Entry | None],
    limit: int | None,
    max_age_s: float | None,
    *,
    dry_run: bool = False,
) -> Collected:
    """Remove results until a store is within its limits, and old temporary files.

    Limits are bytes, and seconds since the last use. Entries that ``entry_of`` cannot read go
    first. A dry run reports what it would remove, without temporary files. Raises OSError if the
    store cannot be changed.
    """
    now = place.now()
    leftovers = 0 if dry_run else place.remove_leftovers(LEFT_S)
    stored = list(place.stored())
    old = [one for one in stored if max_age_s is not None and now - one.used > max_age_s]
    gone = {one.key for one in old if dry_run or _removed(place, one)}
    stored = [one for one in stored if one.key not in gone]
    if limit is not None and sum(one.size for one in stored) > limit:
        keys, levels = _of_least_value(place, entry_of, limit, now, stored)
        gone |= {one.key for one in keys if dry_run or _removed(place, one)}
        if not dry_run:
            document = {"times": levels.times, "values": levels.values}
            place.write_note(_LEVELS, json.dumps(document))
    before = {one.key: one.size for one in (*old, *stored)}
    stored = [one for one in stored if one.key not in gone]
    if not dry_run and (gone or place.index.is_worn()):
        kept = (entry_of(one.key) for one in stored)
        place.index.rebuild(entry for entry in kept if entry is not None)
    return Collected(
        removed=len(gone),
        size=sum(before[key] for key in gone),
        keys=tuple(sorted(gone)),
        leftovers=leftovers,
        left=Usage(len(stored), sum(one.size for one in stored)),
    )


def _of_least_value(
    place: Place,
    entry_of: Callable[[str], Entry | None],
    limit: int,
    now: float,
    stored: Sequence[Stored],
) -> tuple[Sequence[Candidate], Levels]:
    """Return the results of least value, and the levels after their removal."""
    levels = _levels(place)
    candidates = []
    for one in stored:
        entry = entry_of(one.key)
        # An unreadable entry has no value: it counts as never used.
        cost_s, used = (0.0, 0.0) if entry is None else (entry.cost_s, one.used)
        candidates.append(Candidate(one.key, one.size, cost_s, used))
    gone, level = chosen(candidates, limit, levels)
    return gone, levels.raised(now, level)


def _removed(place: Place, one: Stored | Candidate) -> bool:
    try:
        return place.remove(one.key)
    except OSError as error:
        logger.warning("the result %s... cannot be removed: %s", one.key[:12], error)
        return False


def _levels(place: Place) -> Levels:
    with suppress(ValueError, TypeError, KeyError):
        document = json.loads(place.read_note(_LEVELS) or "")
        times, values = (tuple(map(float, document[name])) for name in ("times", "values"))
        if len(times) == len(values) and list(times) == sorted(times):
            return Levels(times, values)
    return Levels()
