"""Functions and classes that depend on Dask's internals: a module for each of Dask's classes.

Each of these *seams* reads or changes one thing in Dask, and contains no policy.
``make test-matrix`` runs the tests with the oldest and the newest supported ``distributed``.
"""

from __future__ import annotations

import logging
import re
from functools import cache
from importlib import metadata

from scalable.errors import ClusterError

logger = logging.getLogger("scalable.client")

#: Year and month of the oldest release of distributed that works, as in ``pyproject.toml``, and of
#: the newest one that was tested.
OLDEST, NEWEST = (2026, 6), (2026, 8)


@cache
def check_version() -> None:
    """Raise ClusterError if distributed is too old. Warn once if it is newer than tested."""
    installed = metadata.version("distributed")
    release = tuple(map(int, re.findall(r"\d+", installed)[:2]))
    oldest, newest = (".".join(map(str, tested)) for tested in (OLDEST, NEWEST))
    if release < OLDEST:
        raise ClusterError(
            f"distributed {installed} is too old for scalable, which uses its internals",
            hint=f"install a later version: pip install 'distributed>={oldest}'",
        )
    if release > NEWEST:
        logger.warning(
            "distributed %s is newer than %s, the newest version that scalable was tested with; "
            "if workers or tasks fail, install that version",
            installed,
            newest,
        )
