"""Cached results in words: hits, misses and their reasons, and the time that was saved."""

from __future__ import annotations

from collections.abc import Iterator

from scalable.model.remembered import MissReason, RememberedTotals
from scalable.units import counted, format_duration
from scalable.views.tables import one_line

#: Maximum number of reasons in a line.
LINE_REASONS = 2


def remembered_in_words(totals: RememberedTotals) -> str:
    """Return hits, misses and the saved time, such as ``120 found (2 h saved), 3 ran``."""
    found = f"{totals.found} found"
    if totals.found:
        waited = f", {totals.waited} computed by others meanwhile" if totals.waited else ""
        found += f" ({format_duration(totals.saved_s)} saved{waited})"
    return f"{found}, {totals.missed} ran" if totals.missed else found


def remembered_line(totals: RememberedTotals) -> str:
    """Return one line about cached results, with the most frequent reasons of misses."""
    told = [f"{each.count} x {reason_in_words(each)}" for each in totals.reasons[:LINE_REASONS]]
    others = len(totals.reasons) - len(told)
    if others:
        told.append(f"{counted(others, 'more reason')}")
    because = f": {'; '.join(told)}" if told else ""
    return f"Remembered results: {remembered_in_words(totals)}{because}"


def reason_in_words(reason: MissReason) -> str:
    """Return the reason of misses on one line."""
    return one_line(reason.reason)


def reason_rows(totals: RememberedTotals) -> Iterator[tuple[str, str, str, str]]:
    """Yield task name, number of tasks, reason, and nearest earlier result, for each reason."""
    for each in totals.reasons:
        nearest = each.nearest[:12]
        yield one_line(each.task), str(each.count), reason_in_words(each), nearest
