"""Listing and verification of all entries of a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from scalable.cache.differences import nearness
from scalable.cache.entries import Entry, Unreadable, check_payload, read_header
from scalable.cache.outcomes import Verified
from scalable.cache.places import EntryBackend
from scalable.cache.reports import Report


@dataclass(frozen=True)
class Item:
    """File or object of a store, with its description if readable."""

    key: str
    #: Size in bytes in the store.
    size: int
    #: Time of the last use in seconds since the epoch, by the clock of the backend.
    used: float
    #: Description of the entry, or None if it cannot be read.
    entry: Entry | None


def inventory(place: EntryBackend) -> Iterator[Item]:
    """Iterate over all entries of a backend, without logging or counting unreadable ones."""
    for stored in place.stored():
        entry = None
        try:
            with place.opened(stored.key) as opened:
                entry = read_header(opened.source, opened.size, stored.key)[0].entry
        except FileNotFoundError:
            continue  # removed since it was listed
        except (Unreadable, OSError):
            pass
        yield Item(stored.key, stored.size, stored.used, entry)


def verified(place: EntryBackend) -> Verified:
    """Read all entries of a backend, and compare them with their digests."""
    faults: list[Report] = []
    entries = size = 0
    for stored in place.stored():
        entries += 1
        size += stored.size
        try:
            with place.opened(stored.key) as opened:
                header, begun = read_header(opened.source, opened.size, stored.key)
                check_payload(opened.source, header, begun)
        except FileNotFoundError:
            entries, size = entries - 1, size - stored.size
        except Unreadable as error:
            faults.append(Report(error.kind, stored.key, error.reason))
        except OSError as error:
            faults.append(Report("unusable", stored.key, str(error)))
    return Verified(entries, size, tuple(faults))


def nearest_earlier(entry: Entry, others: Iterable[Entry]) -> Entry | None:
    """Return the nearest earlier result of the same function (the latest of several), or None."""
    earlier = (
        one
        for one in others
        if one.function == entry.function and one.key != entry.key and one.created <= entry.created
    )
    return max(
        earlier, key=lambda one: (nearness(entry.parts, one.parts), one.created), default=None
    )
