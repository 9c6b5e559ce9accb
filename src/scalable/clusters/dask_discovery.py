"""The user's clusters for tools that use Dask's cluster discovery.
The contract is an entry point in the group ``dask_cluster_discovery``: an asynchronous generator of
names and classes with ``from_name(name, loop=None, asynchronous=False)``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any


async def discover() -> AsyncIterator[tuple[str, type[Any]]]:
    """Yield name and class of each cluster that accepts connections."""
    from scalable.client.attached import DiscoveredCluster
    from scalable.errors import ClusterError
    from scalable.records import all_directories

    for directory in all_directories()[0]:
        try:
            record, scheduler = directory.record(), directory.scheduler()
        except (FileNotFoundError, ClusterError):
            continue  # it has just stopped, or a file is damaged: list the others
        if not record.embedded and scheduler is not None:
            yield record.name, DiscoveredCluster
