"""Rows of the sidebar: the form in which Dask's extension describes a cluster. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from scalable.errors import ClusterError
from scalable.spec import ClusterStatus, PoolStatus
from scalable.units import format_bytes

#: States of clusters that are shown. In other states a cluster has no scheduler.
SHOWN = ("starting", "running", "degraded", "unmanaged", "unreachable")
#: Path of a cluster's pages below the address of Jupyter's server, as in Dask's extension.
PAGES = "dask/dashboard"

#: Cpus and bytes of memory of one worker, by tag.
Sizes = Mapping[str, tuple[float, int]]


def row(status: ClusterStatus, sizes: Sizes, base_url: str, name: str = "") -> dict[str, Any]:
    """Return the row of a cluster.

    Cores and memory of pools without ``sizes`` are not counted. ``base_url`` is the path of
    Jupyter's server, with a slash at both ends. ``name`` is by default that of the cluster.
    """
    live = {tag: pool.running for tag, pool in status.pools.items()}
    known = [(count, *sizes[tag]) for tag, count in live.items() if tag in sizes]
    shown = name or status.name
    model: dict[str, Any] = {
        "id": status.id,
        "name": f"{shown} (unreachable)" if status.state == "unreachable" else shown,
        "scheduler_address": status.address,
        "dashboard_link": f"{base_url}{PAGES}/{status.id}/scalable/" if status.dashboard else "",
        "workers": sum(live.values()),
        "memory": format_bytes(sum(count * memory for count, _, memory in known)),
        "cores": round(sum(count * cpus for count, cpus, _ in known), 2),
    }
    followed = list(status.adaptive.values())
    if len(status.pools) == len(followed) == 1 and isinstance(followed[0], list | tuple):
        model["adapt"] = dict(zip(("minimum", "maximum"), followed[0], strict=False))
    return model


def names(statuses: Iterable[ClusterStatus]) -> dict[str, str]:
    """Map ids to names that no other row has: sessions of one project may share a name."""
    listed = list(statuses)
    often = Counter(status.name for status in listed)
    return {
        s.id: s.name if often[s.name] == 1 else f"{s.name} ({s.id.partition('-')[0]})"
        for s in listed
    }


def shares(name: str, total: Any, pools: Mapping[str, PoolStatus]) -> dict[str, int]:
    """Return worker counts by tag, from the one total that the sidebar requests.

    The proportions of several pools are kept, and no pool loses its last worker while there are
    enough for all. Raises ClusterError for an invalid number, a cluster without pools, or several
    pools without workers.
    """
    if isinstance(total, bool) or not isinstance(total, int) or total < 0:
        raise ClusterError(f"cluster {name!r} cannot have {total!r} workers: give 0 or more")
    if len(pools) == 1:
        return dict.fromkeys(pools, total)
    before = {tag: pool.wanted for tag, pool in pools.items() if pool.wanted}
    if total == 0:
        return dict.fromkeys(pools, 0)
    if not before:
        tags = " ".join(f"{tag}=N" for tag in sorted(pools))
        raise ClusterError(
            f"cluster {name!r} has {len(pools)} pools and no workers, so {total} workers have no "
            "proportions",
            hint=f"run `scalable scale {name} {tags}`" if pools else None,
        )
    exact = {tag: total * wanted / sum(before.values()) for tag, wanted in before.items()}
    counts = {tag: int(count) for tag, count in exact.items()}
    largest = sorted(counts, key=lambda tag: (counts[tag] - exact[tag], tag))
    for tag in largest[: total - sum(counts.values())]:
        counts[tag] += 1
    if total >= len(counts):
        for tag in [tag for tag, count in counts.items() if count == 0]:
            counts[tag] = 1
            counts[max(counts, key=lambda t: counts[t])] -= 1
    return counts


def bounds(name: str, adapt: Any, pools: Mapping[str, PoolStatus]) -> tuple[str, int, int | None]:
    """Return the only pool's tag and bounds. Raises ClusterError for several pools or no range."""
    if len(pools) != 1:
        raise ClusterError(
            f"cluster {name!r} has {len(pools)} pools, and the sidebar has bounds for one",
            hint="in Python: client.cluster.adapt(TAG, MINIMUM, MAXIMUM)",
        )
    minimum, maximum = (adapt.get(key) for key in ("minimum", "maximum"))
    whole = all(type(n) is int and n >= 0 for n in (minimum, maximum) if n is not None)
    if not whole or minimum is None or (maximum is not None and maximum < minimum):
        raise ClusterError(
            f"cluster {name!r} cannot adapt between {minimum!r} and {maximum!r} workers: give "
            "whole numbers of which the first is not larger"
        )
    return next(iter(pools)), minimum, maximum
